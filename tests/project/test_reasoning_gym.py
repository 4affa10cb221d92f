"""Tasks of reasoning-gym: the example from data to evaluation, splits, scores and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from support.configs import changed, forget

from bapo import seeds, tasks
from bapo.__main__ import main
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.graders import pool
from bapo.store.files import Json, read_json
from bapo.tasks import reasoning_gym
from bapo.tasks.files import read_problems
from bapo.tasks.job import make_data

pytestmark = pytest.mark.skipif(not find_spec("reasoning_gym"), reason="reasoning-gym is not installed (extra `gym`)")

SMOKE = ["scale=smoke", "task=chain_sum", "method=grpo"]
TEN = {"min_terms": 1, "max_terms": 1, "max_digits": 1}  # arguments of ten questions
SPLITS = ("train", "probe", "gym_test")


@pytest.fixture
def project(example_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pool.shared(reasoning_gym.__name__), "wall_seconds", 60.0)  # a busy machine changes no verdict
    return example_of("reasoning-gym")


def generated(*overrides: str) -> object:
    forget()
    return compose_config([*SMOKE, *overrides])


@pytest.mark.slow
def test_the_examples_task_is_trained_and_evaluated_and_learns(project: Path) -> None:
    """The base solves some problems and not all; sampled responses are graded, and the probe's accuracy rises."""
    import pandas as pd

    for job in ("data", "base", "train", "evaluate"):
        assert main([job, *SMOKE, "train.steps=30", "train.learning_rate=1.0e-3"]) == 0
    run = project / "results/smoke/chain_sum/qwen2-112k/grpo/seed1"
    rewards = pd.read_parquet(run / "steps.parquet")["reward_mean"]
    assert 0 < rewards.head(5).mean() < rewards.tail(5).mean()
    assert set(read_json(run / "eval/summary.json")["benchmarks"]) == {"gym_test"}


def test_no_question_is_in_two_splits_and_the_same_seed_draws_the_same(project: Path) -> None:
    summary = make_data(generated())
    assert summary["golds"] == {"gym_test": 40}
    folder = project / "results/smoke/chain_sum/data"
    problems = {split: read_problems(folder / f"{split}.parquet") for split in SPLITS}
    documents, counts = tasks.get("chain_sum").documents(generated("data.split_sizes.base=1000").data, base_rng())
    asked = {split: {p.prompt for p in those} for split, those in problems.items()}
    asked["base"] = {d.prompt for d in documents}
    assert {split: len(asked[split]) for split in SPLITS} == {"train": 120, "probe": 40, "gym_test": 40}
    assert sum(map(len, asked.values())) == len(set().union(*asked.values()))
    assert counts["documents"] == 1000
    before = (folder / "train.parquet").read_bytes()
    (folder / "summary.json").unlink()
    assert make_data(generated()) == summary and (folder / "train.parquet").read_bytes() == before
    make_data(generated("data.seed=1"))
    assert {p.prompt for p in read_problems(folder / "train.parquet")} != asked["train"]


def base_rng() -> np.random.Generator:
    return seeds.generator(0, "chain_sum", "base")


@pytest.mark.parametrize(
    ("prompt", "response", "right", "parsed"),
    [
        ("plain", " {} ", True, True),
        ("plain", "<think>0</think>{}", True, True),
        ("plain", "It is {}", False, True),  # the library's score is the share of the text that is the answer
        ("plain", "", False, False),
        ("tag", "so <answer>{}</answer>", True, True),
        ("tag", "<answer> {} </answer>", True, True),
        ("tag", "{}", False, False),
    ],
)
def test_only_a_full_score_is_right(project: Path, prompt: str, response: str, right: bool, parsed: bool) -> None:
    task, data = tasks.get("chain_sum"), generated(f"data.prompt={prompt}").data
    (problem, *_), _ = task.problems(data, "gym_test", base_rng())
    assert ("<answer>" in problem.prompt) == (prompt == "tag")
    gold = json.loads(problem.ground_truth)["entry"]["answer"]
    assert task.verify(response.format(gold), problem.ground_truth)[:2] == (right, parsed)


@pytest.mark.parametrize("dataset", ["word_sorting", "mini_sudoku", "family_relationships", "acre", "graph_color"])
def test_other_kinds_of_answers(project: Path, dataset: str) -> None:
    """Lists, grids, words; for graph_color the library knows no answer, and checks the one that is given."""
    sizes = {"train": 3, "probe": 2, "gym_test": 2}
    summary = make_data(changed(generated(), data__generator={"dataset": dataset}, data__split_sizes=sizes))
    assert summary["golds"] == {"gym_test": 0 if dataset == "graph_color" else 2}
    truth = read_problems(project / "results/smoke/chain_sum/data/train.parquet")[0].ground_truth
    assert not tasks.get("chain_sum").verify("nothing", truth).correct


def test_a_dataset_without_answers_is_no_text_for_a_base_model(project: Path) -> None:
    data = changed(generated("data.split_sizes.base=10"), data__generator={"dataset": "graph_color"}).data
    with pytest.raises(UserError, match=r"data\.generator\.dataset"):
        tasks.get("chain_sum").documents(data, base_rng())


@pytest.mark.parametrize(
    ("generator", "named"),
    [
        ({"dataset": "no_such"}, r"data\.generator\.dataset=no_such"),
        ({"dataset": "chain_sum", "arguments": {"min_terms": 0}}, r"data\.generator\.dataset=chain_sum.*min_terms"),
        ({"dataset": "chain_sum", "arguments": {"terms": 3}}, r"data\.generator\.dataset=chain_sum.*'terms'"),
        ({"dataset": "chain_sum", "size": 3}, r"data\.generator\.size"),
        ({"dataset": "chain_sum", "arguments": TEN}, r"data\.split_sizes\.train"),
        ({"dataset": "number_sorting"}, r"split gym_test: row 0 .*does not accept"),  # its scorer needs eval
    ],
)
def test_what_cannot_be_generated_or_graded_is_refused(project: Path, generator: Json, named: str) -> None:
    with pytest.raises(UserError, match=named):
        make_data(changed(generated(), data__generator=generator))


def test_an_answer_that_is_a_program_is_not_run(project: Path) -> None:
    """Polynomials are scored by sympy's parser, which evaluates the text."""
    import reasoning_gym as library

    entry = library.create_dataset("polynomial_multiplication", size=1, seed=0)[0]
    told = {"dataset": "polynomial_multiplication", "arguments": {}, "place": "all", "entry": entry}
    trace = project / "trace"
    verdict = tasks.get("chain_sum").verify(f"__import__('pathlib').Path({str(trace)!r}).touch()", json.dumps(told))
    assert not verdict.correct and not trace.exists()
