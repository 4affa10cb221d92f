"""Which checkpoint to report: the rules by hand, their bias in simulated runs, and the table from run directories."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.simulated import MODEL, write_simulated

from analysis.__main__ import main
from analysis.beyond import checkpoints as choice
from analysis.study import load
from bapo.errors import UserError

STEPS = (25, 50, 75)

# ------------------------------------------------------------------------------------------------ by hand


def test_the_best_is_the_latest_of_equal_ones() -> None:
    assert choice.best(np.array([[0.1, 0.3, 0.3], [0.5, 0.2, 0.1], [0.2, 0.2, 0.2]])).tolist() == [2, 0, 2]


def test_every_rule_by_hand() -> None:
    """One seed, three checkpoints, one benchmark of two problems: means 0.5, 0.6 and 0.4."""
    accuracy = np.array([[[0.9, 0.1], [0.4, 0.8], [0.5, 0.3]]])
    found = choice.measure({"a": accuracy}, np.array([[0.7, 0.2, 0.3]]), STEPS)
    tables = {rule: m.tables[0].tolist() for rule, m in found.items()}
    assert tables[choice.LAST] == [[0.5, 0.3]]
    assert tables[choice.VALIDATION] == [[0.9, 0.1]]  # validation prefers the first
    assert tables[choice.TEST] == [[0.4, 0.8]]
    # the first problem chooses step 25 (0.9), where the second has 0.1; the second step 50 (0.8): the first has 0.4
    assert tables[choice.HALVES] == [pytest.approx([0.4, 0.1])]
    assert [m.steps for m in found.values()] == [(75,), (25,), (50,), ()]
    gains = {rule: round(m.gain.mean, 9) for rule, m in found.items()}
    assert gains == {choice.LAST: 0, choice.VALIDATION: 0.1, choice.TEST: 0.2, choice.HALVES: -0.15}


def test_each_seed_chooses_for_itself_and_benchmarks_count_alike() -> None:
    """Two seeds, two checkpoints. Benchmark b has three problems, but its mean counts like that of a's two."""
    a = np.array([[[0.6, 0.6], [0.4, 0.4]], [[0.1, 0.1], [0.2, 0.2]]])
    b = np.array([[[0.1, 0.1, 0.1], [0.25, 0.25, 0.25]], [[0.5, 0.5, 0.5], [0.3, 0.3, 0.3]]])
    found = choice.measure({"a": a, "b": b}, None, (10, 20))
    assert list(found) == [choice.LAST, choice.TEST, choice.HALVES]  # no validation problems, no such rule
    # averages: 0.35 and 0.325 of the first seed (over all five problems 0.30 and 0.31), 0.30 and 0.25 of the second
    assert found[choice.TEST].steps == (10, 10)
    assert found[choice.TEST].accuracy.mean == pytest.approx((0.35 + 0.30) / 2)
    assert found[choice.TEST].gain.mean == pytest.approx(0.0375)
    assert found[choice.TEST].gain.seed_means == pytest.approx((0.025, 0.05))
    only = choice.measure({"b": b}, None, (10, 20))
    assert only[choice.TEST].steps == (20, 10)


# ------------------------------------------------------------------------------------------------ bias


def simulated(better: float, generator: np.random.Generator, problems: int = 60, samples: int = 8) -> np.ndarray:
    """[1, 6, n]: six checkpoints that solve each problem alike, but the third by ``better`` more often."""
    chance = np.tile(generator.beta(1, 2, problems) * (1 - better), (6, 1))
    chance[2] += better
    return generator.binomial(samples, chance)[None] / samples


@pytest.mark.parametrize("better", [0.0, 0.2])
def test_the_best_on_test_gains_by_luck_and_the_halves_do_not(better: float) -> None:
    generator = np.random.default_rng(5)
    rules = [choice.measure({"a": simulated(better, generator)}, None, range(1, 7), splits=10) for _ in range(150)]
    test, halves = (np.array([found[rule].gain.mean for found in rules]) for rule in (choice.TEST, choice.HALVES))
    error = halves.std() / len(halves) ** 0.5
    assert halves.mean() == pytest.approx(better, abs=0.01) and (test >= 0).all()
    if not better:
        assert abs(halves.mean()) < 3 * error < 0.006
        # p ~ Beta(1, 2): E p (1 - p) = 1/6, so a checkpoint's mean over 60 x 8 samples has sd 0.0186; the expected
        # highest of 6 standard normal numbers is 1.267, that of any one of them 0
        assert test.mean() == pytest.approx(1.267 * 0.0186, abs=0.005)


# ------------------------------------------------------------------------------------------------ tables


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = {("countdown", MODEL): ("grpo", "repo", "bapo")}
    return write_simulated(tmp_path_factory.mktemp("study"), "table1", parts, curves=("grpo", "bapo"))


@pytest.fixture(scope="module")
def written(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    assert main(["checkpoint_choice", "--study", str(file), "--out", str(out)]) == 0
    return out


def test_the_csv_against_the_runs(file: Path, written: Path) -> None:
    frame = pd.read_csv(written / "checkpoint_choice.csv")
    assert list(dict.fromkeys(frame["method"])) == ["grpo", "bapo"]  # RePO has no curve
    assert set(frame["benchmark"]) == {"avg", "cd34", "cd4"} and len(frame) == 2 * 3 * 4
    run = file.parents[1] / "countdown" / MODEL / "bapo"
    means: dict[str, list[pd.Series]] = {"cd34": [], "cd4": [], "probe": []}
    for seed in (1, 2):
        for name, found in means.items():
            table = pd.read_parquet(run / f"seed{seed}" / "curve" / f"{name}.parquet")
            found.append(100 * table[table["step"] > 0].groupby("step")["correct"].mean() / 8)
    own = frame[frame["method"] == "bapo"].set_index(["benchmark", "rule"])
    last = np.mean([m.iloc[-1] for m in means["cd34"]])
    assert own.loc[("cd34", "last"), "accuracy"] == pytest.approx(last, abs=1e-3)
    assert own.loc[("cd34", "best_on_test"), "accuracy"] == pytest.approx(
        np.mean([m.max() for m in means["cd34"]]), abs=1e-3
    )
    validated = [max(m.index[::-1], key=lambda s: m[s]) for m in means["probe"]]  # the first of equal ones: the latest
    assert own.loc[("avg", "best_on_validation"), "steps"] == " ".join(map(str, validated))
    at = np.mean([(a[s] + b[s]) / 2 for s, a, b in zip(validated, means["cd34"], means["cd4"], strict=True)])
    assert own.loc[("avg", "best_on_validation"), "accuracy"] == pytest.approx(at, abs=1e-3)
    assert (frame.loc[frame["rule"] == "last", "gain"] == 0).all()
    assert (frame.loc[frame["rule"] == "best_on_test", "gain"] >= 0).all()
    assert (own["checkpoints"] == 4).all() and (own["samples"] == 8).all() and (own["seeds"] == 2).all()


def test_without_validation_problems_there_is_a_dash(file: Path, tmp_path: Path) -> None:
    study = write_simulated(tmp_path, "table1", {("countdown", MODEL): ("grpo",)}, (1,), curves=("grpo",))
    summary = next(tmp_path.glob("**/curve/summary.json"))
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "validation": None}))
    choice.write(load(study), tmp_path / "out")
    text = (tmp_path / "out" / "checkpoint_choice.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| +GRPO"))
    assert [cell.strip() for cell in row.split("|")[3:5]] == ["\u2013", "\u2013"]
    assert "no problems were kept out of training for it" in text


def test_what_is_missing_is_named_with_the_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    content = json.loads(file.read_text())
    file_without = tmp_path / "study.json"
    file_without.write_text(json.dumps({**content, "name": "table1", "curves": ["grpo", "repo"]}))
    assert main(["checkpoint_choice", "--study", str(file_without), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "repo/seed1/curve: not finished" in said and "`snakemake --cores all runs_table1`" in said
    file_without.write_text(json.dumps({**content, "curves": []}))
    with pytest.raises(UserError, match="'curves'"):
        choice.write(load(file_without), tmp_path)
