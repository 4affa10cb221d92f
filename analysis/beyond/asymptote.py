"""Test accuracy against rollouts and against operations, and where training would end, by sigmoid fits.

The curve is that of "The Art of Scaling RL Compute" (2510.13786, eq. 1): R(c) = R_0 + (A - R_0) / (1 + (c_mid / c)^B),
where c is what was spent and R_0 the accuracy before training, which is measured. A is the asymptote, B the steepness,
and c_mid where half of A - R_0 is gained. Seeds are averaged before a fit, and drawn anew for its spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import reading, style, text
from analysis.figures import frames
from analysis.figures.curves import look, with_curves
from analysis.page import Page, Table
from analysis.products import ASYMPTOTE
from analysis.reading import NotRecorded
from analysis.statistics import Estimate
from analysis.study import Block, StudyFile
from bapo.errors import UserError
from bapo.store.files import STEPS

#: what a curve may be against -> the columns of steps.parquet that it adds up
SPENT = {"rollouts": ("fresh_rollouts", "regenerated_rollouts"), "flops": ("forward_flops", "backward_flops")}
#: what was spent -> the name of the axis
NAMES = {"rollouts": "responses generated", "flops": "operations, forward and backward"}
#: draws of the bootstrap over seeds
DRAWS = 400
#: the fewest checkpoints after step 0 that a fit takes; it has three parameters
FEWEST = 4
#: of the curve in one fit, far more than any needs; the library's own number is too small for curves without a bend
MOST_EVALUATIONS = 20_000


@dataclass(frozen=True)
class Fit:
    """R(c) of the module's text: start is R_0, asymptote A, steepness B, middle c_mid in the unit of c."""

    start: float
    asymptote: float
    steepness: float
    middle: float

    def at(self, spent: np.ndarray | float) -> np.ndarray:
        """Return the accuracy after ``spent``."""
        share = np.power(spent, self.steepness) / (np.power(spent, self.steepness) + self.middle**self.steepness)
        return self.start + (self.asymptote - self.start) * share


def fit(spent: np.ndarray, accuracy: np.ndarray) -> Fit:
    """Fit the sigmoid to one curve by least squares.

    Args:
        spent: what was spent at each of T checkpoints, from 0 on, rising [T].
        accuracy: fractions [T]; the first is R_0.

    Raises UserError without step 0, or for fewer than four checkpoints after it.
    """
    from scipy.optimize import curve_fit

    if len(spent) <= FEWEST or spent[0] != 0:
        raise UserError(
            f"a fit needs step 0 and {FEWEST} checkpoints, and as many in the first half; there are {len(spent)}"
        )
    start, end = float(accuracy[0]), float(spent[-1])

    def curve(share: np.ndarray, asymptote: float, steepness: float, middle: float) -> np.ndarray:
        return Fit(start, asymptote, steepness, middle).at(share)

    def slopes(share: np.ndarray, asymptote: float, steepness: float, middle: float) -> np.ndarray:
        """Return the derivatives of the curve by its three parameters [T, 3]; they save a third of a fit's time."""
        odds = np.power(middle / share, steepness)
        gained = 1 / (1 + odds)
        change = (asymptote - start) * gained**2 * odds
        return np.stack([gained, -change * np.log(middle / share), -change * steepness / middle], axis=1)

    bounds = ([0.0, 0.2, 1e-3], [1.0, 5.0, 20.0])  # they bound A, B, and c_mid as a share of what was spent
    guess = (min(1.0, float(accuracy.max()) + 0.02), 1.0, 0.3)
    options = {"p0": guess, "bounds": bounds, "jac": slopes, "max_nfev": MOST_EVALUATIONS}
    parameters, _ = curve_fit(curve, spent[1:] / end, accuracy[1:], **options)
    return Fit(start, float(parameters[0]), float(parameters[1]), float(parameters[2]) * end)


def prediction_error(spent: np.ndarray, accuracy: np.ndarray) -> float:
    """Return the end that :func:`fit` predicts from the first half, minus the end seen. Raises UserError as it does."""
    half = spent <= spent[-1] / 2
    return float(fit(spent[half], accuracy[half]).at(spent[-1])) - float(accuracy[-1])


@dataclass(frozen=True, eq=False)
class Curves:
    """Checkpoints of a method's seeds. spent, accuracy: [S, T]."""

    seeds: tuple[int, ...]
    spent: np.ndarray
    accuracy: np.ndarray

    def mean(self, seeds: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return (spent [T], accuracy [T]), averaged over these seeds, which may repeat; by default over all."""
        rows = [self.seeds.index(seed) for seed in (self.seeds if seeds is None else seeds)]
        return self.spent[rows].mean(axis=0), self.accuracy[rows].mean(axis=0)

    def measure(self, name: str, seeds: Sequence[int] | None = None) -> float:
        """Return the asymptote or, for another name, the prediction error, as a fraction. Raises UserError as fit."""
        mean = self.mean(seeds)
        return fit(*mean).asymptote if name == ASYMPTOTE else prediction_error(*mean)


@cache
def read(block: Block, method: str, study: StudyFile, against: str) -> Curves:
    """Read the evaluated checkpoints of a method, averaged over the benchmarks; against: a key of SPENT.

    Raises NotRecorded where checkpoints were not evaluated, or their cost was not recorded, and UserError where the
    benchmarks have other steps than each other.
    """
    cells = block.methods[method]
    if not all((cell.run / "curve").is_dir() for cell in cells):
        raise NotRecorded(f"{study.name}: the checkpoints of {method} have not been evaluated; name it under curves")
    curves = [reading.curves(cells, name, study) for name, _ in block.benchmarks]
    if any(curve.steps != curves[0].steps for curve in curves):
        raise UserError(f"{study.name}: the benchmarks of {method} were evaluated at other steps than each other")
    accuracy = np.mean([curve.accuracy.mean(axis=2) for curve in curves], axis=0)
    spent = []
    for cell in cells:
        steps = reading.table(cell, STEPS, study, ["step", *SPENT[against]]).set_index("step")
        sums = steps[list(SPENT[against])].sum(axis=1).cumsum()
        spent.append([float(sums[:step].iloc[-1]) if step else 0.0 for step in curves[0].steps])
    return Curves(tuple(cell.seed for cell in cells), np.array(spent), accuracy)


@cache
def _bootstrap(curves: Curves, measure: str) -> np.ndarray:
    """Return a measure of each draw of the seeds as a fraction [DRAWS]; curves with the same seeds have the same draws.

    They are kept, because the fits take nearly all of the time and a reference stands in many comparisons.
    """
    random, size = np.random.default_rng(0), len(curves.seeds)
    return np.array([curves.measure(measure, random.choice(curves.seeds, size).tolist()) for _ in range(DRAWS)])


def estimate(curves: Curves, minus: Curves | None, measure: str) -> Estimate:
    """Return a measure (:meth:`Curves.measure`) of ``curves``, less that of ``minus`` if not None, as a fraction.

    Its standard error is the standard deviation over a bootstrap of the seeds, which both sides draw together, times
    sqrt(S / (S - 1)), as draws of S seeds spread too little. It has S - 1 degrees of freedom. Raises UserError where
    the two have other seeds, or as :func:`fit`.
    """
    if minus is not None and minus.seeds != curves.seeds:
        raise UserError("two fits are compared by the same seeds; their runs have others")
    mean, draws = curves.measure(measure), _bootstrap(curves, measure)
    if minus is not None:
        mean, draws = mean - minus.measure(measure), draws - _bootstrap(minus, measure)
    seeds = len(curves.seeds)
    widening = math.sqrt(seeds / (seeds - 1)) if seeds > 1 else math.nan
    return Estimate(mean, float(np.std(draws, ddof=1)) * widening, seeds - 1)


def _parts(methods: Sequence[str]) -> list[Sequence[str]]:
    """Divide the methods evenly into panels that show their bands."""
    size = math.ceil(len(methods) / math.ceil(len(methods) / style.BANDS))
    return [methods[i : i + size] for i in range(0, len(methods), size)]


def _costs(block: Block, study: StudyFile) -> list[str]:
    """Return the keys of SPENT that all evaluated runs have, since evidence may lack operations.

    Raises NotRecorded where they have neither.
    """
    recorded, reason = [], None
    for against in SPENT:
        try:
            for method in block.methods:
                read(block, method, study, against)
            recorded.append(against)
        except NotRecorded as error:
            reason = error
    if reason and not recorded:
        raise reason
    return recorded


def figure(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw each method at its evaluated checkpoints, and the fit: a panel per task, model, cost and few methods.

    Raises UserError where no method has evaluated checkpoints, or one has too few.
    """
    study = with_curves(study)
    places = [
        (block, against, methods)
        for block in study.blocks
        for against in _costs(block, study)
        for methods in _parts(list(block.methods))
    ]
    fig, panels = style.grid(frames.caption(study, "accuracy_by_cost"), len(places), 2, 2.4, "test accuracy (%)")
    parts = []
    for axes, (block, against, methods) in zip(panels, places, strict=True):
        for method in methods:
            curves, line = read(block, method, study, against), look(block, method)
            spent, accuracy = curves.mean()
            values = 100 * np.stack([accuracy, curves.accuracy.min(axis=0), curves.accuracy.max(axis=0)])
            style.band(axes, spent, values, len(methods), label=block.plain_title(method), **line)
            fitted = 100 * fit(spent, accuracy).at(spent)
            axes.plot(spent, fitted, color=style.BLACK, linewidth=0.8, linestyle=":", zorder=5)
            columns = dict(zip(("accuracy", "lowest", "highest"), values, strict=True))
            rows = pd.DataFrame({"spent": spent, **columns, "fitted": fitted})
            parts.append(rows.assign(**block.keys(method), against=against))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel(NAMES[against])
        axes.set_title(block.title)
    style.legend(fig, panels, 4)
    return fig, pd.concat(parts, ignore_index=True)


def _rows(block: Block, study: StudyFile) -> Iterator[Mapping[str, Any]]:
    """Yield a row a method and cost, in percent and points. block: of methods with evaluated checkpoints."""
    for against in _costs(block, study):
        by_method = {m: read(block, m, study, against) for m in block.methods}
        reference = by_method.get(study.reference)
        for method, curves in by_method.items():
            sigmoid = fit(*curves.mean())
            differs = estimate(curves, reference, ASYMPTOTE) if reference and method != study.reference else None
            yield {
                **block.keys(method),
                "title": block.plain_title(method),
                "against": against,
                "seeds": len(curves.seeds),
                **text.columns("asymptote", estimate(curves, None, ASYMPTOTE), "low", "high"),
                "steepness": sigmoid.steepness,
                "middle": sigmoid.middle,
                **text.columns("prediction_error", estimate(curves, None, "prediction_error"), "low", "high"),
                **text.columns("minus_reference", differs, "low", "high"),
            }


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write asymptote_STUDY.csv, .md and .tex, and asymptote_STUDY_curves.pdf, .png, .svg and .csv.

    Raises UserError where no method has evaluated checkpoints.
    """
    study, numbers, tables = with_curves(study), [], []
    for block in study.blocks:
        rows = list(_rows(block, study))
        numbers += rows
        for against in dict.fromkeys(row["against"] for row in rows):
            cells = [
                {
                    "Method": row["title"],
                    "Asymptote, %": text.change(*text.ends(row, "asymptote"), text.number),
                    "Minus the reference": text.change(*text.ends(row, "minus_reference")),
                    "Steepness": text.number(row["steepness"]),
                    "Half of the gain at": text.operations(row["middle"]),
                    "End predicted from the first half, minus seen": text.change(*text.ends(row, "prediction_error")),
                }
                for row in rows
                if row["against"] == against
            ]
            tables.append(Table.of(f"{block.title}: against {against}", cells))
    page = Page.of(study, f"Asymptotes: {study.title}", tables, text.words(ASYMPTOTE, draws=DRAWS))
    name = f"{ASYMPTOTE}_{study.name}"
    with style.settings():
        pictures = style.save(*figure(study), out, f"{name}_curves", "Test accuracy by rollouts and by operations")
    return [*page.write(out, name, numbers), *pictures]
