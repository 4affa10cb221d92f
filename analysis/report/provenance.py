"""Where every run comes from: configuration, manifest, environment, cost. Reads small files only, no table."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.sharing.places import within
from analysis.study import Base, Cell, StudyFile, read_file
from analysis.tables.table2 import QUANTITIES
from analysis.text import flat
from bapo.errors import UserError
from bapo.store.files import CONFIG, MANIFEST, SUMMARY, read_json

#: the method of the model before training
BASE = "base"
#: the name of the row of all runs
TOTAL = ("All", "", "")
#: of a manifest, what many runs share; kept once
SHARED = ("code", "packages", "hardware")


@dataclass
class Run:
    """One run of the studies. configuration, environment: places in Provenance's lists; None where there is none."""

    folder: str
    task: str
    model: str
    method: str
    seed: int | None  # None: a base model
    title: str
    task_title: str
    model_title: str
    studies: list[str]
    status: str = "not run yet"
    configuration: int | None = None
    environment: int | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    accuracy: dict[str, float] = field(default_factory=dict)  # benchmark -> share of correct samples
    evaluation_seconds: float = 0.0
    reference: int | None = None  # the run that this one is compared with at first

    @property
    def finished(self) -> bool:
        return self.status == "finished"


@dataclass
class Provenance:
    """configurations: flat {key: value as JSON}, without the seed, each distinct one once; environments likewise."""

    runs: list[Run] = field(default_factory=list)
    configurations: list[dict[str, str]] = field(default_factory=list)
    environments: list[dict[str, Any]] = field(default_factory=list)
    studies: list[StudyFile] = field(default_factory=list)

    def having(self, environment: int) -> int:
        return sum(r.environment == environment for r in self.runs)


def collect(results: Path) -> Provenance:
    """Return every run that a study file of the results folder names, in the order of the studies; each run once.

    A run that is not where its study says, because the results were moved or are read from elsewhere, is looked for in
    ``results``. Raises UserError for a study file that is none. A run whose files are missing or damaged is listed and
    says so.
    """
    found = Provenance()
    known: dict[str, Run] = {}
    for path in sorted((results / "studies").glob("*.json")):
        study = read_file(path)
        name = study.name or path.stem
        found.studies.append(replace(study, name=name, title=study.title or name))
        for entry in (*study.bases, *study.cells):
            folder = entry.run if entry.run.is_dir() else within(results, entry.run)
            known.setdefault(str(folder), _named(replace(entry, run=folder))).studies.append(name)
    found.runs = list(known.values())
    reader = _Reader(found)
    for run in found.runs:
        reader.read(run)
    _references(found)
    return found


def _named(entry: Base | Cell) -> Run:
    trained = isinstance(entry, Cell)
    tuned = entry.tuned if trained else ()
    return Run(
        folder=str(entry.run),
        task=entry.task,
        model=entry.model,
        method=entry.method if trained else BASE,
        seed=entry.seed if trained else None,
        title=", ".join((entry.method_title or f"+{entry.method}", *tuned)) if trained else "before training",
        task_title=entry.task_title or entry.task,
        model_title=entry.model_title or entry.model,
        studies=[],
    )


class _Reader:
    """Fills in runs; parses and keeps every distinct configuration and environment once."""

    def __init__(self, found: Provenance) -> None:
        self.found = found
        self.parsed: dict[str, int] = {}  # text of a configuration without its seed -> its place
        self.places: dict[str, int] = {}  # content -> its place

    def read(self, run: Run) -> None:
        folder = Path(run.folder)
        try:
            if (folder / MANIFEST).exists():
                self._manifest(run, read_json(folder / MANIFEST))
                run.status = "interrupted or running"
            if (folder / CONFIG).exists():
                run.configuration = self._configuration(folder / CONFIG)
            if (folder / SUMMARY).exists():
                summary = read_json(folder / SUMMARY)
                run.totals = summary.get("totals") or {k: summary[k] for k in ("seconds",) if k in summary}
                run.status = "finished"
            if (folder / "eval" / SUMMARY).exists():
                evaluated = read_json(folder / "eval" / SUMMARY)
                run.accuracy = {k: v["accuracy"] for k, v in evaluated.get("benchmarks", {}).items()}
            for name in ("eval", "curve"):  # of the last checkpoint; of the kept ones
                if (folder / name / SUMMARY).exists():
                    run.evaluation_seconds += float(read_json(folder / name / SUMMARY).get("seconds") or 0.0)
        except UserError as error:
            run.status = str(error)
        except (TypeError, KeyError, AttributeError, ValueError, OSError) as error:
            run.status = f"a file of the run cannot be read ({type(error).__name__}: {error})"

    def _manifest(self, run: Run, manifest: Mapping[str, Any]) -> None:
        shared = {k: manifest[k] for k in SHARED if k in manifest}
        run.environment = self._place(shared, self.found.environments)
        run.manifest = {k: v for k, v in manifest.items() if k not in SHARED}

    def _configuration(self, path: Path) -> int:
        import yaml

        text = path.read_text(encoding="utf-8")
        bare = re.sub(r"^seed: .*\n", "", text, flags=re.MULTILINE)
        if bare not in self.parsed:  # parsing is what takes time: seeds of a method share the rest
            try:
                loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
                content = yaml.load(bare, Loader=loader)
                if not isinstance(content, Mapping):
                    raise yaml.YAMLError("no mapping")
            except yaml.YAMLError as error:
                words = str(error).splitlines()[0]
                raise UserError(f"{path} is damaged ({words}); delete its run's folder and run it again") from None
            self.parsed[bare] = self._place(flatten(content), self.found.configurations)
        return self.parsed[bare]

    def _place(self, content: dict[str, Any], distinct: list[dict[str, Any]]) -> int:
        place = self.places.setdefault(json.dumps(content, sort_keys=True), len(distinct))
        if place == len(distinct):
            distinct.append(content)
        return place


def flatten(config: Mapping[str, Any]) -> dict[str, str]:
    """Flatten a configuration to dotted keys, {"method.v": "5"}; lists and scalars as JSON."""
    return {
        key: value if isinstance(value, str) and not _ambiguous(value) else json.dumps(value, default=str)
        for key, value in flat(config).items()
    }


def _ambiguous(value: str) -> bool:
    """Return whether the text 5 or null would pass for the number or for nothing."""
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def _references(found: Provenance) -> None:
    """Set the run to compare with: the study's reference on the same task, model and, if possible, seed."""
    methods = {s.name: s.reference for s in found.studies}
    places: dict[tuple[str, str, str, int | None], int] = {}
    for i, run in enumerate(found.runs):
        if run.configuration is not None:
            places[(run.task, run.model, run.method, run.seed)] = i
            places.setdefault((run.task, run.model, run.method, None), i)
    for i, run in enumerate(found.runs):
        for method in dict.fromkeys([*(methods[s] for s in run.studies), "grpo"]):
            place = places.get((run.task, run.model, method, run.seed), places.get((run.task, run.model, method, None)))
            if place is not None and place != i and run.method != BASE:
                run.reference = place
                break


def costs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Sums over the finished runs of each task, model and method, every run once; the last row is the sum of all."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for run in runs:
        if run.finished:
            for name in ((run.task_title, run.model_title, run.title), TOTAL):
                row = rows.setdefault(name, {"name": name, "runs": 0, "evaluation": 0.0, "sums": Counter()})
                row["runs"] += 1
                row["evaluation"] += run.evaluation_seconds
                numbers = {k: run.totals[k] for k in QUANTITIES if isinstance(run.totals.get(k), (int, float))}
                row["sums"].update(numbers)
    tasks = [*dict.fromkeys(name[:2] for name in rows if name != TOTAL), TOTAL[:2]]
    return sorted(rows.values(), key=lambda r: tasks.index(r["name"][:2]))
