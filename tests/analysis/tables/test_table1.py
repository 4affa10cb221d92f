"""Table 1 from simulated runs: numbers, order, marks, the paper's columns, and what a user is told."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.paths import needs_shared
from support.runs import place, rewrite, write_run, write_study
from support.scripted import fresh, group
from support.simulated import MODEL, write_simulated

from analysis import paper, statistics
from analysis.__main__ import main
from analysis.reading import Outcomes
from analysis.results import Comparison, Result, compare, marked
from analysis.statistics import t_quantile
from analysis.study import load
from bapo.engines.shared.records import group_rows
from bapo.errors import UserError
from bapo.methods.base import Batch, Method
from bapo.store.files import SUMMARY, read_json, read_table, write_json

PARTS = {("countdown", MODEL): ("grpo", "bapo")}


@pytest.fixture(scope="module")
def written(simulated: dict[str, Path]) -> Path:
    out = simulated["table1"].parents[1] / "tables"
    assert main(["table1", "--study", str(simulated["table1"]), "--out", str(out)]) == 0
    return out


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A study that a test may break."""
    return write_simulated(tmp_path, "table1", PARTS)


def run_of(study: Path, method: str, seed: int, task: str = "countdown") -> Path:
    cells = read_json(study)["cells"]
    return next(Path(c["run"]) for c in cells if (c["task"], c["method"], c["seed"]) == (task, method, seed))


def made(study: Path) -> tuple[str, pd.DataFrame]:
    """(table1.md, table1.csv by method and benchmark)"""
    out = study.parent / "made"
    assert main(["table1", "--study", str(study), "--out", str(out)]) == 0
    frame = pd.read_csv(out / "table1.csv").set_index(["method", "benchmark"])
    return (out / "table1.md").read_text(encoding="utf-8"), frame


def test_numbers_are_those_of_the_evaluations(simulated: dict[str, Path], written: Path) -> None:
    every = pd.read_csv(written / "table1.csv")
    frame = every[every["task"] == "countdown"].set_index(["method", "benchmark"])
    runs = [run_of(simulated["table1"], "bapo", seed) for seed in (1, 2)]
    tables = [read_table(run / "eval" / "cd4.parquet") for run in runs]
    bits = np.array([t.pivot(index="problem_id", columns="sample", values="correct").to_numpy(float) for t in tables])
    row, e = frame.loc[("bapo", "cd4")], statistics.clustered(bits.mean(axis=(0, 2)))
    shown = row[["mean", "se", "low", "high"]].tolist()
    assert shown == pytest.approx([100 * x for x in (bits.mean(), e.se, e.low, e.high)], rel=1e-5)
    each = bits.mean(axis=(1, 2))
    assert row[["seed_1", "seed_2"]].tolist() == pytest.approx(list(100 * each), rel=1e-5)
    assert row["seed_sd"] == pytest.approx(100 * np.std(each, ddof=1), rel=1e-5)
    assert row["pass@32"] == pytest.approx(100 * (bits.max(axis=2) > 0).mean(), rel=1e-5)  # K = 32
    average, other = frame.loc[("bapo", "avg")], frame.loc[("bapo", "cd34")]
    assert average["mean"] == pytest.approx((row["mean"] + other["mean"]) / 2, rel=1e-5)
    assert average["se"] == pytest.approx(np.hypot(row["se"], other["se"]) / 2, rel=1e-4)
    totals = [read_json(run / "summary.json")["totals"]["rollouts"] for run in runs]
    assert row["rollouts"] == pytest.approx(np.mean(totals), rel=1e-5)
    assert np.isnan(frame.loc[("base", "cd34"), "rollouts"])


def test_what_a_method_replays_is_counted_in_its_groups(small: Path) -> None:
    """12 steps of two fresh groups of 8 each: BAPO's seed 1 adds a stored group of 4 at two steps, seed 2 at one."""
    for seed, stored_at in ((1, (2, 4)), (2, (3,))):
        rows = []
        for step in range(1, 13):
            kept = fresh(step, [4, 4, 0])
            stored = [group("old", 2, 1, size=4)] if step in stored_at else []
            rows += group_rows(step, Batch(kept[:2] + Method.replayed(stored), [(kept[2], "no signal in X1")]))
        rewrite(run_of(small, "bapo", seed), groups=pd.DataFrame(rows))
    text, frame = made(small)
    row = frame.loc[("bapo", "avg")]
    assert row.replayed == pytest.approx(100 * (8 / (192 + 8) + 4 / (192 + 4)) / 2, rel=1e-5)
    assert row.replaying_steps == 1.5 and frame.loc[("grpo", "avg"), "replayed"] == 0
    assert "BAPO (Ours) 3.0% (2 of 12 steps)." in text


def outcomes(accuracy: np.ndarray) -> dict[str, Outcomes]:
    return {"x": Outcomes((), accuracy[..., None], accuracy[..., None])}  # one sample a problem


def result(method: str, seeds: np.ndarray) -> Result:
    return Result(method, method, "", tuple(range(len(seeds))), outcomes(seeds), {})


def accuracies(mean: float, seed: int, n: int = 200) -> np.ndarray:
    random = np.random.default_rng(seed)
    hard = np.random.default_rng(0).normal(0, 0.2, (1, n))  # the same problems for every method
    return mean + hard + random.normal(0, 0.005, (3, 1)) + random.normal(0, 0.05, (3, n))


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ((0.3, 0.4, 0.5), {"c": "bold", "b": "underline"}),
        ((0.3, 0.301, 0.5), {"c": "bold"}),  # no clear second
        ((0.3, 0.5, 0.501), {}),  # no clear best, so no second either
    ],
)
def test_marks_only_where_the_difference_is_real(means: tuple[float, ...], expected: dict[str, str]) -> None:
    rows = [result(m, accuracies(mean, i + 1)) for i, (m, mean) in enumerate(zip("abc", means, strict=True))]

    def marks(found: dict[tuple[str, str], Comparison]) -> dict[str, str]:
        return marked({r.method: r.mean("x").mean for r in rows}, [pair for pair, c in found.items() if c.real])

    found = compare(rows, "x")
    assert marks(found) == expected
    raw = [c.difference.tested.p for c in found.values()]  # Holm counts every pair of the column
    assert len(found) == 3 and [c.adjusted for c in found.values()] == pytest.approx(statistics.holm(raw).tolist())
    # one training seed is one model: these models may differ, and nothing is said of methods
    single = compare([replace(row, seeds=(0,), outcomes=outcomes(row.column("x")[0][:1])) for row in rows], "x")
    assert not any(c.real for c in single.values()) and marks(single) == {}
    base = Result("base", "base", "", (), outcomes(accuracies(0.1, 9)[:1]), {})  # one given model
    assert compare([base, *rows], "x")["c", "base"].real


def test_paper_numbers_are_in_its_text() -> None:
    lines = needs_shared("paper", "buffer_matters.txt").read_text().split("Table 1: ")[1].split("5.2 MECHANISM")[0]
    checked = 0
    for model in paper.table1().values():
        for row in model.rows:
            columns, texts = [c for c in model.columns if c != "type"], row.model_extra or {}
            printed = [f"<u>{texts[c]}</u>" if c in row.underlined else str(texts[c]) for c in columns]
            assert "\t".join(printed) in lines, (model.title, row.method)
            checked += len(columns)
    assert checked == 8 * 7 + 2 * (6 + 4) * 3


def test_paper_columns_by_model() -> None:
    assert paper.match("countdown", "qwen2-112k").title == "Qwen2.5 Math 1.5B"
    assert paper.match("countdown", "qwen2.5-math-7b").value("grpo", "cd34") == 70.75
    assert paper.match("countdown", "anything", "qwen2.5-math-7b").printed("dapo", "avg") == "68.09"
    assert paper.match("countdown", "qwen2-112k").printed("repo", "cd4") is None
    assert paper.match("mathematics", "x").value("dapo", "rollouts") == 1_921_000
    assert paper.match("no such task", "x") is None


def failing(study: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command prints; nothing else, and nothing written."""
    assert main(["table1", "--study", str(study), "--out", str(study.parent / "tables")]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and not (study.parent / "tables").exists()
    return printed.err


def rewritten(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    """Return what puts another table, which is intact, into a run."""
    return lambda run: rewrite(run / "eval", cd4=change(read_table(run / "eval" / "cd4.parquet")))


def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda run: (path := run / "eval" / "cd34.parquet").write_bytes(change(path.read_bytes()))


AGAIN = "`bapo run runs_table1 scale=smoke`"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (shutil.rmtree, AGAIN),
        (lambda run: (run / "eval" / "summary.json").unlink(), AGAIN),
        (lambda run: (run / "eval" / "cd34.parquet").unlink(), ""),
        (damaged(lambda content: content[:100]), ""),
        (damaged(lambda content: content[:60] + bytes([content[60] ^ 1]) + content[61:]), ""),
        (rewritten(lambda f: f.iloc[:-1]), "eval/cd4.parquet"),
        (rewritten(lambda f: f.assign(sample=f["sample"].replace(3, 2))), "eval/cd4.parquet"),
        (rewritten(lambda f: f.assign(problem_id=f["problem_id"].str.replace("p00", "p99"))), ""),
    ],
)
def test_a_broken_run_is_named_with_its_command(
    small: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], words: str
) -> None:
    write_json(small, read_json(small) | {"config": ["scale=smoke"]})
    run = run_of(small, "grpo", 1)
    damage(run)
    said = failing(small, capsys)
    assert str(run) in said and words in said


def test_a_study_file_without_a_field_or_with_a_seed_twice(small: Path) -> None:
    content = read_json(small)
    cells = content["cells"]
    broken = {"cells": {"cells": []}, "benchmarks": {"benchmarks": {}}, "seed twice": {"cells": [*cells, cells[0]]}}
    for words, change in broken.items():
        write_json(small, content | change)
        with pytest.raises(UserError, match=words) as caught:
            load(small)
        assert str(small) in str(caught.value)


def test_a_copied_run_is_no_second_seed(small: Path) -> None:
    first, second = (run_of(small, "grpo", seed) / SUMMARY for seed in (1, 2))
    write_json(second, read_json(first))
    with pytest.raises(UserError, match="seed=2") as caught:
        load(small)
    assert {str(first.parent), str(second.parent)} <= set(re.split("[ ;:]+", str(caught.value)))


def test_one_seed_and_no_base(tmp_path: Path) -> None:
    text, frame = made(write_simulated(tmp_path, "table1", PARTS, (7,), bases=[]))
    assert "(sd" not in text and "minus base" not in text
    assert frame.se_problems_and_seeds.isna().all() and frame.se.notna().all()


@pytest.mark.parametrize("methods", [("grpo",), ("grpo", "bapo")])
def test_the_file_of_differences_has_its_columns_without_a_pair(tmp_path: Path, methods: tuple[str, ...]) -> None:
    for method in methods:
        write_run(place(tmp_path, method, 1), {"a": [[0, 1], [1, 1]], "b": [[0, 1], [1, 0]]})
    made(write_study(tmp_path, [("tiny", method, 1) for method in methods]))
    found = pd.read_csv(tmp_path / "made" / "table1_differences.csv")
    assert len(found) == 3 * (len(methods) - 1)  # two benchmarks and their mean
    assert {"a", "b", "difference", "verdict", "low_problems", "p_problems_and_seeds", "real"} <= {*found}


NAMES = ("cd34", "cd4")


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Countdown: the base, two seeds of GRPO and BAPO; two benchmarks of four problems with two samples."""
    root = tmp_path_factory.mktemp("forest")
    base = {"task": "countdown", "model": "tiny", "run": str(write_run(root / "base", {n: _bits(2) for n in NAMES}))}
    # correct answers of eight on each benchmark
    right = {("grpo", 1): (4, 2), ("grpo", 2): (4, 4), ("bapo", 1): (6, 4), ("bapo", 2): (6, 8)}
    cells = []
    for (method, seed), counts in right.items():
        bits = {name: _bits(count) for name, count in zip(NAMES, counts, strict=True)}
        write_run(place(root, method, seed), bits)
        cells.append(("tiny", method, seed))
    study = write_study(root, cells, NAMES, bases=[base])
    assert main(["table1", "--study", str(study), "--out", str(root / "tables")]) == 0
    return root / "tables"


def _bits(correct: int) -> list[list[int]]:
    return [[int(2 * i < correct), int(2 * i + 1 < correct)] for i in range(4)]


def test_the_numbers_by_hand(by_hand: Path) -> None:
    """Base: 4 of 16 right; GRPO: 4 + 2 + 4 + 4 of 32; BAPO: 6 + 4 + 6 + 8 of 32. The paper: 60.25 - 49.41."""
    (drawn,) = pd.read_csv(by_hand / "table1_forest.csv").to_dict("records")
    assert (drawn["points"], drawn["paper"], drawn["runs"]) == (pytest.approx(31.25), pytest.approx(10.84), 2)
    pairs = pd.read_csv(by_hand / "table1_differences.csv").set_index(["a", "b", "benchmark"])
    pair = pairs.loc[("grpo", "bapo", "avg")]
    ends = -pair.high_problems_and_seeds, -pair.low_problems_and_seeds
    assert (drawn["low"], drawn["high"]) == pytest.approx(ends, rel=1e-5) and ends[0] < 31.25 < ends[1]
    bapo = pd.read_csv(by_hand / "table1.csv").set_index(["method", "benchmark"]).loc[("bapo", "avg")]
    assert bapo.share == pytest.approx(500 / 3, rel=1e-5) and bapo.paper_share == pytest.approx(1084 / 48.66, rel=1e-4)
    # delta method, d - 5/3 g over the gain 3/16. Means over seeds: 0 -5/3 1 0 on cd34 and 0 -1/3 1/2 1/2 on cd4, so the
    # variances are 11/36 and 1/24, the error sqrt(25/288); the seeds (1/24 and -1/24) add nothing to it
    half = t_quantile(3.797) * 100 * 16 / 3 * (25 / 288) ** 0.5
    assert (bapo.share_low, bapo.share_high) == pytest.approx((500 / 3 - half, 500 / 3 + half), rel=1e-3)
