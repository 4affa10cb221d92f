"""The jobs of a target of the workflow, with what each costs and whether it is done, before anything runs.

Nothing here imports torch or Snakemake. What is done is told from the identities in the summaries, as Snakemake's
parameters do; tests/test_plan.py compares the jobs with a dry run's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from bapo.errors import UserError, unknown
from bapo.experiments import budgets, studies
from bapo.experiments.cells import Cell
from bapo.experiments.identity import base_identity, data_identity, identity_of_curve, identity_of_evaluation
from bapo.experiments.places import options
from bapo.experiments.settings import Settings
from bapo.experiments.studies import study_of
from bapo.experiments.targets import BEYOND, TABLES, comparison_file, shows_curves
from bapo.plan import costs as plan_costs
from bapo.plan.costs import Cost
from bapo.store.files import SUMMARY, read_json
from bapo.sweeps import collect
from bapo.sweeps import files as sweep_files
from bapo.sweeps.files import Sweep

KINDS = ("data", "base", "train", "evaluate", "curve", "sweep", "analysis")


@dataclass(frozen=True)
class Job:
    """One job of the workflow. output: the file that says that it is done."""

    kind: str
    output: Path
    cost: Cost
    done: bool


@dataclass
class Wanted:
    """What a target is made of. runs, curves: names of studies; products: file -> the studies whose runs it shows."""

    runs: dict[str, None] = field(default_factory=dict)
    curves: dict[str, None] = field(default_factory=dict)
    products: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    sweeps: list[Sweep] = field(default_factory=list)

    def product(self, path: Path, *names: str, curves: bool = False) -> None:
        self.products[path] = names
        self.runs |= dict.fromkeys(names)
        self.curves |= dict.fromkeys(names if curves else ())


# ------------------------------------------------------------------------------------------------ the target


def targets() -> list[str]:
    """Every target: those of all studies together, each study's own, its runs alone, and the sweeps."""
    every = options("study")
    own = ["all", "report", "claims", "figures", "tables", *TABLES[:4], "theory", "comparisons"]
    sweeps = ["sweep", *(f"sweep_{name}" for name in sweep_files.names())]
    return [*own, *(n for n in every if n not in own), *(f"runs_{n}" for n in every), *sweeps]


def wanted(target: str, settings: Settings) -> Wanted:
    """What ``target`` is made of. Raises UserError with those that exist."""
    if target not in targets():
        raise UserError(unknown(f"plan {target}", "no such target", target, targets()))
    found, home = Wanted(), Path(settings.results, settings.folder())
    undrawn = target in (*BEYOND, *TABLES[1:]) or target.startswith(("runs_", "sweep"))
    drawn = {} if undrawn else studies.figures(settings.scale)

    def figures(names: Iterable[str], curves: bool) -> None:
        for figure, study in drawn.items():
            if study in names and (curves or not shows_curves(figure)):
                found.product(home / "figures" / f"{figure}.csv", study, curves=shows_curves(figure))

    def comparison(name: str) -> None:
        found.product(home / "tables" / comparison_file(name), name)

    def table(name: str) -> None:
        found.product(home / "tables" / f"{name}.md", "table1", curves=name == "checkpoint_choice")

    def sweep(name: str) -> None:
        found.sweeps.append(sweep_files.load(name, settings))
        found.products |= {home / "sweeps" / name / file: () for file in (collect.TRIALS, "robustness.md")}

    whole = target in ("all", "report")
    if target == "sweep":
        for name in sweep_files.at_scale(settings.scale):
            sweep(name)
    elif target.startswith("sweep_"):
        sweep(target.removeprefix("sweep_"))
    elif target.startswith("runs_"):
        found.runs[target.removeprefix("runs_")] = found.curves[target.removeprefix("runs_")] = None
    elif target == "comparisons":
        for name in studies.at_scale(BEYOND, settings.scale):
            comparison(name)
    elif target in BEYOND:
        comparison(target)
    elif target in options("study"):  # table1 too: its figures that need no curve
        if target == "table1":
            table(target)
        figures([target], curves=target != "table1")
    elif target in TABLES or target == "theory":
        table("theory_monitor" if target == "theory" else target)
    for name in TABLES if whole or target == "tables" else ():
        table(name)
    if whole or target == "figures":
        figures(drawn.values(), curves=True)
    if whole or target == "claims":
        from analysis.claims import entries

        found.product(home / "claims.md", *studies.at_scale(entries.studies_named(), settings.scale))
    if whole:
        found.product(home / "report.html")
    found.products |= {home / "studies" / f"{n}.json": () for n in {n for ns in found.products.values() for n in ns}}
    return found


# ------------------------------------------------------------------------------------------------ the jobs


def jobs(target: str, settings: Settings) -> list[Job]:
    """Every job of ``target``, those that are done too. Raises UserError for what the names or files have wrong."""
    want = wanted(target, settings)
    found = {name: study_of(name, settings) for name in want.runs}
    evaluated = list(dict.fromkeys(cell for study in found.values() for cell in study.cells))
    curved = dict.fromkeys(c for n in want.curves for c in found[n].cells if c.method in found[n].curves)
    listed = _List(settings)
    cells = dict.fromkeys([*evaluated, *(cell for sweep in want.sweeps for cell in collect.needed_cells(sweep))])
    for cell in evaluated:  # a run that ends with another's budget needs that run
        while (budget := listed.config(cell).train.budget).unit != "steps":
            cell = Cell(cell.task, cell.model, budget.like, cell.seed)
            cells[cell] = None
    for task in dict.fromkeys(cell.task for cell in cells):
        listed.data(next(cell for cell in cells if cell.task == task))
    of_models = {(cell.task, cell.model): cell for cell in reversed(cells)}
    for key, cell in reversed(of_models.items()):
        listed.base(cell, evaluate=any((c.task, c.model) == key for c in evaluated))
    for cell in cells:
        listed.train(cell)
    for cell in evaluated:
        listed.evaluate(cell)
    for cell in curved:
        listed.evaluate(cell, curve=True)
    for sweep in want.sweeps:
        listed.slots(sweep)
    whole = all(job.done for job in listed.jobs)
    products = [Job("analysis", path, plan_costs.analysis(), whole and path.exists()) for path in want.products]
    return [*listed.jobs, *products]


class _List:
    """The jobs before the analysis, told from their summaries whether they are done: what one builds on comes first."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.jobs = settings, []
        self.home = Path(settings.results, settings.folder())
        self.done: set[Path] = set()  # folders

    def config(self, cell: Cell) -> DictConfig:
        """As far as costs go."""
        return plan_costs.of_run(self.settings, cell.task, cell.model, cell.method)

    def data(self, cell: Cell) -> None:
        folder = self.home / cell.task / "data"
        identity = partial(self._of_start, data_identity, cell.task, "")
        self._add("data", folder, plan_costs.data(self.config(cell)), identity)

    def base(self, cell: Cell, evaluate: bool) -> None:
        """evaluate: also before any training."""
        folder, config = self.home / cell.task / cell.model / "base", self.config(cell)
        identity = partial(self._of_start, base_identity, cell.task, cell.model)
        self._add("base", folder, plan_costs.base(config), identity)
        if evaluate:
            start = partial(plan_costs.of_model, self.settings, cell.task, cell.model)
            self._add("evaluate", folder / "eval", plan_costs.evaluate(config), _evaluation(folder / "eval", start))

    def train(self, cell: Cell) -> None:
        cost = plan_costs.train_of(self.settings, cell.task, cell.model, cell.method)
        self._add("train", self._run(cell), cost, lambda: budgets.identity(self.settings.run(cell)))

    def evaluate(self, cell: Cell, curve: bool = False) -> None:
        folder = self._run(cell) / ("curve" if curve else "eval")
        cost = plan_costs.evaluate(self.config(cell), curve)
        self._add("curve" if curve else "evaluate", folder, cost, _evaluation(folder, partial(self.settings.run, cell)))

    def slots(self, sweep: Sweep) -> None:
        """At most every seed of every trial is trained: some are pruned, some are runs that are there."""
        cost = plan_costs.train_of(self.settings, sweep.task, sweep.model, sweep.method).times(len(sweep.seeds))
        for path in collect.slot_files(sweep, self.settings):
            self.jobs.append(Job("sweep", path, cost, path.exists()))

    def _run(self, cell: Cell) -> Path:
        """The run directory (bapo.experiments.places.run_directory, less the configuration)."""
        return self.home / cell.task / cell.model / cell.method / f"seed{cell.seed}"

    def _of_start(self, identity: Callable[[DictConfig], str], task: str, model: str) -> str:
        return identity(plan_costs.of_model(self.settings, task, model))

    def _add(self, kind: str, folder: Path, cost: Cost, identity: Callable[[], str]) -> None:
        """identity: what the summary must say, asked for only where there is one: Hydra takes its time."""
        output, done = folder / SUMMARY, False
        ready = kind not in ("evaluate", "curve") or folder.parent in self.done
        if ready and output.exists():
            with contextlib.suppress(UserError, KeyError):  # a damaged summary is no summary
                done = read_json(output).get("identity") == identity()
        if done:
            self.done.add(folder)
        self.jobs.append(Job(kind, output, cost, done))


def _evaluation(folder: Path, config: Callable[[], DictConfig]) -> Callable[[], str]:
    """The identity that an evaluation, or a curve, of the checkpoints that its summary names would have."""

    def identity() -> str:
        from bapo.evaluation import curve

        asked, before = config(), read_json(folder / SUMMARY)
        if folder.name == curve.FOLDER:
            checkpoints = {int(step): fingerprint for step, fingerprint in before["checkpoints"].items()}
            return identity_of_curve(asked, checkpoints, curve.splits(asked))
        return identity_of_evaluation(asked, before["checkpoint_sha256"] or before["checkpoint"])

    return identity
