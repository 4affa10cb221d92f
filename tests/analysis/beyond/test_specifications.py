"""The table of every difference by three standard tests: verdicts, families, and the numbers of ``statistics``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.runs import outcomes, place, write_evaluation, write_run, write_study

from analysis import statistics, study
from analysis.beyond import specifications
from bapo.errors import UserError

#: solved of 8 samples of four problems, by seed
SOLVED = {
    "grpo": [(4, 2, 5, 1), (4, 3, 5, 1), (3, 2, 5, 2)],
    "bapo+rollouts": [(8, 6, 8, 5), (8, 7, 8, 5), (7, 6, 8, 6)],
    "bapo+compute": [(4, 2, 5, 1), (4, 3, 4, 2), (3, 2, 5, 2)],
    "dapo": [(4, 3, 5, 1), (3, 3, 5, 2), (3, 2, 6, 2)],
}


def written(
    root: Path,
    solved: Mapping[str, Sequence[Sequence[int]]],
    by_base: bool = False,
    problems: list[str] | None = None,
    bases: Sequence[Mapping[str, str]] = (),
) -> tuple[pd.DataFrame, str]:
    """Write runs with these numbers solved, by seed; return the table of their study and its page.

    by_base: each seed has a base model of its own. bases: evaluated base models.
    """
    config: dict[str, object] = {name: {} for name in ("task", "data", "model", "base")}
    cells = []
    for method, seeds in solved.items():
        for seed, counts in enumerate(seeds, start=1):
            cells.append((f"base_{seed}" if by_base else "tiny", method, seed))
            run = write_run(place(root, method, seed, model=cells[-1][0]), config=config)
            write_evaluation(run / "eval", {"a": outcomes(counts)}, problems=problems)
    extra = {"name": "asked", "reference": "grpo", "bases": list(bases)}
    file = write_study(root, sorted(cells, reverse=True), benchmarks=("a",), **extra)
    csv, page, _ = specifications.write(study.load(file), root / "out")
    return pd.read_csv(csv), page.read_text()


def of_benchmark(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["benchmark"] == "a"].set_index("method")


@pytest.fixture
def rows(tmp_path: Path) -> pd.DataFrame:
    """Return the table of the benchmark, by method."""
    table, page = written(tmp_path / "tiny", SOLVED)
    assert "BAPO" in page
    return of_benchmark(table)


def side(method: str) -> statistics.Side:
    return statistics.Side([np.array(SOLVED[method]) / 8], [1, 2, 3])


def test_each_test_is_corrected_over_its_family(rows: pd.DataFrame) -> None:
    """DAPO and BAPO with equal rollouts are one family of two, and BAPO with equal compute is another, of one."""
    reference, trained = side("grpo"), [side(method) for method in SOLVED]
    for family in (["bapo+rollouts", "dapo"], ["bapo+compute"]):
        paired = [statistics.difference(side(m), reference).tested for m in family]
        unpaired = [statistics.unpaired(side(m), reference).tested for m in family]
        pooled = [statistics.pooled(trained, side(m), reference) for m in family]
        for i, method in enumerate(family):
            assert rows.paired[method] == pytest.approx(100 * paired[i].mean, abs=1e-4)
            assert rows.pooled_low[method] == pytest.approx(100 * pooled[i].low, abs=1e-4)
            assert rows.p_paired[method] == pytest.approx(statistics.holm([e.p for e in paired])[i], abs=1e-4)
            assert rows.p_unpaired[method] == pytest.approx(statistics.holm([e.p for e in unpaired])[i], abs=1e-4)
            assert rows.p_pooled[method] == pytest.approx(statistics.dunnett(pooled)[i], abs=1e-4)
    assert rows.verdict["bapo+rollouts"] == "above" and rows.verdict["dapo"] == "not significant"


def test_a_base_with_one_run_stands_in_a_seeds_place(rows: pd.DataFrame, tmp_path: Path) -> None:
    """The pooled model has its effect, and signed ranks over bases are in the place of the unpaired test."""
    table, page = written(tmp_path / "bases", SOLVED, by_base=True)
    assert "## Countdown, 3 base models: A" in page and "| Signed ranks |" in page
    found = of_benchmark(table)
    numbers = rows.filter(regex="paired").columns.drop(list(rows.filter(regex="unpaired").columns))
    assert (found[numbers] == rows[numbers]).all(axis=None)
    reference, trained = side("grpo"), [side(method) for method in SOLVED]
    for family in (["bapo+rollouts", "dapo"], ["bapo+compute"]):
        pooled = [statistics.pooled(trained, side(m), reference, blocks=True) for m in family]
        ranks = [statistics.signed_ranks([*statistics.difference(side(m), reference).by_seed.values()]) for m in family]
        for i, method in enumerate(family):
            assert found.pooled_low[method] == pytest.approx(100 * pooled[i].low, abs=1e-4)
            assert found.p_pooled[method] == pytest.approx(statistics.dunnett(pooled)[i], abs=1e-4)
            assert found.p_ranks[method] == pytest.approx(statistics.holm(ranks)[i], abs=1e-4)


def test_diagrams_of_the_same_angles_are_one_draw(tmp_path: Path) -> None:
    """Nearly all of a lead is on one combination of two problems, which are parallel lines and a mirror image."""
    names = [
        *("geometry:parallels:40:0,0,0,30,5,5:other", "geometry:parallels:140:5,0,0,30,5,5:other"),
        *(f"geometry:triangle:{a}-60-{120 - a}:0,0,0,30,5,5:third" for a in (20, 30, 40, 50)),
    ]
    solved = {"grpo": [(2, 2, 4, 4, 3, 4)] * 3, "bapo": [(8, 8, 4, 5, 3, 4), (8, 7, 4, 5, 4, 4), (8, 8, 4, 5, 3, 4)]}
    table, page = written(tmp_path, solved, problems=names)
    row = table.set_index("benchmark").loc["avg"]
    units = ["parallels:40-40"] * 2 + names[2:]
    x = (np.array(solved["bapo"]) - np.array(solved["grpo"])) / 8
    expected = statistics.mean_over_seeds(statistics.by_unit(x, units)).tested
    assert (row["angles_low"], row["p_angles"]) == pytest.approx((100 * expected.low, expected.p), abs=1e-3)
    assert row["combinations"] == "parallels 40-40, triangle 30-60-90" and row["problems"] == "3 of 6"
    assert row["without"] == pytest.approx(100 * x[:, [2, 4, 5]].mean(), abs=1e-3)
    assert "| New angles | By all four |" in page


def test_weaker_and_stronger_base_models_have_a_line(tmp_path: Path) -> None:
    """BAPO gains from the two weaker bases, seeds 2 and 4, and nothing from the others."""
    grpo = [(4, 2, 5, 1), (4, 3, 5, 1), (3, 2, 5, 2), (4, 2, 4, 1)]
    bapo = [(4, 3, 5, 1), (7, 6, 8, 4), (3, 1, 5, 2), (7, 6, 7, 5)]
    bases = []
    for seed, solved in enumerate((3, 1, 4, 0), start=1):
        write_evaluation(tmp_path / f"base_{seed}" / "eval", {"a": outcomes([solved] * 4)})
        bases.append({"task": "countdown", "model": f"base_{seed}", "run": str(tmp_path / f"base_{seed}")})
    table, page = written(tmp_path, {"grpo": grpo, "bapo": bapo}, by_base=True, bases=bases)
    row = table.set_index("benchmark").loc["avg"]
    x = (np.array(bapo) - np.array(grpo)) / 8
    weaker, stronger = (statistics.mean_over_seeds(x[half]).tested for half in ([3, 1], [0, 2]))
    assert (row["weaker"], row["weaker_low"]) == pytest.approx((100 * weaker.mean, 100 * weaker.low), abs=1e-3)
    assert (row["stronger"], row["stronger_high"]) == pytest.approx((0.0, 100 * stronger.high), abs=1e-3)
    apart = statistics.difference(statistics.Side([x[[3, 1]]], [3, 1]), statistics.Side([x[[0, 2]]], [0, 2])).tested
    assert row["p_halves"] == pytest.approx(apart.p, abs=1e-4)
    assert row["model"].endswith(" over 4 bases")
    assert "| Weaker half | Stronger half | p of their difference |" in page


def test_a_study_without_replicates_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two training seeds"):
        written(tmp_path, {"grpo": [(4, 8)], "bapo": [(4, 8)]})


@pytest.mark.parametrize(
    ("p_values", "mean", "verdict"),
    [
        ((0.01, 0.02, 0.049), 1.0, "above"),
        ((0.01, 0.02, 0.049), -1.0, "below"),
        ((0.051, 0.2, 0.9), 1.0, "not significant"),
        ((0.01, 0.02, 0.051), 1.0, "depends on the test"),
        ((0.9, 0.9, 0.001), -1.0, "depends on the test"),
    ],
)
def test_a_verdict_is_that_of_all_tests(p_values: tuple[float, ...], mean: float, verdict: str) -> None:
    assert specifications.verdict(p_values, mean) == verdict
