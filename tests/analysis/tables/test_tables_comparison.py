"""Tables of studies and of difficulty regimes from run directories with hand-worked numbers."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.runs import place, write_evaluation, write_run, write_study

from analysis import paper, products, tables
from analysis.__main__ import main
from analysis.reading import Outcomes
from analysis.results import BASE, Result, against, by_method, difference, margin, shares
from analysis.study import Block, load, merged
from analysis.tables import comparison
from bapo.errors import UserError

Bits = dict[str, list[list[int]]]


def bits(a: str, b: str) -> Bits:
    """Outcomes of one sample of each problem of the benchmarks a and b."""
    return {"a": [[int(c)] for c in a], "b": [[int(c)] for c in b]}


def config(method: str, seed: int, **options: object) -> dict[str, object]:
    return {"seed": seed, "train": {"steps": 4}, "method": {"algorithm": method, "title": method, "v": 5, **options}}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """bapo is the reference; bapo+slow (v = 9) solves half of what it does; grpo solves as much as the reference."""
    costs = {"rollouts": 100.0, "updates": 10.0, "forward_flops": 2e9, "backward_flops": 1e9}
    good, half = bits("1" * 12, "1" * 8 + "0" * 4), bits("1" * 6 + "0" * 6, "1" * 4 + "0" * 8)
    for seed in (1, 2):
        write_run(place(tmp_path, "bapo", seed), good, costs, config=config("bapo", seed))
        write_run(place(tmp_path, "bapo+slow", seed), half, costs, config=config("bapo", seed, v=9))
        write_run(place(tmp_path, "grpo", seed), good, costs | {"rollouts": 250.0}, config=config("grpo", seed))
    base = tmp_path / "base"
    write_evaluation(base / "eval", bits("0" * 12, "0" * 12))
    cells = [("tiny", m, s) for m in ("bapo", "bapo+slow", "grpo") for s in (1, 2)]
    bases = [{"task": "countdown", "model": "tiny", "model_title": "Tiny", "run": str(base)}]
    return write_study(tmp_path, cells, name="toys", title="Toys of a test", reference="bapo", bases=bases)


def test_runs_of_two_tasks_are_ranked_together(tmp_path: Path) -> None:
    """Of eight problems GRPO's two runs solve 2 and 4, then 4 and 4; BAPO's 4 and 6, then 2 and 4; the bases none."""
    right = {("countdown", "tiny"): {"grpo": (2, 4), "bapo": (4, 6)}}
    right |= {("geometry", "tiny"): {"grpo": (4, 4), "bapo": (2, 4)}}
    right |= {("countdown", "small"): {"grpo": (4, 4), "bapo": (2, 2)}}
    studies = []
    for (task, model), solved in right.items():
        root = tmp_path / task / model
        write_evaluation(root / "base" / "eval", {"a": [[0]] * 8})
        for method, counts in solved.items():
            for seed, count in enumerate(counts, start=1):
                write_run(place(root, method, seed, task, model), {"a": [[1]] * count + [[0]] * (8 - count)})
        cells = [(model, method, seed) for method in ("grpo", "bapo") for seed in (1, 2)]
        bases = [{"task": task, "model": model, "run": str(root / "base")}]
        studies.append(load(write_study(root, cells, ["a"], task, bases=bases)))
    frame, both = comparison.compare(merged(studies)), merged(studies[:2])
    (table,), numbers = comparison.over_tasks({b: by_method(frame, b) for b in both.blocks}, "grpo")
    rows = {row["method"]: row for row in numbers}
    # 3.5 of 4 pairs, then 1 of 4
    assert rows["bapo"]["improvement"] == pytest.approx(100 * (0.875 + 0.25) / 2)
    # in shares of GRPO's gains, 3/8 and 4/8: 4/3, 2, 1/2, 1, and GRPO's own 2/3, 4/3, 1, 1
    assert (rows["bapo"]["iqm"], rows["grpo"]["iqm"]) == pytest.approx((100 * 7 / 6, 100))
    assert table.rows[1][1:3] == ["88", "25"] and table.rows[0][1] == "reference"
    one = {b: by_method(frame, b) for b in both.blocks[:1]}
    assert comparison.over_tasks(one, "grpo") == ([], [])
    # a second base model of countdown, from which BAPO is below: one of two tasks all the same
    _, numbers = comparison.over_tasks({b: by_method(frame, b) for b in merged(studies).blocks}, "grpo")
    of_bapo = next(row for row in numbers if row["method"] == "bapo")
    assert of_bapo["model"] == "2 tasks"
    assert of_bapo["improvement"] == pytest.approx(100 * ((0.875 + 0) / 2 + 0.25) / 2)


def test_every_row_beside_the_reference(study: Path, tmp_path: Path) -> None:
    assert load(study).reference == "bapo"
    assert main(["comparison", "--study", str(study), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "comparison_toys.md").read_text()
    lines = [[c.strip() for c in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")]
    assert [row[0] for row in lines[2:]] == ["Tiny", "+BAPO", "+GRPO", "+BAPO+SLOW"]  # the reference after the base
    assert [row[-1] for row in lines[4:]] == ["another algorithm", "v: 5 -> 9"]
    frame = pd.read_csv(tmp_path / "out" / "comparison_toys.csv").set_index(["method", "benchmark"])
    row = frame.loc[("bapo+slow", "a")]
    # d = -1 six times, 0 six times: mean -1/2, variance 12/44, SE sqrt(12/44/12); seeds add nothing
    assert row.difference == pytest.approx(-50.0)
    assert row.difference_se == pytest.approx(100 * math.sqrt(1 / 44), rel=1e-4)
    assert row.difference_high == pytest.approx(-50 + 2.20099 * 100 * math.sqrt(1 / 44), abs=1e-2)  # t with 11
    # p of t = 3.3166 with 11 degrees of freedom is 0.00687; Holm with two rows doubles the smaller one
    assert row.p == pytest.approx(0.00687, abs=2e-5) and row.p_holm == pytest.approx(0.01374, abs=4e-5)
    assert frame.loc[("grpo", "a"), "p_holm"] == 1.0
    assert math.isnan(frame.loc[("bapo", "a"), "difference"]) and math.isnan(frame.loc[("base", "a"), "difference"])


COUNTDOWN = Block("countdown", "qwen2-112k", "Countdown", "Tiny", None, {}, (("a", "A"),), {}, None)


def test_equal_titles_have_the_methods_names(study: Path) -> None:
    (block,) = load(study).blocks
    same = {name: tuple(replace(run, method_title="+A") for run in block.methods[name]) for name in ("bapo", "grpo")}
    titles = replace(block, methods={**block.methods, **same})
    assert [titles.method_title(name) for name in titles.methods] == ["+A (grpo)", "+BAPO+SLOW", "+A (bapo)"]


@pytest.mark.parametrize(
    ("table", "column", "missing", "message"),
    [
        ("steps.parquet", "reward_maen", (), "steps.parquet: no run of .* column 'reward_maen'; .* 'reward_mean'"),
        ("steps.parquet", "mine", (), "steps.parquet: no run of .* column 'mine'; .* 'min3'"),
        ("steps.parquet", "reward_maen", ("countdown/tiny/mine/1",), None),  # that run may have it
        *(("steps.parquet", name, (), None) for name in ("of_another", "entropy", "tv_x2")),
        ("step.parquet", "step", (), "no table 'step.parquet' .did you mean 'steps.parquet'.*"),
        ("curve/a.parquet", "step", (), None),
    ],
)
def test_what_an_own_figure_misspells_is_no_reason_to_leave_it_out(
    table: str,
    column: str,
    missing: tuple[str, ...],
    message: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own.py").write_text(
        "from analysis import reading\n"
        f"def drawn(study): reading.table(study.cells[0], {table!r}, study, ['step', {column!r}])\n"
    )
    for method, column_of_its_own in (("grpo", "min3"), ("bapo", "of_another")):
        write_run(place(tmp_path, method, 1), bits("1" * 4, "1" * 4), steps=[{column_of_its_own: 1.0}])
    cells = [("tiny", method, 1) for method in ("grpo", "bapo")]
    read = load(write_study(tmp_path, cells, name="toys", missing=missing))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(products, "compared_with", lambda _: ["own.py:drawn"])
    with pytest.raises(UserError, match=f"^own.py:drawn: .*{message}") if message else nullcontext():
        tables.write(products.COMPARISON, read, tmp_path / "out")


def row(method: str, table: list[list[float]], seeds: tuple[int, ...]) -> Result:
    correct = np.array(table, dtype=float)[..., None]  # one sample a problem
    return Result(method, method, "", seeds, {"a": Outcomes((), correct, correct)}, {})


def test_seeds_are_paired_by_their_number() -> None:
    reference = row("grpo", [[0, 0, 1, 1], [1, 1, 1, 1]], (1, 2))
    subject = row("bapo", [[9, 9, 9, 9], [1, 1, 1, 1], [0, 1, 1, 1]], (7, 2, 1))
    found = difference(subject, reference, "a").difference
    # seed 1: 0.75 - 0.5; seed 2: 1 - 1; seed 7 has no partner. Mean 1/8
    assert found.by_seed == {1: 0.25, 2: 0.0} and found.mean == 0.125
    assert not difference(row("bapo", [[1.0]], (3,)), row("grpo", [[1.0]], (4,)), "a").difference.by_seed


def test_effects_are_shares_of_what_grpo_gains() -> None:
    base, grpo = row(BASE, [[0.1, 0.3]], ()), row("grpo", [[0.5, 0.7], [0.5, 0.7]], (1, 2))
    bapo = row("bapo", [[0.5, 0.9], [0.5, 0.9]], (1, 2))  # 0.1 above, where GRPO gains 0.4
    rows = {BASE: base, "grpo": grpo, "bapo": bapo}
    found = shares(rows, "a")
    assert list(found) == ["bapo"] and found["bapo"].mean == pytest.approx(0.25)
    # the problems' shares are 0 and 1/2: SE 1/4, whatever the seeds
    assert found["bapo"].tested.se == pytest.approx(0.25)
    without = {method: of for method, of in rows.items() if method != BASE}
    assert shares(without, "a") == {} and shares(rows | {BASE: row(BASE, [[0.9, 0.9]], ())}, "a") == {}


@pytest.mark.parametrize(
    ("model", "share"),
    [  # (BAPO - GRPO) / (GRPO - base) of the averages that Table 1 prints
        ("deepseek-r1-distill-qwen-1.5b", (56.01 - 51.58) / (51.58 - 48.90)),
        ("qwen2.5-math-1.5b", (60.25 - 49.41) / (49.41 - 0.75)),
        ("qwen2.5-math-7b", (68.13 - 60.50) / (60.50 - 1.81)),
        ("qwen2.5-vl-3b", (43.22 - 39.78) / (39.78 - 16.98)),
        ("qwen2.5-vl-7b", (45.33 - 43.97) / (43.97 - 33.25)),
    ],
)
def test_the_paper_in_shares(model: str, share: float) -> None:
    assert paper.table1()[model].share_of_gain("bapo", "avg") == pytest.approx(share)
    assert paper.table1()[model].share_of_gain("grpo", "avg") is None


def test_verdicts_by_the_margin() -> None:
    """The margin is half of the paper's 22.3%: 4.456 points where GRPO gains 40."""
    points = margin(COUNTDOWN, 0.4)
    assert points == pytest.approx(0.5 * 10.84 / 48.66 * 0.4)
    assert math.isnan(margin(COUNTDOWN, -0.1)) and math.isnan(margin(replace(COUNTDOWN, task="no such task"), 0.4))
    grpo = row("grpo", [[0.5] * 4] * 2, (1, 2))
    for each, verdict in {
        # d of the four problems, the same in both seeds: SE = sd / 2, t with 3 degrees: 2.353 (90%), 3.182 (95%)
        (0.01, 0.01, -0.01, -0.01): "no effect larger than 4.5 points",  # SE 0.58 points, 90% interval to 1.36
        (0.04, 0.04, -0.04, -0.04): "not significant",  # SE 2.31, to 5.43
        (0.02, 0.02, 0.01, 0.01): "above",  # 1.5 with SE 0.29: within the margin, and different from 0
        (-0.2, -0.2, -0.1, -0.1): "below",
    }.items():
        rows = {"bapo": row("bapo", [[0.5 + d for d in each]] * 2, (1, 2)), "grpo": grpo}
        assert against(rows, "grpo", "a", points)["bapo"].verdict == verdict
        assert against(rows, "grpo", "a")["bapo"].verdict != "no effect larger than 4.5 points"  # without a margin
    one = {name: row(name, table, (1,)) for name, table in (("bapo", [[0.51, 0.49] * 2]), ("grpo", [[0.5] * 4]))}
    # one seed is one model
    assert against(one, "grpo", "a", points)["bapo"].verdict == "not significant"
