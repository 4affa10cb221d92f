"""False findings, power and coverage of the tests on docs/specifications.md: ``python benchmarks/coverage.py [DRAWS]``.

Points of accuracy on 800 problems. A row has its own effect on each problem (standard deviation 2.5), a training seed
shifts a run (1 point), and a run's accuracy on a problem has noise from its samples and from training (14 points).
"""

from __future__ import annotations

import sys

import numpy as np

from analysis import statistics
from analysis.claims.measures import mean_of_bases, of_result
from analysis.statistics import Side

PROBLEMS, OF_PROBLEM, NOISE = 800, 2.5, 14.0
Drawn = dict[str, np.ndarray]


def tested(random: np.random.Generator, rows: int, seeds: int, lead: float, spread: float, bases: float) -> Drawn:
    """Return the estimates and p-values of one draw by test, of ``rows`` minus a reference with as many ``seeds``.

    lead: of the first row, in points; spread: of the last row's training seeds, a standard deviation; bases: of base
    models in the seeds' place, which all rows share, 0 where they are seeds of one.
    """
    shared = random.normal(0, 30, PROBLEMS) + (random.normal(0, bases, (seeds, 1)) if bases else 0.0)
    sides = []
    for row in range(rows + 1):
        deviation = spread if row == rows else 1.0
        table = shared + random.normal(0, OF_PROBLEM, PROBLEMS) + random.normal(0, deviation, (seeds, 1))
        table = table + random.normal(0, NOISE, (seeds, PROBLEMS)) + (lead if row == 1 else 0.0)
        sides.append(Side([table], list(range(seeds))))
    reference, others = sides[0], sides[1:]
    paired = [statistics.difference(side, reference).tested for side in others]
    pooled = [statistics.pooled(sides, side, reference, blocks=bases > 0) for side in others]
    if bases:
        each = [[*statistics.difference(side, reference).by_seed.values()] for side in others]
        second = {"ranks": statistics.holm([statistics.signed_ranks(of) for of in each])}
    else:
        second = {"unpaired": statistics.holm([statistics.unpaired(side, reference).tested.p for side in others])}
    return {"paired": statistics.holm([e.p for e in paired]), **second, "pooled": statistics.dunnett(pooled)}


def rates(draws: int, rows: int, seeds: int, lead: float, spread: float = 1.0, bases: float = 0.0) -> None:
    """Print how often in ``draws`` each test finds the lead, and one that is not there. Others as above."""
    random = np.random.default_rng(rows)
    drawn = [tested(random, rows, seeds, lead, spread, bases) for _ in range(draws)]
    for test in drawn[0]:
        found = np.mean([each[test][0] < 0.05 for each in drawn])
        false = np.mean([(each[test][1:] < 0.05).any() for each in drawn])
        of = f"{rows} rows, {seeds} {'base models' if bases else 'seeds'}, spread {spread:g}"
        print(f"{of}: {test:<9} {lead:g} points {found:.0%}, false {false:.0%}")


def coverage(draws: int, bases: int, seeds: int, between: float) -> None:
    """Print how often in ``draws`` intervals over ``bases`` of ``seeds`` runs hold the truth. between: sd of bases."""
    random, new, before = np.random.default_rng(bases), 0, 0
    for _ in range(draws):
        table = random.normal(0, between, (bases, 1, 1)) + random.normal(0, 2**0.5, (bases, seeds, 1))
        table = table + random.normal(0, 2**0.5 * OF_PROBLEM, PROBLEMS)
        table = table + random.normal(0, 2**0.5 * NOISE, (bases, seeds, PROBLEMS))
        pooled = statistics.over_bases([[base] for base in table])
        wider = mean_of_bases([of_result(statistics.mean_over_seeds(base), "points") for base in table]).estimate
        new, before = (n + (e.low < 0 < e.high) for n, e in ((new, pooled), (before, wider)))
    print(f"{bases} bases, {seeds} seeds, {between:g} between: {new / draws:.1%}, wider of two {before / draws:.1%}")


def new_angles(draws: int, bases: int, lead: float, of_unit: float) -> None:
    """Print how often the intervals for new angles hold the lead, and exclude 0. of_unit: sd of a combination's effect.

    The 700 problems show 138 combinations of angles, six of which have a third of the problems, as on geometry.
    """
    random, hold, found = np.random.default_rng(bases), 0, 0
    units = np.repeat(np.arange(138), [39] * 6 + [4] * 70 + [3] * 62)
    for _ in range(draws):
        table = lead + random.normal(0, of_unit, 138)[units] + random.normal(0, 2**0.5, (bases, 1))
        table = table + random.normal(0, 2**0.5 * NOISE, (bases, len(units)))
        e = statistics.mean_over_seeds(statistics.by_unit(table, units.astype(str).tolist())).tested
        hold, found = hold + (e.low < lead < e.high), found + (e.low > 0 or e.high < 0)
    print(f"new angles, {of_unit:g} points between: {lead:g} points found {found / draws:.0%}, held {hold / draws:.1%}")


def main(draws: int) -> None:
    for spread in (1.0, 3.0):
        rates(draws, 10, 8, 1.8, spread)
    rates(draws, 4, 12, 1.2)  # of table1_seeds
    rates(draws, 6, 24, 1.0, bases=3.0)  # of prompts
    for between in (0.0, 0.3, 0.6, 1.0, 1.2, 2.0):
        coverage(draws, 3, 8, between)
    for lead in (0.0, 2.0):
        for of_unit in (2.0, 8.0):
            new_angles(draws, 24, lead, of_unit)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
