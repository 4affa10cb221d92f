"""Differences over base models of one kind, and the figures beyond the paper, from runs with hand-worked numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import place, write_run, write_study

from analysis import figures, reading, results, style
from analysis.claims.measures import Measure, mean_of_bases, of_seeds
from analysis.statistics import Estimate
from analysis.study import StudyFile, load
from analysis.tables import comparison

SEEDS = (1, 2)
#: model -> (base.seed, base.iterations, problems of 10 that BAPO solves in each seed; GRPO solves five)
MODELS = {"tiny": (0, 50, (6, 8)), "tiny+base_2": (1, 50, (5, 5)), "tiny+weak": (0, 20, (1, 1))}
RATES = {"bapo": 1e-4, "bapo+fast": 2e-4, "grpo": 1e-4, "grpo+fast": 2e-4}


def config(model: str, method: str) -> dict[str, object]:
    seed, iterations, _ = MODELS[model]
    return {
        "task": {"name": "countdown", "title": "Countdown"},
        "data": {"seed": 0},
        "model": {"name": model, "title": model, "architecture": {"hidden_size": 8}},
        "base": {"seed": seed, "iterations": iterations},
        "train": {"learning_rate": RATES[method], "steps": 2},
        "method": {"algorithm": "grpo"} if method.startswith("grpo") else {"algorithm": "bapo", "c1": 0.25},
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bapo+fast solves one problem less than bapo and drifts twice as far; grpo+fast solves four of ten."""
    root = tmp_path_factory.mktemp("bases")
    for model, (_, _, counts) in MODELS.items():
        for seed, count in zip(SEEDS, counts, strict=True):
            does = {"grpo": (5, 0), "grpo+fast": (4, 0), "bapo": (count, 1), "bapo+fast": (count - 1, 2)}
            for method, (n, moved) in does.items():
                costs = {"rollouts": 100.0, "updates": 10.0, "forward_flops": 2e9, "backward_flops": 1e9}
                steps = [{"tv_x1": 0.1 * moved}, {"tv_x1": 0.3 * moved}]
                solved = {"a": [[int(i < n)] for i in range(10)]}
                write_run(place(root, method, seed, model=model), solved, costs, steps, config(model, method))
    return root


def study_of(root: Path, models: tuple[str, ...] = tuple(MODELS), methods: tuple[str, ...] = tuple(RATES)) -> StudyFile:
    cells = [(m, method, s) for m in models for method in methods for s in SEEDS]
    return load(write_study(root, cells, benchmarks=("a",), name="toys"))


def test_bases_of_one_kind_differ_in_their_seed_alone(root: Path) -> None:
    tiny, second, weak = (reading.kind_of_base(b) for b in study_of(root).blocks)
    assert tiny == second != weak


def test_rows_over_bases_by_hand(root: Path) -> None:
    """BAPO minus GRPO: 6 and 8 minus 5 of ten from one base, 5 and 5 minus 5 from the other: 20 and 0 points."""
    study = study_of(root)
    frame = comparison.compare(study)
    tables, rows = comparison.over_bases(study, {b: results.by_method(frame, b) for b in study.blocks})
    row = next(r for r in rows if (r["method"], r["benchmark"]) == ("bapo", "avg"))
    assert (row["base_1"], row["base_2"], row["difference"]) == pytest.approx((20, 0, 10))
    # sd sqrt(200), SE 10, t with one degree of freedom: 12.706; wider than what each base says of itself
    assert row["difference_high"] == pytest.approx(10 + 12.706 * 10, rel=1e-4)
    assert (row["bases"], row["seeds"], row["verdict"]) == (2, 2, "not significant")
    assert row["p"] == pytest.approx(0.5) and tables[0].header[:3] == ["Method", "Each base", "Avg minus reference"]


def test_the_ledger_takes_the_wider_interval() -> None:
    # 1, 3, 5: sd 2, SE 2 / sqrt(3), 2 degrees; each base by itself is sure to 0.1
    far = mean_of_bases([Measure(Estimate(x, 0.1, 9), "x", 2) for x in (1.0, 3.0, 5.0)])
    assert far.estimate == Estimate(3.0, pytest.approx(2 / 3**0.5), 2)
    assert far.bases == 3 and "bases" in far.varies
    of_runs = mean_of_bases([of_seeds([1.0, 3.0], "x"), of_seeds([1.01, 2.99], "x")])
    assert of_runs.estimate == Estimate(pytest.approx(2), pytest.approx((1 + 0.99) / 2), 1)
    # bases that agree by chance do not shrink what each of them says
    near = mean_of_bases([Measure(Estimate(1.0, 0.5, 9), "x", 2), Measure(Estimate(1.001, 0.7, 4), "x", 2)])
    assert near.estimate == Estimate(pytest.approx(1.0005), pytest.approx(0.6), 4)


def test_accuracy_against_drift(root: Path) -> None:
    with style.settings():
        _, frame = figures.function("drift")(study_of(root, ("tiny",)))
    rows = frame.set_index(["method", "seed"])
    # minus GRPO at the same learning rate: bapo 6 and 8 minus 5, bapo+fast 5 and 7 minus 4
    assert rows.loc["bapo", "difference"].tolist() == pytest.approx([10, 30])
    assert rows.loc["bapo+fast", "difference"].tolist() == pytest.approx([10, 30])
    assert rows["minus"].to_dict()[("bapo+fast", 1)] == "grpo+fast"
    assert rows.loc["bapo", "drift"].tolist() == pytest.approx([0.2, 0.2]) and set(frame["family"]) == {"bapo"}
    assert rows.loc[("bapo+fast", 1), "drift"] == pytest.approx(0.4)
    with style.settings():  # without GRPO at that rate, the reference itself
        _, frame = figures.function("drift")(study_of(root, ("tiny",), ("grpo", "bapo+fast")))
    assert frame["difference"].tolist() == pytest.approx([0, 20])
