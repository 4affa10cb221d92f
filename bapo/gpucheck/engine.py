"""vLLM's log-probabilities against the trainer's: as loaded, with altered weights, and after vLLM has slept.

``python -m bapo.gpucheck.engine FOLDER DEVICE`` writes ``engine.json`` with rows of the table. A process of its own: it
starts CUDA, and vLLM keeps the card until it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import PreTrainedModel

from bapo.engines.shared import models
from bapo.engines.shared.prompts import read_prompts
from bapo.experiments.places import base_directory, data_directory
from bapo.experiments.schema import Config
from bapo.gpu import devices
from bapo.gpucheck import world
from bapo.gpucheck.world import SKIPPED, Row, judged

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.v1.worker.worker_base import WorkerBase

FILE = "engine.json"
#: PPO's clip, by which the share of clipped ratios is counted
CLIP = 0.2
PROMPTS, SAMPLES = 8, 8


def difference(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> tuple[float, str]:
    """Compare log-probabilities of the same tokens: their mean difference, and a text that also has the largest one.

    And the share of ratios that PPO's clip would touch.
    """
    gaps = np.concatenate(one).astype(np.float64) - np.concatenate(other)
    mean, clipped = float(np.abs(gaps).mean()), float((np.abs(np.expm1(gaps)) > CLIP).mean())
    return mean, f"mean {mean:.1e}, maximum {np.abs(gaps).max():.1e}, {clipped:.2%} of {len(gaps)} ratios clipped"


def give(worker: WorkerBase, weights: dict[str, torch.Tensor]) -> None:
    """Load weights into a worker of vLLM, as a trainer does after its update."""
    worker.model_runner.model.load_weights(weights.items())


class Sampled:
    """vLLM's responses to a few prompts, with its log-probabilities."""

    def __init__(self, engine: LLM, prompts: list[list[int]], tokens: int) -> None:
        from vllm import SamplingParams

        asked = [{"prompt_token_ids": p} for p in prompts]
        parameters = SamplingParams(n=SAMPLES, temperature=1.0, max_tokens=tokens, logprobs=0, ignore_eos=False)
        answers = engine.generate(asked, parameters, use_tqdm=False)
        pairs = [(p, o) for p, a in zip(prompts, answers, strict=True) for o in a.outputs if o.token_ids]
        self.prompts = [p for p, _ in pairs]
        self.responses = [list(o.token_ids) for _, o in pairs]
        self.logprobs = [
            np.array([entry[token].logprob for token, entry in zip(o.token_ids, o.logprobs, strict=True)])
            for _, o in pairs
        ]

    def under(self, model: PreTrainedModel, device: str) -> list[np.ndarray]:
        """Return the same tokens' log-probabilities by the trainer's model."""
        width = max(map(len, self.responses))
        rows = [p + r for p, r in zip(self.prompts, self.responses, strict=True)]
        ids = torch.zeros(len(rows), max(map(len, self.prompts)) + width + 1, dtype=torch.int64, device=device)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row, device=device)
        starts = torch.tensor([len(p) for p in self.prompts], device=device)
        narrow = torch.autocast("cuda", torch.bfloat16) if device == "cuda" else contextlib.nullcontext()
        with torch.no_grad(), narrow:
            scored = models.score(model, ids, starts, width).logprobs.float().cpu().numpy()
        return [scored[i, : len(r)] for i, r in enumerate(self.responses)]


def main(folder: Path, device: str) -> None:
    """Write the rows."""
    config = world.config_of(folder, device)
    checkpoint = base_directory(config) / "checkpoint"
    model, tokenizer = models.load(checkpoint, config, torch.device(device))
    model.float()  # the trainer's master weights
    split = data_directory(config) / "train.parquet"
    prompts = [list(p.row.tokens) for p in read_prompts(split, tokenizer, config.sampling.max_prompt_tokens)[:PROMPTS]]
    engine = start(checkpoint, config, device)
    tokens, limit = config.sampling.max_response_tokens, world.MISMATCH[device]
    rows = []

    def compare(name: str, found: str, cure: str) -> None:
        sampled = Sampled(engine, prompts, tokens)
        mean, text = difference(sampled.logprobs, sampled.under(model, device))
        rows.append(judged(name, mean <= limit, f"{text}{found}", cure))

    old_cure = "vLLM and transformers disagree on one model: compare their versions with containers/lock-gpu.txt"
    compare("vLLM's log-probabilities", "", old_cure)
    before = Sampled(engine, prompts, tokens)
    with torch.no_grad():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3 * parameter.abs().mean())
    moved, _ = difference(before.logprobs, before.under(model, device))
    weights = {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}
    push(engine, weights)
    cure = "vLLM does not take other weights: what it samples would never change; take the versions of the lock"
    compare("altered weights", f" (they move it by {moved:.1e})", cure)
    if device == "cuda":
        rows.append(asleep(engine, weights))
        compare("awake again", "", "vLLM's weights after its sleep are not those that it was given; see vLLM's version")
    else:
        rows.append(Row("vLLM asleep", SKIPPED, "vLLM cannot sleep on CPU cores"))
    (folder / FILE).write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")


def start(checkpoint: Path, config: Config, device: str) -> LLM:
    """Start vLLM within this process, so that a function can be sent to its worker."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    from vllm import LLM

    if device == "cpu":
        from vllm import _custom_ops

        # vLLM would pack linear layers for oneDNN and empty their weights: nothing could be loaded into them again
        _custom_ops._supports_onednn = False
    return LLM(
        model=str(checkpoint),
        dtype=world.dtype(device),
        max_model_len=config.sampling.max_prompt_tokens + config.sampling.max_response_tokens,
        max_num_seqs=PROMPTS * SAMPLES,
        gpu_memory_utilization=world.SHARE,
        enforce_eager=device == "cpu",
        enable_sleep_mode=device == "cuda",
        seed=1,
    )


def push(engine: LLM, weights: dict[str, torch.Tensor]) -> None:
    engine.collective_rpc(give, args=(weights,))
    engine.reset_prefix_cache()


def asleep(engine: LLM, weights: dict[str, torch.Tensor]) -> Row:
    """Have vLLM sleep as deeply as verl does, wake it, and give it the weights again."""
    before = torch.cuda.mem_get_info()[0]
    engine.sleep(level=2)
    freed = torch.cuda.mem_get_info()[0] - before
    engine.wake_up(tags=["weights"])
    push(engine, weights)
    engine.wake_up(tags=["kv_cache"])
    share = freed / (world.SHARE * torch.cuda.mem_get_info()[1])
    cure = "vLLM keeps its memory while it sleeps, so the policy cannot be trained beside it; take the lock's version"
    return judged("vLLM asleep", share > 0.5, f"{freed / 1e9:.1f} GB given back, {share:.0%} of its share", cure)


if __name__ == "__main__":
    with devices.taken(int(sys.argv[2] == "cuda")):  # before anything starts CUDA
        main(Path(sys.argv[1]), sys.argv[2])
