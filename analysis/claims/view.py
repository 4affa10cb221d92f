"""The runs that a claim is judged by: studies laid over each other, unfinished runs left out, files read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from analysis import paper, reading, results, statistics, text
from analysis.beyond import admission
from analysis.claims import BASE, CHANCE
from analysis.claims.measures import NotTestable
from analysis.probes import Probes
from analysis.probes import read as read_probes
from analysis.results import AVERAGE
from analysis.statistics import Side
from analysis.study import Base, Block, Cell, Study, load
from bapo.store.files import SUMMARY

if TYPE_CHECKING:
    import pandas as pd

Made = TypeVar("Made")
Read = TypeVar("Read", reading.Outcomes, reading.Curve)


def load_studies(files: Sequence[Path]) -> dict[str, Study]:
    """Read studies by their name, or their file's. A study's target is the one that makes its runs."""
    studies = {}
    for path in files:
        study = load(path)
        name = study.name or path.stem
        studies[name] = replace(study, target=f"runs_{name}")
    return studies


def merged(studies: Sequence[Study]) -> Study:
    """Return one study with the runs of all: a block a task and model, each run once.

    A method that is tuned in one study and not in another is two methods: the runs of the first study count.
    """
    blocks: dict[tuple[str, str], Block] = {}
    for block in (b for s in studies for b in s.blocks):
        known = blocks.get((block.task, block.model))
        if known:
            methods = dict(known.methods)
            for name, cells in block.methods.items():
                if name in methods and methods[name][0].tuned != cells[0].tuned:
                    continue
                by_seed = {c.seed: c for c in (*methods.get(name, ()), *cells)}
                methods[name] = tuple(by_seed[s] for s in sorted(by_seed))
            block = replace(known, base=known.base or block.base, methods=methods)
        blocks[(block.task, block.model)] = block
    first = studies[0]
    return replace(first, blocks=tuple(blocks.values()), target=" ".join(s.target for s in studies))


def pruned(block: Block, evaluated: bool) -> Block:
    """Return the block with finished runs only. evaluated: the evaluation must be finished too."""
    kept = {m: tuple(c for c in cells if finished(c, evaluated)) for m, cells in block.methods.items()}
    return replace(block, methods={m: cells for m, cells in kept.items() if cells})


def finished(cell: Cell | Base, evaluated: bool) -> bool:
    needed = [cell.run / "eval"] if isinstance(cell, Base) else [cell.run, cell.run / "eval"]
    return all((folder / SUMMARY).exists() for folder in (needed if evaluated else needed[:1]))


@dataclass(frozen=True, eq=False)
class View:
    """One task and model with the finished runs of it.

    kept: what was read of runs, once for all claims; problems: those of every set that a query looked at; what it
    compares must have the same ones.
    """

    block: Block
    study: Study
    kept: dict[tuple[str, ...], Any]
    problems: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def title(self, method: str) -> str:
        known = {BASE: "the base", CHANCE: "the unchanged base"}
        return known.get(method) or self.block.plain_title(method)

    def beside(self, a: str, x: float, b: str, y: float) -> str:
        """Return the numbers of two methods in words."""
        x_words, y_words = (text.thousands(n) if 1e3 <= n < 1e9 else f"{n:.3g}" for n in (x, y))
        return f"{self.title(a)} {x_words}, {self.title(b)} {y_words}"

    def seeds(self, method: str) -> list[int]:
        return [c.seed for c in self.block.methods[method]]

    def _once(self, what: str, cells: Sequence[Cell | Base], make: Callable[[], Made]) -> Made:
        key = (what, *(str(c.run) for c in cells))
        if key not in self.kept:
            self.kept[key] = make()
        made: Made = self.kept[key]
        return made

    def require_same(self, method: str, name: str, problems: tuple[str, ...]) -> None:
        """Raises NotTestable where another method of the query has other problems of the set ``name``."""
        if self.problems.setdefault(name, problems) != problems:
            raise NotTestable(f"the runs of {self.title(method)} have other problems of {name} than those beside them")

    # ------------------------------------------------------------------ files

    def _benchmarks(
        self, method: str, column: str, cells: Sequence[Cell | Base], read: Callable[..., Read]
    ) -> list[Read]:
        """Read one benchmark (its name or the paper's column that it stands for), or each."""
        names = [name for name, _ in self.block.benchmarks if column in (AVERAGE, name, self.block.roles.get(name))]
        if not names:
            raise NotTestable(f"there is no benchmark {column} at this scale")
        found = [self._once(f"{read.__name__} {name}", cells, partial(read, cells, name, self.study)) for name in names]
        for name, one in zip(names, found, strict=True):
            self.require_same(method, name, one.problems)
        return found

    def accuracy(self, method: str, column: str = AVERAGE) -> Side:
        """Problems' means [S, n] of one benchmark or of each."""
        base = self.block.base
        if method == BASE and (base is None or not finished(base, True)):
            raise NotTestable("the base model has not been evaluated")
        cells: Sequence[Cell | Base] = (base,) if method == BASE and base else self.block.methods[method]
        tables = [o.correct.mean(axis=2) for o in self._benchmarks(method, column, cells, reading.evaluations)]
        return Side(tables, () if method == BASE else self.seeds(method))

    def margin(self, column: str) -> float:
        """Return the margin of equivalence in points; NaN where GRPO or its base is not evaluated here."""
        try:
            ends = [points(self.accuracy(m, column).tables) for m in (paper.REFERENCE, BASE)]
        except (KeyError, NotTestable):
            return float("nan")
        return results.margin(self.block, ends[0] - ends[1])

    def curves(self, method: str) -> list[reading.Curve]:
        """Return the kept checkpoints of all seeds on each benchmark."""
        cells = self.block.methods[method]
        if not all((c.run / "curve" / SUMMARY).exists() for c in cells):
            raise NotTestable(f"the checkpoints of {self.title(method)} have not been evaluated (curve/)")
        return self._benchmarks(method, AVERAGE, cells, reading.curves)

    def tables(self, method: str, name: str, columns: Sequence[str]) -> dict[int, pd.DataFrame]:
        """Columns of one table of each seed. Raises NotTestable where the runs do not record one of them."""
        frames = {}
        for cell in self.block.methods[method]:
            frame = self._once(name, [cell], partial(reading.table, cell, name, self.study))
            missing = [c for c in columns if c not in frame]
            if missing:
                raise NotTestable(f"{cell.run / name} has no column '{missing[0]}'")
            frames[cell.seed] = frame[list(columns)]
        return frames

    def totals(self, method: str) -> dict[int, dict[str, float]]:
        """Return the cost ledger of each seed (summary.json)."""
        cells = self.block.methods[method]
        summaries = {c.seed: self._once(SUMMARY, [c], partial(reading.summary, c.run, self.study)) for c in cells}
        return {seed: summary.get("totals", {}) for seed, summary in summaries.items()}

    def admissions(self, method: str) -> list[admission.Admission]:
        """X2's admission beside that of an unchanged policy. Raises NotTestable where nothing was re-evaluated."""

        def measured() -> list[admission.Admission]:
            runs = admission.of_method(self.block, method, self.study)
            return admission.admissions(runs) if runs else []

        found = self._once("admissions", self.block.methods[method], measured)
        if not found:
            raise NotTestable(f"the runs of {self.title(method)} re-evaluate no stored prompt")
        return found

    def config(self, method: str) -> dict[str, Any]:
        return reading.config(self.block.methods[method][0], self.study)

    def setting(self, method: str, section: str, key: str) -> Any:
        """Return a value of a method's configuration. Raises NotTestable where it has none."""
        value = self.config(method).get(section, {}).get(key)
        if value is None:
            raise NotTestable(f"{self.title(method)}: config.yaml has no {section}.{key}")
        return value

    def probes(self, method: str, probed: str) -> Probes:
        return self._once(
            f"probe {probed}", self.block.methods[method], lambda: read_probes(self.block, method, self.study, probed)
        )


def points(tables: Sequence[np.ndarray]) -> float:
    """Return the mean accuracy in points: of each benchmark, then of the benchmarks."""
    return 100 * statistics.mean_over_seeds(*tables).mean
