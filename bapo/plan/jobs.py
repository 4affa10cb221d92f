"""The jobs of a target of the workflow, with what each costs and whether it is done, before anything runs.

Nothing here imports torch or Snakemake. What is done is told from the identities in the summaries, as Snakemake's
parameters do; tests/plan compares the jobs with a dry run's.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from bapo.errors import UserError, unknown
from bapo.experiments import budgets, places, products
from bapo.experiments.cells import Cell
from bapo.experiments.identity import base_identity, data_identity, identity_of_curve, identity_of_evaluation
from bapo.experiments.places import options
from bapo.experiments.products import Product
from bapo.experiments.settings import Settings
from bapo.experiments.studies import study_of
from bapo.experiments.targets import of_target
from bapo.plan import costs as plan_costs
from bapo.plan.costs import Cost
from bapo.store.files import SUMMARY, read_json
from bapo.sweeps import files as sweep_files
from bapo.sweeps import study as sweep_studies
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
    """What a target takes: the names of studies whose runs and curves it shows, its sweeps, and its products' files."""

    runs: list[str]
    curves: list[str]
    sweeps: list[Sweep]
    files: list[str]  # one of each product, study file and trials file, in the scale's folder


# ------------------------------------------------------------------------------------------------ the target


def targets() -> list[str]:
    """Return every target: those of all studies together, each study's own, its runs alone, and the sweeps."""
    numbered = [table.name for table in products.TABLES.values() if table.number]
    several = ["all", "report", "claims", "figures", "tables", *numbered, "theory", "comparisons"]
    studies = options("study")
    sweeps = ["sweep", *(f"sweep_{name}" for name in sweep_files.names())]
    return [*several, *(n for n in studies if n not in several), *(f"runs_{n}" for n in studies), *sweeps]


def wanted(target: str, settings: Settings) -> Wanted:
    """Return what ``target`` takes. Raises UserError with the targets that exist."""
    if target not in targets():
        raise UserError(unknown(f"plan {target}", "no such target", target, targets()))
    sweeps = sweep_files.names(settings.scale) if target == "sweep" else []
    asked = of_target(target, settings.scale, sweeps, settings.home)
    made: list[Product] = [p for product in asked for p in (*product.shown, product)]
    alone = [target.removeprefix("runs_")] if target.startswith("runs_") else []
    inputs = [file for p in made if not p.shown for file in p.inputs]
    return Wanted(
        runs=list(dict.fromkeys([*alone, *(study for p in made for study in p.studies)])),
        curves=list(dict.fromkeys([*alone, *(study for p in made if p.curves for study in p.studies)])),
        sweeps=[sweep_files.load(p.sweep, settings) for p in made if p.sweep],
        files=list(dict.fromkeys([*(next(iter(p.files)) for p in made), *inputs])),
    )


# ------------------------------------------------------------------------------------------------ the jobs


def jobs(target: str, settings: Settings) -> list[Job]:
    """Return every job of ``target``, done or not. Raises UserError for what the names or files have wrong."""
    want = wanted(target, settings)
    studies = {name: study_of(name, settings) for name in want.runs}
    trained = list(dict.fromkeys(cell for study in studies.values() for cell in study.cells))
    evaluated = list(dict.fromkeys(cell for study in studies.values() if study.evaluated for cell in study.cells))
    curved = dict.fromkeys(cell for name in want.curves for cell in studies[name].curved)
    listed = _List(settings)
    cells = dict.fromkeys([*trained, *(cell for sweep in want.sweeps for cell in sweep.reused_cells())])
    for cell in trained:  # a run that ends with another's budget needs that run
        while (budget := listed.config(cell).train.budget).unit != "steps":
            cell = dataclasses.replace(cell, method=budget.like)
            cells[cell] = None
    for cell in {cell.task: cell for cell in reversed(cells)}.values():
        listed.data(cell)
    models = {(cell.task, cell.model): cell for cell in reversed(cells)}
    for key, cell in reversed(models.items()):
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
    paths = [settings.home / file for file in want.files]
    return [*listed.jobs, *(Job("analysis", path, plan_costs.analysis(), whole and path.exists()) for path in paths)]


class _List:
    """The jobs before the analysis, told from their summaries whether they are done: what one builds on comes first."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.home, self.jobs = settings, settings.home, []
        self.done: set[Path] = set()  # folders

    def config(self, cell: Cell) -> DictConfig:
        """Return the configuration of the cell's runs, whatever the seed."""
        return plan_costs.of_run(self.settings, cell.task, cell.model, cell.method)

    def data(self, cell: Cell) -> None:
        start = partial(plan_costs.of_model, self.settings, cell.task, "")
        folder = places.data_folder(self.home, cell.task)
        self._add("data", folder, plan_costs.data(self.config(cell)), lambda: data_identity(start()))

    def base(self, cell: Cell, evaluate: bool) -> None:
        """evaluate: also before any training."""
        start = partial(plan_costs.of_model, self.settings, cell.task, cell.model)
        folder, config = places.base_folder(self.home, cell.task, cell.model), self.config(cell)
        self._add("base", folder, plan_costs.base(config), lambda: base_identity(start()))
        if evaluate:
            self._evaluation(folder, config, start)

    def train(self, cell: Cell) -> None:
        cost = plan_costs.train_of(self.settings, cell.task, cell.model, cell.method)
        self._add("train", self._run(cell), cost, lambda: budgets.identity(self.settings.run(cell)))

    def evaluate(self, cell: Cell, curve: bool = False) -> None:
        self._evaluation(self._run(cell), self.config(cell), partial(self.settings.run, cell), curve)

    def slots(self, sweep: Sweep) -> None:
        """At most every seed of every trial is trained: some are pruned, some are runs that are there."""
        cost = plan_costs.train_of(self.settings, sweep.task, sweep.model, sweep.file.method).times(len(sweep.seeds))
        for path in sweep_studies.slot_files(sweep, self.settings):
            self.jobs.append(Job("sweep", path, cost, path.exists()))

    def _run(self, cell: Cell) -> Path:
        return places.run_folder(self.home, **vars(cell))

    def _evaluation(self, home: Path, config: DictConfig, exact: Callable[[], DictConfig], curve: bool = False) -> None:
        """Add the evaluation, or the curve, of what lies in ``home``. config: for costs; exact: for the identity."""
        folder = home / ("curve" if curve else "eval")

        def identity() -> str:
            """Identify the evaluation of the checkpoints that the summary names."""
            summary = read_json(folder / SUMMARY)
            if not curve:
                return identity_of_evaluation(exact(), summary["checkpoint_sha256"] or summary["checkpoint"])
            from bapo.evaluation.curve import splits

            checkpoints = {int(step): fingerprint for step, fingerprint in summary["checkpoints"].items()}
            return identity_of_curve(exact(), checkpoints, splits(exact()))

        kind = "curve" if curve else "evaluate"
        self._add(kind, folder, plan_costs.evaluate(config, curve), identity, ready=home in self.done)

    def _add(self, kind: str, folder: Path, cost: Cost, identity: Callable[[], str], ready: bool = True) -> None:
        """identity: what the summary must say, asked for only where there is one: Hydra takes its time."""
        output, done = folder / SUMMARY, False
        if ready and output.exists():
            with contextlib.suppress(UserError, KeyError):  # a damaged summary is no summary
                done = read_json(output).get("identity") == identity()
        if done:
            self.done.add(folder)
        self.jobs.append(Job(kind, output, cost, done))
