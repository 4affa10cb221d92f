"""vLLM's replicas, with the stand-in for vLLM in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.paths import ROOT
from support.standin_vllm import installed

from bapo.errors import JobFailed, UserError
from bapo.evaluation import parallel
from bapo.gpu import devices


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with installed(tmp_path, monkeypatch) as module:
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
        yield module


def test_a_problems_repeats_stay_together_and_shares_are_even() -> None:
    prompts = [[n] for n in range(5) for _ in range(4)]
    shares = parallel.deal(prompts, 2)
    assert sorted(place for share in shares for place in share) == list(range(20))
    owners = [{n // 4 for n in share} for share in shares]
    assert not owners[0] & owners[1] and sorted(map(len, shares)) == [8, 12]
    assert parallel.deal([], 3) == [[], [], []]


def test_replicas_answer_in_order_with_seeds_of_their_own(vllm: Any) -> None:
    prompts = [vllm.TokensPrompt(prompt_token_ids=[n]) for n in range(4) for _ in range(8)]
    parameters = [vllm.SamplingParams(max_tokens=8) for _ in prompts]
    replicas = parallel.Replicas({"seed": 7}, [None, None])
    try:
        found = replicas.generate(prompts, parameters)
        again = replicas.generate(prompts[:8], vllm.SamplingParams(max_tokens=8))
    finally:
        replicas.close()
    engines = []
    for seed, share in enumerate(parallel.deal(prompts, 2), start=7):
        engine = vllm.LLM(seed=seed)
        engines.append(engine)
        expected = parallel.answers(engine, [prompts[i] for i in share], [parameters[i] for i in share])
        assert [found[i].text for i in share] == [text.text for text in expected]
    texts = [answer.outputs[0].text for answer in found]
    halves = [[texts[i] for i in share] for share in parallel.deal(prompts, 2)]
    assert halves[0] != halves[1] and len(set(texts)) > 20
    assert len(again) == 8  # the same engines, further along their streams
    deadline = time.monotonic() + 60
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not multiprocessing.active_children()


def evaluate_in_a_process(prompts: list[Any]) -> int:
    """As a curve evaluates a checkpoint: nobody closes the replicas."""
    from vllm import SamplingParams

    return len(parallel.Replicas({"seed": 7}, [None]).generate(prompts, SamplingParams(max_tokens=8)))


def test_replicas_end_with_a_process_that_leaves_them(vllm: Any) -> None:
    prompts = [vllm.TokensPrompt(prompt_token_ids=[1])]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(evaluate_in_a_process, prompts).result(timeout=300) == 1
    # the pool waits for its worker, and that one for its replicas


def test_a_replica_that_fails_is_named_with_its_error(vllm: Any) -> None:
    replicas = parallel.Replicas({"no_seed": 0, "seed": 1}, ["3"])
    broken = [vllm.TokensPrompt(prompt_token_ids=[1])]
    with pytest.raises(JobFailed, match=r"replica 0 on GPU 3: \w+Error"):
        replicas.generate(broken, "no parameters")


def test_a_replica_that_dies_is_named_and_ends_the_others(vllm: Any) -> None:
    replicas = parallel.Replicas({"seed": 1}, ["4", "5"])
    prompts, parameters = [vllm.TokensPrompt(prompt_token_ids=[n]) for n in range(2)], vllm.SamplingParams(max_tokens=8)
    replicas.generate(prompts, parameters)
    processes = list(replicas.processes)
    processes[1].kill()
    processes[1].join()
    with pytest.raises(JobFailed, match="replica 1 on GPU 5: its process ended without a word"):
        replicas.generate(prompts, parameters)
    processes[0].join(timeout=60)
    assert not processes[0].is_alive()


def test_the_first_error_ends_a_replica_at_work(vllm: Any, tmp_path: Path) -> None:
    """The second replica's error comes while the first one works for ten minutes."""
    replicas = parallel.Replicas({"seed": 1}, ["4", "5"])
    prompts = [vllm.TokensPrompt(prompt_token_ids=[n]) for n in range(2)]
    replicas.generate(prompts, vllm.SamplingParams(max_tokens=8))
    through = tmp_path / "through"
    with pytest.raises(JobFailed, match="replica 1 on GPU 5: KeyError"):
        replicas.generate(prompts, [Slow(through), Broken()])
    assert not through.exists()


class Slow:
    """Sampling parameters that keep the engine at work, and then write a file."""

    def __init__(self, through: Path) -> None:
        self.through = through

    @property
    def keys(self) -> dict[str, Any]:
        time.sleep(600)
        self.through.touch()
        return {}


class Broken:
    """Sampling parameters that the engine cannot read."""

    @property
    def keys(self) -> dict[str, Any]:
        raise KeyError("seed")


LEFT = """
import sys, time
from bapo.evaluation import parallel
from vllm import SamplingParams

if __name__ == "__main__":
    replicas = parallel.Replicas({"seed": 7}, [None])
    replicas.generate([{"prompt_token_ids": [1]}], SamplingParams(max_tokens=8))
    print(replicas.processes[0].pid, flush=True)
    time.sleep(600)
"""


def test_replicas_end_with_a_process_that_is_killed(vllm: Any, tmp_path: Path) -> None:
    (tmp_path / "left.py").write_text(LEFT)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])}
    with subprocess.Popen([sys.executable, tmp_path / "left.py"], stdout=subprocess.PIPE, env=variables) as process:
        replica = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{replica}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{replica}").exists()


def test_gpus_are_divided_among_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(devices.VISIBLE, "2,3,5,7")
    assert parallel.groups_of_gpus(2, 2) == ["2,3", "5,7"]
    assert parallel.groups_of_gpus(3, 1) == ["2", "3", "5"]
    with pytest.raises(UserError, match="8 GPUs asked for, 4 here"):
        parallel.groups_of_gpus(8, 1)


def test_the_speed_is_told() -> None:
    found = [parallel.Text("a", 300), parallel.Text("b", 100)]
    assert parallel.report(found, 2.0, 2, 4) == (
        "vllm: 2 responses of 200 tokens in 2 s: 200 tokens/s, 50 a GPU (2 replicas)"
    )
    answer = SimpleNamespace(outputs=[SimpleNamespace(text="a", token_ids=[1, 2])])
    engine = SimpleNamespace(generate=lambda prompts, sampling_params, use_tqdm: [answer] * len(prompts))
    assert parallel.answers(engine, ["p"], None) == [parallel.Text("a", 2)]
