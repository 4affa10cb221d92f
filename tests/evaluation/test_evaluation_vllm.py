"""Real vLLM on CPU cores, in this process and behind its own server, against the torch engine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from omegaconf import DictConfig
from support.vllm_cpu import make_world, needs_vllm

from bapo.engines.shared import models
from bapo.engines.shared.data import read_prompts
from bapo.engines.torch.base import train_base
from bapo.evaluation import backends, prompts, run
from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory
from bapo.gpucheck.world import PROMPTS
from bapo.tasks.job import data_folder, make_data

pytestmark = [pytest.mark.slow, needs_vllm]

#: a results folder with SmolLM2's data and base of scale=pocket_smoke
POCKET = os.environ.get("BAPO_POCKET_RESULTS")
#: seconds for a server to be ready, on a busy machine
LIMIT = 1500
#: the most by which the log-probabilities of two tokens may differ where one engine takes the one and one the other
TIE = 1e-3
BACKENDS = ("torch", "vllm", "server")


@pytest.fixture(scope="module", autouse=True)
def small_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GB
        patch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
        yield


@dataclass(frozen=True)
class World:
    """Settings whose data and base model exist; ``problems`` of ``benchmark`` are asked, with ``images`` each."""

    settings: list[str]
    benchmark: str
    problems: int
    backends: Sequence[str] = BACKENDS
    images: int = 0


def scratch(folder: Path) -> World:
    return World(make_world(folder), "cd34", PROMPTS)


def pocket(_: Path) -> World:
    settings = ["scale=pocket_smoke", "task=countdown", "device=cpu", f"paths.results={POCKET}"]
    return World(settings, "cd2", 4)


needs_pocket = pytest.mark.skipif(not POCKET, reason="BAPO_POCKET_RESULTS names no results of scale=pocket_smoke")


def diagrams(folder: Path) -> World:
    """A model that reads images, with heads of 32 (a server's completions take no images)."""
    text = {"hidden_size": 128, "intermediate_size": 256, "rope_parameters.mrope_section": "[4,6,6]"}
    settings = ["scale=smoke", "task=geometry", "device=cpu", "tracking=none", f"paths.results={folder / 'results'}"]
    settings += [f"model.architecture.text_config.{key}={value}" for key, value in text.items()]
    settings += ["model.architecture.vision_config.out_hidden_size=128", "data.split_sizes.diagrams_test=24"]
    config = compose_config(settings)
    make_data(config)
    train_base(config)
    return World(settings, "diagrams_test", 24, ("torch", "vllm"), images=1)


@pytest.mark.parametrize("make", [scratch, pytest.param(pocket, marks=needs_pocket), diagrams])
def test_vllm_and_its_server_agree_with_the_torch_engine(make: Callable[[Path], World], tmp_path: Path) -> None:
    world = make(tmp_path)
    config = compose_config(world.settings)
    checkpoint = base_directory(config) / "checkpoint"
    greedy, sampled = {}, {}
    for backend in world.backends:
        begun = time.monotonic()
        with models_of(world.settings, checkpoint, backend, world.images) as (model, composed):
            for found, samples, top_k in ((greedy, 1, 1), (sampled, 32, -1)):
                asked = changed(composed, world.benchmark, samples, top_k)
                loaded = run.load_benchmark(asked, world.benchmark, checkpoint)
                found[backend] = run.run_benchmark(model, loaded, limit=world.problems)[1]
        print(f"\n{checkpoint.parents[1].name} {backend}: {time.monotonic() - begun:.0f} s", end="")
    for backend in world.backends[1:]:
        assert_greedy(config, checkpoint, world.benchmark, greedy["torch"], greedy[backend])
        assert_within(sampled["torch"], sampled[backend])
    for backend, frame in sampled.items():
        mean, error = accuracy(frame)
        print(f"\n{backend}: pass@1 {mean:.3f} +- {error:.3f}, {frame['tokens'].mean():.2f} tokens", end="")
        assert len(frame) == world.problems * 32 and frame.groupby("problem_id")["response"].nunique().max() > 1
    assert accuracy(sampled["torch"])[0] > 0  # or nothing was compared


def changed(config: DictConfig, benchmark: str, samples: int, top_k: int) -> DictConfig:
    config = config.copy()
    config.evaluation.samples, config.evaluation.benchmarks, config.sampling.top_k = samples, [benchmark], top_k
    return config


@contextmanager
def models_of(settings: list[str], checkpoint: Path, backend: str, images: int) -> Iterator[tuple[Any, DictConfig]]:
    """(lm-eval's model, configuration) of a backend, which ends with the block."""
    more = [f"evaluation.backend={backend}", "evaluation.vllm.dtype=float32", "evaluation.vllm.max_num_seqs=64"]
    more += ["evaluation.vllm.gpu_memory_utilization=0.3"]
    config = compose_config([*settings, *more])
    rows = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    with served(checkpoint, rows) if backend == "server" else none() as url:
        config.evaluation.server.base_url = url
        backends.check(config)
        limits = prompts.check_all(config, checkpoint, [])
        model = backends.build(config, checkpoint, limits, lambda count: None, images)
        try:
            yield model, config
        finally:
            if backend == "vllm":
                model.model.llm_engine.engine_core.shutdown()


@contextmanager
def none() -> Iterator[None]:
    yield None


@contextmanager
def served(checkpoint: Path, rows: int) -> Iterator[str]:
    """The URL of ``vllm serve`` on the loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(checkpoint), "--dtype", "float32"]
    command += ["--enforce-eager", "--max-model-len", str(rows), "--max-num-seqs", "64"]
    host, port = address.split(":")
    process = subprocess.Popen([*command, "--host", host, "--port", port], start_new_session=True)
    try:
        deadline = time.monotonic() + LIMIT
        while not ready(f"http://{address}/health"):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(1)
        yield f"http://{address}/v1"
    finally:
        process.terminate()
        process.wait(timeout=120)


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


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
    # the server's count and ours have the end token, a text tokenised again has none
    assert abs(lengths[0].mean() - lengths[1].mean()) < 3 * spread + 1


def assert_greedy(config: DictConfig, checkpoint: Path, name: str, one: pd.DataFrame, other: pd.DataFrame) -> None:
    """The texts are the same, or part where two tokens have the same log-probability."""
    pairs = one.merge(other, on="problem_id", suffixes=("", "_other"))
    different = pairs[pairs["response"].str.strip() != pairs["response_other"].str.strip()]
    assert len(pairs) == len(one) == len(other)
    for row in different.itertuples():
        gap = gap_at_first_difference(config, checkpoint, name, row)
        print(f"\n{row.problem_id}: {row.response!r} and {row.response_other!r} part at a gap of {gap:.1e}", end="")
        assert gap < TIE
    print(f"\ngreedy: {len(pairs) - len(different)} of {len(pairs)} equal", end="")


def gap_at_first_difference(config: DictConfig, checkpoint: Path, name: str, row: Any) -> float:
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
