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
from support.simulated import ALL_OF_TABLE1, METHODS, MODEL, write_simulated

from analysis import paper, statistics
from analysis.__main__ import main
from analysis.results import Result, compare, marks
from analysis.study import load
from bapo.engines.shared.records import group_rows
from bapo.errors import UserError
from bapo.experiments.settings import Settings, read_settings
from bapo.methods.base import Batch, Method
from bapo.store.files import read_json, read_table, write_json

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


def rows_of(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def run_of(study: Path, method: str, seed: int, task: str = "countdown") -> Path:
    cells = read_json(study)["cells"]
    return next(Path(c["run"]) for c in cells if (c["task"], c["method"], c["seed"]) == (task, method, seed))


def made(study: Path) -> tuple[str, pd.DataFrame]:
    """(table1.md, table1.csv by method and benchmark)"""
    out = study.parent / "made"
    assert main(["table1", "--study", str(study), "--out", str(out)]) == 0
    frame = pd.read_csv(out / "table1.csv").set_index(["method", "benchmark"])
    return (out / "table1.md").read_text(encoding="utf-8"), frame


# ------------------------------------------------------------------------------------------------ rows and numbers


def test_rows_are_in_the_papers_order_with_the_papers_numbers_below(written: Path) -> None:
    part_a, part_b = (written / "table1.md").read_text().split("## (b)")
    _, _, *rows = rows_of(part_a.split("## (a)")[1])
    assert [row[0] for row in rows[:4]] == [
        "**Qwen2-112k**",
        "*paper: DeepSeek R1 Distill Qwen 1.5B*",
        "+GRPO",
        "*paper*",
    ]
    assert rows[3][1:] == ["*67.47*", "*30.73*", "*51.58*", "\u2013", "*677k*", "*on*"]
    _, _, *rows = rows_of(part_b)
    ours = [row[0] for row in rows if not row[0].startswith("*paper")]
    assert ours == ["**Qwen2-112k**", *(METHODS[m][0] for m in ALL_OF_TABLE1)]
    names = [row[0] for row in rows]
    assert names[names.index("+RePO") + 1] != "*paper*"  # the paper has it for mathematics only


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


def test_sentences_have_the_numbers_of_the_tables(small: Path) -> None:
    text, values = made(small)
    frame = pd.read_csv(small.parent / "made" / "table1_differences.csv").set_index(["a", "b", "benchmark"])
    pair = frame.loc[("grpo", "bapo", "avg")]
    line = next(x for x in text.splitlines() if x.startswith("- BAPO minus GRPO"))
    low, high = -pair.high_problems_and_seeds, -pair.low_problems_and_seeds
    assert f"Avg: {-pair.difference:+.1f} points (95% interval {low:+.1f} to {high:+.1f}" in line
    assert ("no significant difference" in line) == (not pair.real) and "+10.84 points" in line
    gains = next(x for x in text.splitlines() if x.startswith("- GRPO minus base, Avg"))
    seeds = values.loc[("grpo", "avg"), ["seed_1", "seed_2"]] - values.loc[("base", "avg"), "mean"]
    assert [float(x) for x in re.findall(r"[+-]\d+\.\d", gains)] == pytest.approx(sorted(seeds), abs=0.0501)
    assert "no method is tuned at this scale" in text
    content = read_json(small)
    for cell in content["cells"]:
        cell |= {"tuned": ["v = 2", "rate 4e-4"]} if cell["method"] == "bapo" else {}
    write_json(small, content)
    (line,) = (s for s in made(small)[0].splitlines() if s.startswith("- Hyper-parameters:"))
    assert "BAPO (v = 2, rate 4e-4)." in line and "GRPO" not in line


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


# ------------------------------------------------------------------------------------------------ marks


def result(method: str, seeds: np.ndarray) -> Result:
    return Result(method, method, "", tuple(range(len(seeds))), {}, {"x": seeds}, {})


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
    found = compare(rows, "x")
    assert marks(rows, "x", found) == expected
    raw = [c.difference.tested.p for c in found.values()]  # Holm counts every pair of the column
    assert len(found) == 3 and [c.adjusted for c in found.values()] == pytest.approx(statistics.holm(raw).tolist())
    # one training seed is one model: these models may differ, and nothing is said of methods
    single = compare([replace(row, accuracy={"x": row.accuracy["x"][:1]}) for row in rows], "x")
    assert not any(c.real for c in single.values()) and marks(rows, "x", single) == {}
    base = Result("base", "base", "", (0,), {}, {"x": accuracies(0.1, 9)[:1]}, {})  # one given model
    assert compare([base, *rows], "x")["base", "c"].real


def test_a_real_difference_is_marked_in_every_format(tmp_path: Path) -> None:
    """A winner above every other row is bold; one that is not above a noisier third is not."""
    right = {"grpo": (0, 1, 2), "dapo": (0, 1, 2), "bapo": (7, 8, 7)}
    for method, counts in right.items():
        for seed in (1, 2):
            bits = [[int(k < counts[i % 3]) for k in range(8)] for i in range(12)]
            write_run(place(tmp_path, method, seed), {"a": bits, "b": bits})
    text, frame = made(write_study(tmp_path, [("tiny", m, s) for m in right for s in (1, 2)]))
    cells = next(r for r in rows_of(text) if r[0] == "+BAPO")
    assert cells[1].startswith("**") and r"\textbf{" in (tmp_path / "made" / "table1.tex").read_text()
    assert "BAPO is significantly above GRPO" in text and set(frame[frame.mark == "bold"].index) == {
        ("bapo", name) for name in ("a", "b", "avg")
    }


# ------------------------------------------------------------------------------------------------ the paper


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


# ------------------------------------------------------------------------------------------------ what can go wrong


def failing(study: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command prints; nothing else, and nothing written."""
    assert main(["table1", "--study", str(study), "--out", str(study.parent / "tables")]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and not (study.parent / "tables").exists()
    return printed.err


def test_the_cure_names_what_the_workflow_was_given(tmp_path: Path) -> None:
    """As the workflow writes it, and as Snakemake reads it back."""
    import shlex

    from snakemake.cli import parse_config

    given = {"engine": "verl", "device": "cpu", "results": "other disk", "tracking": "none"}
    changed = ("train.steps=7", "method.c2_range=[0.1,0.2]")
    settings = Settings(scale="smoke", methods=("grpo", "bapo"), seeds=(1, 2), set=changed, **given)
    extra = {"config": settings.as_words()}
    study = load(write_study(tmp_path, [("tiny", "grpo", 1)], **extra), "table1")
    words = shlex.split(study.command)
    assert words[:6] == ["snakemake", "--cores", "all", "table1", "--config", "scale=smoke"]
    again = read_settings(parse_config(words[5:]))
    assert again == settings.model_copy(update={"device": None, "tracking": None})  # neither has a meaning
    plain = replace(study, target="runs_a runs_b", config=())
    assert plain.command == "snakemake --cores all runs_a runs_b"


@pytest.mark.parametrize("damage", ["gone", "not evaluated", "truncated", "changed", "missing"])
def test_a_broken_run_is_named_with_its_command(small: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    write_json(small, read_json(small) | {"scale": "smoke"})
    run = run_of(small, "grpo", 1)
    path = run / "eval" / "cd34.parquet"
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    if damage == "gone":
        shutil.rmtree(run)
    elif damage in ("not evaluated", "missing"):
        (path if damage == "missing" else run / "eval" / "summary.json").unlink()
    else:
        path.write_bytes(content[:100] if damage == "truncated" else content)
    said = failing(small, capsys)
    assert str(run) in said
    if damage in ("gone", "not evaluated"):
        assert "`snakemake --cores all table1 --config scale=smoke`" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.iloc[:-1], "p11 does not have 32 samples"),
        (lambda f: f.assign(sample=f["sample"].replace(3, 2)), "twice"),
        (lambda f: f.assign(problem_id=f["problem_id"].str.replace("p00", "p99")), "grpo/seed1"),
    ],
)
def test_a_table_that_is_intact_and_wrong_inside(
    small: Path, capsys: pytest.CaptureFixture[str], change: Callable[[pd.DataFrame], pd.DataFrame], words: str
) -> None:
    folder = run_of(small, "grpo", 1) / "eval"
    rewrite(folder, cd4=change(read_table(folder / "cd4.parquet")))
    assert words in failing(small, capsys)


def test_a_study_file_without_a_field_or_with_a_seed_twice(small: Path) -> None:
    content = read_json(small)
    cells = content["cells"]
    broken = {"cells": {"cells": []}, "benchmarks": {"benchmarks": {}}, "seed twice": {"cells": [*cells, cells[0]]}}
    for words, change in broken.items():
        write_json(small, content | change)
        with pytest.raises(UserError, match=words) as caught:
            load(small, "table1")
        assert str(small) in str(caught.value)


def test_one_seed_and_no_base(tmp_path: Path) -> None:
    text, frame = made(write_simulated(tmp_path, "table1", PARTS, (7,), bases=[]))
    assert "(sd" not in text and "minus base" not in text
    assert frame.se_problems_and_seeds.isna().all() and frame.se.notna().all()
