"""Table 1 from synthetic run directories: numbers, order, marks, the paper's columns, and what a user is told."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.paths import needs_shared
from support.run_directories import METHODS, write_evaluation, write_study
from support.scripted import fresh, group

from analysis import paper, statistics
from analysis.__main__ import main
from analysis.results import Result, compare, marks
from analysis.study import load
from analysis.tables import table1
from bapo.engines.shared.records import group_rows
from bapo.errors import UserError
from bapo.experiments.settings import Settings, read_settings
from bapo.methods.base import Batch, Method
from bapo.store.files import GROUPS, SUMMARY, fingerprints, read_table, write_parquet


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def written(study: Path) -> Path:
    out = study.parent / "tables"
    assert main(["table1", "--study", str(study), "--out", str(out)]) == 0
    return out


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A study that a test may break."""
    return write_study(tmp_path, methods=("grpo", "bapo"), seeds=(1, 2), steps=4, problems=12, samples=4)


def rows_of(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def run_of(study: Path, method: str, seed: int) -> Path:
    cells = json.loads(study.read_text())["cells"]
    return next(Path(c["run"]) for c in cells if (c["method"], c["seed"]) == (method, seed))


# ------------------------------------------------------------------------------------------------ tuned rows


def test_table_1_says_which_rows_are_tuned_with_what(small: Path) -> None:
    out = small.parent / "tables"
    assert main(["table1", "--study", str(small), "--out", str(out)]) == 0
    assert "no method is tuned at this scale" in (out / "table1.md").read_text()
    content = json.loads(small.read_text())
    for cell in content["cells"]:
        cell |= {"tuned": ["v = 2", "rate 4e-4"]} if cell["method"] == "bapo" else {}
    small.write_text(json.dumps(content))
    assert main(["table1", "--study", str(small), "--out", str(out)]) == 0
    (line,) = (s for s in (out / "table1.md").read_text().splitlines() if s.startswith("- Hyper-parameters:"))
    assert "BAPO (v = 2, rate 4e-4). All other rows keep the setting's values." in line and "GRPO" not in line


# ------------------------------------------------------------------------------------------------ numbers


def test_rows_are_in_the_papers_order(written: Path) -> None:
    header, _, *rows = rows_of((written / "table1.md").read_text())
    assert header == ["Method", "CD-34", "CD-4", "Avg", "SE", "Rollouts", "Type"]
    ours = [row for row in rows if not row[0].startswith("*paper")]
    assert [row[0] for row in ours] == ["**Synthetic 112k**", *(title for title, *_ in METHODS.values())]
    assert [row[6] for row in ours] == ["\u2013", "on", "on", "off", "off", "off", "off", "off"]


def test_numbers_are_those_of_the_evaluations(study: Path, written: Path) -> None:
    frame = pd.read_csv(written / "table1.csv").set_index(["method", "benchmark"])
    bits = []
    for seed in (1, 2, 3):
        raw = read_table(run_of(study, "bapo", seed) / "eval" / "cd4.parquet")
        bits.append(raw.pivot(index="problem_id", columns="sample", values="correct").to_numpy(float))
    row = frame.loc[("bapo", "cd4")]
    per_problem = np.mean(bits, axis=(0, 2))
    estimate = statistics.clustered(per_problem)
    assert row["mean"] == pytest.approx(100 * np.mean(bits), rel=1e-5)
    assert row["se"] == pytest.approx(100 * estimate.se, rel=1e-5)
    assert (row["low"], row["high"]) == pytest.approx((100 * estimate.low, 100 * estimate.high), rel=1e-5)
    for seed, x in zip((1, 2, 3), bits, strict=True):
        assert row[f"seed_{seed}"] == pytest.approx(100 * x.mean(), rel=1e-5)
    assert row["seed_sd"] == pytest.approx(100 * np.std(np.mean(bits, axis=(1, 2)), ddof=1), rel=1e-5)
    assert row["pass@8"] == pytest.approx(100 * (np.array(bits).max(axis=2) > 0).mean(), rel=1e-5)  # K = 8
    assert np.isnan(row["pass@32"])
    average = frame.loc[("bapo", "avg")]
    assert average["mean"] == pytest.approx((row["mean"] + frame.loc[("bapo", "cd34"), "mean"]) / 2, rel=1e-5)
    assert average["problems"] == 80


def test_cells_of_the_markdown_are_those_of_the_csv(written: Path) -> None:
    frame = pd.read_csv(written / "table1.csv").set_index(["method", "benchmark"])
    rows = rows_of((written / "table1.md").read_text())
    cells = next(r for r in rows if r[0] == "+BAPO (Ours)")
    row, average = frame.loc[("bapo", "cd34")], frame.loc[("bapo", "avg")]
    assert cells[1] == f"{row['mean']:.1f} ± {(row['high'] - row['low']) / 2:.1f} (sd {row['seed_sd']:.1f})"
    errors = [frame.loc[("bapo", name), "se"] for name in ("cd34", "cd4")]
    assert average["se"] == pytest.approx(np.hypot(*errors) / 2, rel=1e-5)  # of the unweighted average
    assert cells[4:] == [f"{average['se']:.2f}", f"{row['rollouts'] / 1000:.1f}k", "off"]
    assert rows[rows.index(cells) + 1] == ["*paper*", "*73.00*", "*47.50*", "*60.25*", *["\u2013"] * 3]


def test_rollouts_are_means_of_the_summaries(study: Path, written: Path) -> None:
    totals = [json.loads((run_of(study, "dapo", k) / "summary.json").read_text())["totals"] for k in (1, 2, 3)]
    frame = pd.read_csv(written / "table1.csv").set_index(["method", "benchmark"])
    assert frame.loc[("dapo", "cd34"), "rollouts"] == pytest.approx(np.mean([t["rollouts"] for t in totals]), rel=1e-5)
    assert np.isnan(frame.loc[("base", "cd34"), "rollouts"])


def test_sentence_of_each_claim(written: Path) -> None:
    text = (written / "table1.md").read_text()
    frame = pd.read_csv(written / "table1_differences.csv")
    pair = frame[(frame.a == "grpo") & (frame.b == "bapo") & (frame.benchmark == "avg")].iloc[0]
    line = next(x for x in text.splitlines() if x.startswith("- BAPO minus GRPO"))
    low, high = -pair.high_problems_and_seeds, -pair.low_problems_and_seeds
    assert f"Avg: {-pair.difference:+.1f} points (95% interval {low:+.1f} to {high:+.1f}" in line
    assert ("no significant difference" in line) == (not pair.real)
    assert "The paper reports +10.84 points" in line
    rollouts = pd.read_csv(written / "table1.csv").groupby("method").rollouts.first()
    assert f"{rollouts.bapo / rollouts.grpo:.2f} times those of GRPO" in line
    assert any(x.startswith("- BAPO minus DAPO") for x in text.splitlines())
    gains = next(x for x in text.splitlines() if x.startswith("- GRPO minus base, Avg"))
    values = pd.read_csv(written / "table1.csv").set_index(["method", "benchmark"])
    seeds = values.loc[("grpo", "avg"), ["seed_1", "seed_2", "seed_3"]] - values.loc[("base", "avg"), "mean"]
    said = [float(x) for x in re.findall(r"[+-]\d+\.\d", gains)]
    assert said == pytest.approx([min(seeds), max(seeds)], abs=0.0501)


def test_what_a_method_replays_is_counted_in_its_groups(tmp_path: Path) -> None:
    """4 steps of two fresh groups of 8 each: BAPO's seed 1 adds a stored group of 4 at two steps, seed 2 at one."""
    small = write_study(tmp_path, methods=("grpo", "grpo_v5", "bapo"), seeds=(1, 2), steps=4, problems=12, samples=4)
    replaying = {("bapo", 1): (2, 4), ("bapo", 2): (3,), ("grpo_v5", 1): (), ("grpo_v5", 2): ()}
    for (method, seed), steps in replaying.items():
        rows = []
        for step in range(1, 5):
            kept = fresh(step, [4, 4, 0])
            stored = [group("old", 2, 1, size=4)] if step in steps else []
            rows += group_rows(step, Batch(kept[:2] + Method.replayed(stored), [(kept[2], "no signal in X1")]))
        folder = run_of(small, method, seed)
        write_parquet(folder / GROUPS, pd.DataFrame(rows))
        summary = json.loads((folder / SUMMARY).read_text())
        summary["files"] |= fingerprints(folder, [GROUPS])
        (folder / SUMMARY).write_text(json.dumps(summary))
    assert main(["table1", "--study", str(small), "--out", str(tmp_path / "out")]) == 0
    frame = pd.read_csv(tmp_path / "out" / "table1.csv").set_index(["method", "benchmark"])
    row = frame.loc[("bapo", "avg")]
    assert row.replayed == pytest.approx(100 * (8 / (64 + 8) + 4 / (64 + 4)) / 2, rel=1e-5)
    assert row.replaying_steps == 1.5
    assert frame.loc[("grpo", "avg"), ["replayed", "replaying_steps"]].tolist() == [0, 0]
    line = next(x for x in (tmp_path / "out" / "table1.md").read_text().splitlines() if "Replayed responses" in x)
    assert "GRPO (v = 5) 0.0% (0 of 4 steps), BAPO (Ours) 8.5% (2 of 4 steps)." in line and "DAPO" not in line


def test_notes_say_what_the_numbers_are(written: Path) -> None:
    text = (written / "table1.md").read_text()
    assert "Synthetic numbers for tests: they show nothing." in text
    assert "mean over 3 training seeds, 8 samples a problem, 40 problems of CD-34, 40 problems of CD-4" in text
    assert "Holm" in text and "Qwen2.5 Math 1.5B" in text


def test_latex_is_a_complete_table(written: Path) -> None:
    text = (written / "table1.tex").read_text()
    assert text.count(r"\begin{") == text.count(r"\end{")
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    columns = len(re.search(r"\\begin{tabular}{(\w+)}", text)[1])
    assert len(body) == 8 + 6 and all(line.count(" & ") == columns - 1 and line.endswith(r" \\") for line in body)
    assert r"+BAPO w/o $\mathcal{X}_2$ (Ours)" in text
    assert not re.search(r"(?<!\\)[%#]", text.replace("% generated", ""))  # would swallow the rest of a line


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
    assert marks(rows, "x", compare(rows, "x")) == expected


def test_one_training_seed_is_one_model_and_gets_no_mark() -> None:
    rows = [
        result(m, accuracies(mean, i + 1)[:1]) for i, (m, mean) in enumerate(zip("abc", (0.3, 0.4, 0.5), strict=True))
    ]
    found = compare(rows, "x")
    assert all(c.differ and not c.real for c in found.values())  # these models differ; nothing is said of methods
    assert marks(rows, "x", found) == {}
    base = Result("base", "base", "", (0,), {}, {"x": accuracies(0.2, 9)[:1]}, {})  # one given model
    rows = [
        base,
        *(result(m, accuracies(mean, i + 1)) for i, (m, mean) in enumerate(zip("ab", (0.3, 0.5), strict=True))),
    ]
    assert all(c.real for c in compare(rows, "x").values())


def test_holm_counts_every_pair_of_the_column() -> None:
    rows = [result(m, accuracies(0.3 + 0.004 * i, i + 1)) for i, m in enumerate("abcd")]
    found = compare(rows, "x")
    assert len(found) == 6
    raw = [c.difference.tested.p for c in found.values()]
    assert [c.adjusted for c in found.values()] == pytest.approx(statistics.holm(raw).tolist())
    assert min(c.adjusted for c in found.values()) == pytest.approx(min(1, 6 * min(raw)))


def test_a_real_difference_is_marked_in_every_format(small: Path) -> None:
    for seed in (1, 2):
        write_evaluation(run_of(small, "bapo", seed) / "eval", 6.0, seed, problems=12, samples=4)
    out = small.parent / "tables"
    table1.write(load(small, "table1"), out)
    cells = next(r for r in rows_of((out / "table1.md").read_text()) if r[0] == "+BAPO (Ours)")
    assert cells[1].startswith("**") and r"\textbf{" in (out / "table1.tex").read_text()
    assert "BAPO is significantly above GRPO" in (out / "table1.md").read_text()
    frame = pd.read_csv(out / "table1.csv")
    assert frame[frame.mark == "bold"].method.unique().tolist() == ["bapo"]


# ------------------------------------------------------------------------------------------------ the paper


def test_paper_numbers_are_in_its_text() -> None:
    lines = needs_shared("paper", "buffer_matters.txt").read_text().split("Table 1: ")[1].split("5.2 MECHANISM")[0]
    checked = 0
    for model in paper.table1().values():
        for method, row in model.rows.items():
            columns = [c for c in model.columns if c != "type"]
            printed = [f"<u>{row[c]}</u>" if c in row["underlined"] else str(row[c]) for c in columns]
            assert "\t".join(printed) in lines, (model.title, method)
            checked += len(columns)
    assert checked == 8 * 7 + 2 * (6 + 4) * 3


def test_paper_columns_by_model() -> None:
    assert paper.match("countdown", "qwen2-112k").title == "Qwen2.5 Math 1.5B"
    assert paper.match("countdown", "qwen2.5-math-7b").value("grpo", "cd34") == 70.75
    assert paper.match("countdown", "anything", "qwen2.5-math-7b").printed("dapo", "avg") == "68.09"
    assert paper.match("countdown", "qwen2-112k").printed("repo", "cd4") is None
    assert paper.match("mathematics", "x").value("dapo", "rollouts") == 1_921_000
    assert paper.match("no such task", "x") is None


def test_the_papers_numbers_stand_below_the_rows_that_it_has(written: Path) -> None:
    rows = [row[0] for row in rows_of((written / "table1.md").read_text())]
    followed = [a for a, b in itertools.pairwise(rows) if b.startswith("*paper")]
    without = {"+GRPO (v = 5)", "+RePO"}  # the paper has them for mathematics only
    assert followed == ["**Synthetic 112k**", *(t for t, *_ in METHODS.values() if t not in without)]


# ------------------------------------------------------------------------------------------------ all three tasks

STEPS = {"steps_5": "aime24", "steps_3": "amc", "mixed": "math500", "equations": "minerva", "steps_4": "olympiad"}
PLAYED = {
    "mathematics": {ours: (ours.title(), 1.5, theirs) for ours, theirs in STEPS.items()},
    "countdown": {"cd34": ("CD-34", 1.6), "cd4": ("CD-4", 2.4)},
    "geometry": {"shapes_val": ("Shapes (val)", 1.0, "geo3k_val"), "shapes_test": ("Shapes (test)", 1.0, "geo3k_test")},
}


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a table of three tasks; geometry has no RePO and one seed."""
    root = tmp_path_factory.mktemp("complete")
    whole: dict = {}
    for task, benchmarks in PLAYED.items():
        methods = ("grpo", "bapo") if task == "geometry" else ("grpo", "repo", "bapo")
        seeds = (1,) if task == "geometry" else (1, 2)
        path = write_study(
            root,
            methods,
            seeds,
            steps=2,
            problems=12,
            samples=4,
            task=task,
            task_title=task.title(),
            benchmarks=benchmarks,
        )
        one = json.loads(path.read_text())
        for key in ("cells", "bases"):
            whole.setdefault(key, []).extend(one.pop(key))
        whole.setdefault("benchmarks", {}).update(one.pop("benchmarks"))
        whole |= one
    path.write_text(json.dumps(whole))
    assert main(["table1", "--study", str(path), "--out", str(root / "tables")]) == 0
    return root / "tables"


def test_mathematics_is_part_a_and_the_other_two_stand_side_by_side_in_part_b(complete: Path) -> None:
    text = (complete / "table1.md").read_text()
    part_a, part_b = re.split(r"^## \(b\) Planning and visual geometry.*$", text, flags=re.M)
    assert "## (a) Mathematics" in part_a
    tail = ["Avg", "SE", "Rollouts", "Type"]
    header, _, *rows = rows_of(part_a)
    titles = [
        f"{t}<br>*{p}*"
        for t, p in zip(
            ("Steps_5", "Steps_3", "Mixed", "Equations", "Steps_4"),
            ("AIME24", "AMC", "MATH500", "Minerva.", "Olympiad."),
            strict=True,
        )
    ]
    assert header == ["Method", *titles, *tail]
    names = ["**Synthetic 112k**", "*paper: DeepSeek R1 Distill Qwen 1.5B*", "+GRPO", "*paper*", "+RePO", "*paper*"]
    assert [r[0] for r in rows] == [*names, "+BAPO (Ours)", "*paper*"]
    assert rows[3][1:] == ["*30.73*", "*67.47*", "*85.40*", "*28.95*", "*45.33*", "*51.58*", "\u2013", "*677k*", "*on*"]

    header, _, *rows = rows_of(part_b)
    shapes = ["Shapes (val)<br>*Geo-3K(val)*", "Shapes (test)<br>*Geo-3K(test)*"]
    assert header == ["Method", "CD-34", "CD-4", *tail, "Method", *shapes, *tail]
    beside = {row[0]: row[7:] for row in rows}
    assert beside["+GRPO"][0] == "+GRPO" and beside["+BAPO (Ours)"][0] == "+BAPO (Ours)"
    assert beside["*paper: Qwen2.5 Math 1.5B*"][:4] == ["*paper: Qwen2.5 VL 3B*", "*14.77*", "*19.18*", "*16.98*"]
    assert beside["+RePO"] == [""] * 7  # not run there
    assert all(f"{task.title()}, Synthetic 112k:" in text for task in PLAYED)
    assert "over problems alone where there is one seed" in text
    assert "A row with one training seed is one trained model and not its method" in text


def test_every_domain_has_its_average_and_every_stand_in_its_part(complete: Path) -> None:
    frame = pd.read_csv(complete / "table1.csv")
    for task, benchmarks in PLAYED.items():
        mine = frame[(frame.task == task) & (frame.method == "bapo")].set_index("benchmark")
        assert mine.loc["avg", "mean"] == pytest.approx(mine.loc[list(benchmarks), "mean"].mean(), rel=1e-5)
        squares = (mine.loc[list(benchmarks), "se"] ** 2).sum()
        assert mine.loc["avg", "se"] == pytest.approx(np.sqrt(squares) / len(benchmarks), rel=1e-4)
    row = frame[(frame.method == "bapo") & (frame.benchmark == "steps_4")].iloc[0]
    assert (row.paper_benchmark, row.paper, row.paper_model) == ("olympiad", 50.06, "DeepSeek R1 Distill Qwen 1.5B")


def test_latex_has_a_table_for_each_part(complete: Path) -> None:
    text = (complete / "table1.tex").read_text()
    tables = text.split(r"\begin{table*}")[1:]
    assert len(tables) == 2 and text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    for table, columns in zip(tables, (10, 14), strict=True):
        lines = [line for line in table.splitlines() if line.endswith(r" \\")]
        assert all(line.count(" & ") == columns - 1 for line in lines)
        align = re.search(r"\\begin{tabular}{([lr]+(?:@{\\quad}[lr]+)?)}", table)[1]
        assert len(align.replace(r"@{\quad}", "")) == columns


# ------------------------------------------------------------------------------------------------ what can go wrong


def failing(study: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command prints; nothing else, and nothing written."""
    assert main(["table1", "--study", str(study), "--out", str(study.parent / "tables")]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and printed.err.startswith("error: ")
    assert not (study.parent / "tables").exists()
    return printed.err


def test_missing_run(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(small, "bapo", 2)
    shutil.rmtree(run)
    message = failing(small, capsys)
    assert str(run) in message and "`snakemake --cores all table1`" in message


def test_the_cure_names_what_the_workflow_was_given(tmp_path: Path) -> None:
    """As the workflow writes it, and as Snakemake reads it back."""
    import shlex

    from snakemake.cli import parse_config

    settings = Settings(
        scale="smoke",
        engine="verl",
        device="cpu",
        results="other disk",
        methods=("grpo", "bapo"),
        seeds=(1, 2),
        tracking="none",
        set=("train.steps=7", "method.c2_range=[0.1,0.2]"),
    )
    extra = {"config": settings.as_words()}
    study = load(write_study(tmp_path, methods=("grpo",), seeds=(1,), steps=2, scale="smoke", extra=extra), "table1")
    words = shlex.split(study.command)
    assert words[:6] == ["snakemake", "--cores", "all", "table1", "--config", "scale=smoke"]
    again = read_settings(parse_config(words[5:]))
    assert again == dataclasses.replace(settings, device=None, tracking=None)  # neither has a meaning
    assert load(write_study(tmp_path, methods=("grpo",), seeds=(1,), steps=2), "table1").command == (
        "snakemake --cores all table1"
    )
    assert (
        dataclasses.replace(study, target="runs_a runs_b", config=()).command == "snakemake --cores all runs_a runs_b"
    )


def test_missing_evaluation_at_another_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path, methods=("grpo",), seeds=(1,), steps=2, scale="smoke")
    (run_of(study, "grpo", 1) / "eval" / "summary.json").unlink()
    assert "`snakemake --cores all table1 --config scale=smoke`" in failing(study, capsys)


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_damaged_evaluation(small: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    path = run_of(small, "grpo", 1) / "eval" / "cd34.parquet"
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[:100])
    else:
        content[60] ^= 1
        path.write_bytes(content)
    assert str(path) in failing(small, capsys)


def rewritten(path: Path, change: object) -> None:
    """A table that another program wrote: intact by its fingerprint, wrong inside."""
    frame = change(read_table(path))
    frame.to_parquet(path, index=False)
    (path.parent / "summary.json").write_text(json.dumps({"identity": "synthetic", "files": {}}))


def test_uneven_samples(small: Path) -> None:
    path = run_of(small, "grpo", 1) / "eval" / "cd4.parquet"
    rewritten(path, lambda f: f.iloc[:-1])
    with pytest.raises(UserError, match=r"synthetic-cd4-0011 does not have 4 samples"):
        table1.write(load(small, "table1"), small.parent)


def test_doubled_sample(small: Path) -> None:
    path = run_of(small, "grpo", 1) / "eval" / "cd4.parquet"
    rewritten(path, lambda f: f.assign(sample=f["sample"].replace(3, 2)))
    with pytest.raises(UserError, match="is there twice"):
        table1.write(load(small, "table1"), small.parent)


def test_other_problems_between_seeds_and_between_methods(small: Path) -> None:
    def renamed(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(problem_id=frame.problem_id.str.replace("0000", "9999"))

    rewritten(run_of(small, "bapo", 1) / "eval" / "cd4.parquet", renamed)
    with pytest.raises(UserError, match=r"are not those of .*bapo/seed1"):
        table1.write(load(small, "table1"), small.parent)
    rewritten(run_of(small, "bapo", 2) / "eval" / "cd4.parquet", renamed)
    with pytest.raises(UserError, match=r"other problems of cd4"):
        table1.write(load(small, "table1"), small.parent)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("cells"), "cells: has no value"),
        (lambda c: c["cells"][1].pop("run"), r"cells\[1\]\.run: has no value"),
        (lambda c: c["bases"][0].pop("model"), r"bases\[0\]\.model: has no value"),
        (lambda c: c.pop("benchmarks"), r"benchmarks\.countdown: is missing"),
        (lambda c: c["cells"].append(c["cells"][0]), "names a seed twice"),
    ],
)
def test_wrong_study_files(small: Path, change: object, words: str) -> None:
    content = json.loads(small.read_text())
    change(content)
    small.write_text(json.dumps(content))
    with pytest.raises(UserError, match=words) as caught:
        load(small, "table1")
    assert str(small) in str(caught.value)


def test_one_seed_and_no_base(tmp_path: Path) -> None:
    study = write_study(tmp_path, methods=("grpo", "bapo"), seeds=(7,), steps=2, extra={"bases": []})
    table1.write(load(study, "table1"), tmp_path / "tables")
    text = (tmp_path / "tables" / "table1.md").read_text()
    assert "(sd" not in text and "mean over 1 training seed," in text and "minus base" not in text
    frame = pd.read_csv(tmp_path / "tables" / "table1.csv")
    assert frame.se_problems_and_seeds.isna().all() and frame.se.notna().all()


# ------------------------------------------------------------------------------------------------ the command


def test_help_names_the_format_and_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["figure", "--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0 and '"benchmarks"' in text and "figure15_migration" in text


def test_start_up_imports_nothing_heavy() -> None:
    code = (
        "import sys, analysis.__main__, analysis.study; "
        "print([m for m in ('torch', 'pandas', 'matplotlib', 'scipy', 'transformers') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_best_is_bold_only_when_it_is_above_every_other_row() -> None:
    """A winner that beats the second, but not a noisier third, is not marked."""
    from types import SimpleNamespace

    from analysis import results, text

    def row(name: str, mean: float) -> SimpleNamespace:
        return SimpleNamespace(method=name, mean=lambda column: SimpleNamespace(mean=mean))

    rows = [row("a", 0.9), row("b", 0.8), row("c", 0.7)]

    def compared(ab: bool, ac: bool, bc: bool) -> dict:
        real = {("a", "b"): ab, ("a", "c"): ac, ("b", "c"): bc}
        return {pair: SimpleNamespace(real=value) for pair, value in real.items()}

    assert results.marks(rows, "avg", compared(True, False, True)) == {}
    assert results.marks(rows, "avg", compared(True, True, False)) == {"a": text.BOLD}
    assert results.marks(rows, "avg", compared(True, True, True)) == {"a": text.BOLD, "b": text.UNDERLINE}
