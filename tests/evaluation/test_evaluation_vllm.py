"""Real vLLM on CPU cores against the torch engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.configs import changed
from support.late import LATE
from support.vllm_cpu import make_world, needs_vllm
from support.world import start_of

from bapo.evaluation import backends, curve, run
from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory
from bapo.experiments.schema import Config
from bapo.gpucheck.command import PROMPTS
from bapo.tasks.job import data_folder

if LATE:
    import torch

    from bapo.engines.shared import models
    from bapo.engines.shared.prompts import read_prompts


pytestmark = [pytest.mark.slow, needs_vllm]

#: the most by which the log-probabilities of two tokens may differ where one engine takes the one and one the other
TIE = 1e-3
#: what keeps vLLM small and exact here
SMALL = [f"evaluation.vllm.{key}" for key in ("dtype=float32", "gpu_memory_utilization=0.3")]


@pytest.fixture(scope="module", autouse=True)
def small_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GB
        patch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
        yield


def diagrams(folder: Path) -> list[str]:
    """Settings of a model that reads images, with heads of 32, whose data and base model exist."""
    text = {"hidden_size": 128, "intermediate_size": 256, "rope_parameters.mrope_section": "[4,6,6]"}
    settings = ["scale=smoke", "task=geometry", "device=cpu", "tracking=none", f"paths.results={folder / 'results'}"]
    settings += [f"model.architecture.text_config.{key}={value}" for key, value in text.items()]
    settings += ["model.architecture.vision_config.out_hidden_size=128", "data.split_sizes.diagrams_test=24"]
    start_of(settings)
    return settings


@pytest.mark.parametrize(
    ("make", "benchmark", "problems", "images"), [(make_world, "cd34", PROMPTS, 0), (diagrams, "diagrams_test", 24, 1)]
)
def test_vllm_agrees_with_the_torch_engine(
    make: Callable[[Path], list[str]], benchmark: str, problems: int, images: int, tmp_path: Path
) -> None:
    settings = make(tmp_path)
    greedy, sampled = {}, {}
    for backend in ("torch", "vllm"):
        config = compose_config([*settings, *SMALL, f"evaluation.backend={backend}"])
        checkpoint = base_directory(config) / "checkpoint"
        model: Any = backends.build(config, checkpoint, lambda count: None, images)
        for found, samples, top_k in ((greedy, 1, 1), (sampled, 32, -1)):
            asked = changed(config, evaluation__samples=samples, sampling__top_k=top_k)
            loaded = run.load_benchmark(asked, benchmark, checkpoint)
            found[backend] = run.run_benchmark(model, loaded, limit=problems)[1]
    model.model.llm_engine.engine_core.shutdown()  # vLLM's
    assert_greedy(config, checkpoint, benchmark, greedy["torch"], greedy["vllm"])
    assert_within(sampled["torch"], sampled["vllm"])
    for frame in sampled.values():
        assert len(frame) == problems * 32 and frame.groupby("problem_id")["response"].nunique().max() > 1
    assert accuracy(sampled["torch"])[0] > 0  # or nothing was compared


def test_a_curve_evaluates_a_checkpoint_in_a_process_of_its_own(tmp_path: Path) -> None:
    config = compose_config([*make_world(tmp_path), *SMALL, "evaluation.backend=vllm", "evaluation.curve_samples=4"])
    folder = tmp_path / "step_000000"
    curve._evaluate(config, ["cd34"], base_directory(config) / "checkpoint", folder)
    rows, counts = pd.read_parquet(folder / "cd34.parquet"), curve._counts("cd34", {0: folder})
    assert counts["problem_id"].tolist() == list(dict.fromkeys(rows["problem_id"])) and set(counts["samples"]) == {4}
    assert counts["correct"].sum() == rows["correct"].sum()


def accuracy(frame: pd.DataFrame) -> tuple[float, float]:
    """(pass@1, its standard error with these problems: only the sampling is random)."""
    rates = frame.groupby("problem_id")["correct"].mean()
    variance = (rates * (1 - rates) / (frame.groupby("problem_id").size() - 1)).sum() / len(rates) ** 2
    return float(rates.mean()), float(variance**0.5)


def assert_within(one: pd.DataFrame, other: pd.DataFrame) -> None:
    (a, error), (b, other_error) = accuracy(one), accuracy(other)
    assert abs(a - b) < 3 * (error**2 + other_error**2) ** 0.5 + 1e-9
    lengths = [frame["tokens"].astype(float) for frame in (one, other)]
    spread = sum(series.var() / len(series) for series in lengths) ** 0.5
    # ours has the end token, a text tokenised again has none
    assert abs(lengths[0].mean() - lengths[1].mean()) < 3 * spread + 1


def assert_greedy(config: Config, checkpoint: Path, name: str, one: pd.DataFrame, other: pd.DataFrame) -> None:
    """The texts are the same, or part where two tokens have the same log-probability."""
    pairs = one.merge(other, on="problem_id", suffixes=("", "_other"))
    different = pairs[pairs["response"].str.strip() != pairs["response_other"].str.strip()]
    assert len(pairs) == len(one) == len(other)
    for row in different.itertuples():
        gap = gap_at_first_difference(config, checkpoint, name, row)
        assert gap < TIE


def gap_at_first_difference(config: Config, checkpoint: Path, name: str, row: Any) -> float:
    """Difference of the log-probabilities of the two tokens at which two texts part, by the torch engine's model."""
    model, tokenizer = models.load(checkpoint, config, torch.device("cpu"))
    processor = models.load_processor(model, checkpoint, config)
    path = data_folder(config) / f"{name}.parquet"
    all_prompts = read_prompts(path, tokenizer, config.sampling.max_prompt_tokens, processor)
    prompt = next(p.row for p in all_prompts if p.id == row.problem_id)
    a, b = (
        [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        for text in (row.response, row.response_other)
    )
    at = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    ids = torch.tensor([[*prompt.tokens, *tokens[: at + 1]] for tokens in (a, b)])
    starts, lengths = torch.tensor([len(prompt.tokens)] * 2), torch.tensor([at + 1] * 2)
    with torch.no_grad():
        scored = models.score(model, ids, starts, at + 1, lengths=lengths, pictures=[prompt.images] * 2)
    return float((scored.logprobs[0, at] - scored.logprobs[1, at]).abs())
