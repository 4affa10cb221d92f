"""The runs that a claim is judged by: studies laid over each other, unfinished runs left out, files read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from analysis import paper, reading, results, statistics, text
from analysis.beyond import admission
from analysis.claims import BASE, CHANCE
from analysis.probes import Probes
from analysis.probes import read as read_probes
from analysis.reading import NotRecorded
from analysis.results import AVERAGE
from analysis.statistics import Side
from analysis.study import Base, Block, StudyFile, StudyRun
from bapo.store.files import SUMMARY

Made = TypeVar("Made")
Read = TypeVar("Read", reading.Outcomes, reading.Curve)


@dataclass(frozen=True, eq=False)
class ClaimView:
    """One task and model with the finished runs of it.

    cache: what was read of runs, once for all claims; problems: those of each set that a query reads, since the methods
    that it compares must have the same ones.
    """

    block: Block
    study: StudyFile
    cache: dict[tuple[str, ...], Any]
    problems: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def title(self, method: str) -> str:
        """Return a method's title, or words for BASE and CHANCE."""
        words = {BASE: "the base", CHANCE: "the unchanged base"}
        return words.get(method) or self.block.plain_title(method)

    def beside(self, a: str, x: float, b: str, y: float) -> str:
        """Return in words the number x of a method a and y of b."""
        x_words, y_words = (text.thousands(n) if 1e3 <= n < 1e9 else f"{n:.3g}" for n in (x, y))
        return f"{self.title(a)} {x_words}, {self.title(b)} {y_words}"

    def seeds(self, method: str) -> list[int]:
        return [c.seed for c in self.block.methods[method]]

    def _once(self, what: str, cells: Sequence[StudyRun | Base], make: Callable[[], Made]) -> Made:
        key = (what, *(str(c.run) for c in cells))
        made: Made = self.cache[key] if key in self.cache else self.cache.setdefault(key, make())
        return made

    def require_same(self, method: str, name: str, problems: tuple[str, ...]) -> None:
        """Raise NotRecorded where another method of the query has other problems of the set ``name``."""
        if self.problems.setdefault(name, problems) != problems:
            raise NotRecorded(f"the runs of {self.title(method)} have other problems of {name} than those beside them")

    def _benchmarks(
        self, method: str, column: str, cells: Sequence[StudyRun | Base], read: Callable[..., Read]
    ) -> list[Read]:
        """Read one benchmark (its name or the paper's column that it stands for), or each."""
        names = [name for name, _ in self.block.benchmarks if column in (AVERAGE, name, self.block.roles.get(name))]
        if not names:
            raise NotRecorded(f"there is no benchmark {column} at this scale")
        makers = {name: partial(read, cells, name, self.study) for name in names}
        series = [self._once(f"{read.__name__} {name}", cells, make) for name, make in makers.items()]
        for name, one in zip(names, series, strict=True):
            self.require_same(method, name, one.problems)
        return series

    def accuracy(self, method: str, column: str = AVERAGE) -> Side:
        """Return the problems' means [S, n] of one benchmark (its name or the paper's), or of each.

        Raises NotRecorded for a base without evaluation, for no such benchmark, and as :meth:`require_same`.
        """
        base = self.block.base
        if method == BASE and base is None:
            raise NotRecorded("the base model has not been evaluated")
        cells: Sequence[StudyRun | Base] = (base,) if method == BASE and base else self.block.methods[method]
        tables = [o.accuracy for o in self._benchmarks(method, column, cells, reading.evaluations)]
        return Side(tables, () if method == BASE else self.seeds(method))

    def margin(self, column: str) -> float:
        """Return the margin of equivalence in points; NaN where GRPO or its base is not evaluated here."""
        try:
            ends = [points(self.accuracy(m, column).tables) for m in (paper.REFERENCE, BASE)]
        except (KeyError, NotRecorded):
            return float("nan")
        return results.margin(self.block, ends[0] - ends[1])

    def curves(self, method: str) -> list[reading.Curve]:
        """Return the kept checkpoints of all seeds on each benchmark. Raises NotRecorded where a seed lacks them."""
        cells = self.block.methods[method]
        if not all((c.run / "curve" / SUMMARY).exists() for c in cells):
            raise NotRecorded(f"the checkpoints of {self.title(method)} have not been evaluated (curve/)")
        return self._benchmarks(method, AVERAGE, cells, reading.curves)

    def tables(self, method: str, name: str, columns: Sequence[str]) -> dict[int, pd.DataFrame]:
        """Return columns of one table of each seed. Raises NotRecorded where the runs do not record one of them."""
        frames = {}
        for cell in self.block.methods[method]:
            frame = self._once(name, [cell], partial(reading.table, cell, name, self.study))
            frames[cell.seed] = reading.select(frame, columns, cell.run, name, self.study)
        return frames

    def totals(self, method: str) -> dict[int, dict[str, float]]:
        """Return the cost ledger of each seed (summary.json)."""
        cells = self.block.methods[method]
        summaries = {c.seed: self._once(SUMMARY, [c], partial(reading.summary, c.run, self.study)) for c in cells}
        return {seed: summary.get("totals", {}) for seed, summary in summaries.items()}

    def admissions(self, method: str) -> list[dict[str, Any]]:
        """Return X2's admission beside that of an unchanged policy (:func:`analysis.beyond.admission.admissions`)."""
        runs = partial(admission.of_method, self.block, method, self.study)
        return self._once("admissions", self.block.methods[method], lambda: admission.admissions(runs()))

    def probes(self, method: str, probed: str) -> Probes:
        """Return the probes of a method on the set ``probed``.

        Raises NotRecorded where there is no table [S, n] of them at step 0 and a later step.
        """
        read = partial(read_probes, self.block, method, self.study, probed)
        probes = self._once(f"probe {probed}", self.block.methods[method], read)
        if len(probes.steps) < 2 or probes.steps[0] != 0:
            raise NotRecorded("the probe has no step 0 and a later one in common")
        if not probes.same_prompts:
            raise NotRecorded("the seeds were probed on different prompts")
        self.require_same(method, f"the probed set {probed}", probes.prompts[0])
        return probes


def points(tables: Sequence[np.ndarray]) -> float:
    """Return the mean accuracy in points: of each benchmark, then of the benchmarks."""
    return 100 * statistics.mean_over_seeds(*tables).mean
