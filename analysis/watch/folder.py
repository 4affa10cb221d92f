"""The jobs of a scale's folder, from its study files, and the state of each, from what lies in its own folder."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from analysis.products import TUNING
from analysis.study import StudyFile, read_file
from bapo.errors import UserError
from bapo.experiments.places import base_folder, data_folder, run_folder
from bapo.store.files import MANIFEST, SUMMARY, read_json

DONE, RUNNING, STOPPED, WAITING = "done", "running", "stopped", "waiting"
#: kinds of jobs in the order of the workflow -> what they are called
KINDS = {
    "data": "problems",
    "base": "base models",
    "train": "runs",
    "evaluate": "evaluations",
    "curve": "evaluations of kept checkpoints",
}
#: A job on another machine, whose lock cannot be looked up, counts as running while its files are younger: seconds.
FRESH = 600.0


@dataclass(frozen=True)
class Job:
    """One job of the workflow. method: "" for problems, "base" for a base model; seconds: what it took, if it is done;
    begun: Unix time of its start; log: its log file."""

    kind: str
    folder: Path
    log: Path
    task: str
    model: str = ""
    method: str = ""
    seed: int = 0
    titles: tuple[str, ...] = ()  # of task, model and method
    state: str = WAITING
    seconds: float | None = None
    begun: float | None = None

    @property
    def group(self) -> tuple[str, str, str]:
        return self.task, self.model, self.method

    @property
    def title(self) -> str:
        return ", ".join(self.titles)


def studies(folder: Path) -> tuple[list[StudyFile], list[str]]:
    """Return the studies of a scale's folder, and what is wrong with a file of them, in words.

    Raises UserError where the folder is none, or none of a scale.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist; name a scale's results, for example results/laptop")
    found, problems = [], []
    for path in sorted((folder / "studies").glob("*.json")):
        try:
            found.append(read_file(path))
        except UserError as error:
            problems.append(str(error))
    inside = sorted(p.parent.parent for p in folder.glob("*/studies/*.json"))
    if not found and not problems and inside:
        raise UserError(f"{folder} holds scales, not runs; name one of them, for example {inside[0]}")
    if not found and not problems and not (folder / "logs").is_dir():
        raise UserError(f"{folder} has no studies: it is no scale's results; name one, for example results/laptop")
    return found, problems


def jobs(folder: Path, found: list[StudyFile], now: float) -> list[Job]:
    """Return every job that the studies ask for, each once, with its state at the Unix time ``now``."""
    held = _held()
    listed: dict[tuple[str, Path], Job] = {}
    logs = folder / "logs"

    def add(kind: str, place: Path, log: Path, **names: Any) -> None:
        if (kind, place) not in listed:
            listed[kind, place] = Job(kind, place, log, **names, **_state(place, log, held, now))

    for study in found:
        evaluated = not (study.chosen or study.name == TUNING)
        for start in study.bases:
            titles = (start.task_title or start.task, start.model_title or start.model)
            names = {"task": start.task, "model": start.model, "method": "base", "titles": (*titles, "base model")}
            home = base_folder(folder, start.task, start.model)
            place, own = data_folder(folder, start.task), logs / "data" / f"{start.task}.log"
            add("data", place, own, task=start.task, titles=(titles[0], "problems"))
            add("base", home, logs / "base" / start.task / f"{start.model}.log", **names)
            if evaluated:
                add("evaluate", home / "eval", logs / "evaluate" / start.task / start.model / "base.log", **names)
        for cell in study.cells:
            method = cell.run.parent.name  # of a tuned run, with what was chosen
            home = run_folder(folder, cell.task, cell.model, method, cell.seed)
            title = ", ".join((cell.method_title or method, *cell.tuned))
            titles = (cell.task_title or cell.task, cell.model_title or cell.model, title)
            names = {"task": cell.task, "model": cell.model, "method": method, "seed": cell.seed, "titles": titles}
            log = Path(cell.task, cell.model, method, f"seed{cell.seed}.log")
            add("train", home, logs / "train" / log, **names)
            if evaluated:
                add("evaluate", home / "eval", logs / "evaluate" / log, **names)
            if cell.method in study.curves:
                add("curve", home / "curve", logs / "curve" / log, **names)
    found_jobs = list(listed.values())
    # only some figures ask for curves: they count once one has begun
    curves = any(job.kind == "curve" and job.state != WAITING for job in found_jobs)
    return [job for job in found_jobs if curves or job.kind != "curve"]


def sweeps(folder: Path) -> list[str]:
    """Return what there is of each sweep, in words; how many trials it has in all is known to the workflow alone."""
    said = []
    for place in sorted((folder / "sweeps").glob("*/slots")):
        begun, done = len(list(place.glob("*/"))), len(list(place.glob("*/trial.json")))
        said.append(f"sweep {place.parent.name}: {done} trial{'s' * (done != 1)} done, {begun - done} begun")
    return said


def _state(folder: Path, log: Path, held: Mapping[int, int] | None, now: float) -> dict[str, Any]:
    """Return the state of a job's folder; a file that is half written, or gone meanwhile, says nothing."""
    if (folder / SUMMARY).exists():
        return {"state": DONE, "seconds": took(folder)}
    manifest = content_of(folder / MANIFEST)
    begun = _time(manifest.get("started")) if manifest.get("ended") is None else None
    if _runs(folder / ".lock", [log, folder / MANIFEST], held, now):
        return {"state": RUNNING, "begun": begun or modified(folder / ".lock")}
    return {"state": STOPPED if log.exists() or manifest else WAITING}


def took(folder: Path) -> float | None:
    """Return the seconds that a finished job took: from start to end, else, where it was resumed, its own count."""
    manifest = content_of(folder / MANIFEST)
    started, ended = _time(manifest.get("started")), _time(manifest.get("ended"))
    if started and ended and not manifest.get("resumed"):
        return max(1.0, ended - started)
    summary = content_of(folder / SUMMARY)
    totals = summary.get("totals")
    seconds = totals.get("seconds") if isinstance(totals, dict) else summary.get("seconds")
    return float(seconds) if isinstance(seconds, (int, float)) else None


def _runs(lock: Path, others: list[Path], held: Mapping[int, int] | None, now: float) -> bool:
    """Return whether a process works in a lock's folder, without touching the lock."""
    try:
        words, inode = lock.read_text(encoding="utf-8", errors="replace"), lock.stat().st_ino
    except OSError:
        return False
    match = re.fullmatch(r"process (\d+) on (.*)", words.strip())
    if match is None:  # just being taken
        return held is not None and inode in held
    process, machine = int(match[1]), match[2]
    if machine != platform.node():
        return any(now - modified(path) < FRESH for path in others)
    return held.get(inode) == process if held is not None else _alive(process)


def _held() -> dict[int, int] | None:
    """Return inode -> process of every lock that the kernel lists; None where it lists none (no Linux)."""
    try:
        lines = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    words = [line.split() for line in lines if "FLOCK" in line and "->" not in line]
    return {int(w[5].rpartition(":")[2]): int(w[4]) for w in words if len(w) > 5}


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # asks, sends nothing
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def content_of(path: Path) -> dict[str, Any]:
    """Return a JSON object; {} where there is none, or none yet."""
    with contextlib.suppress(OSError, UserError):
        content = read_json(path)
        if isinstance(content, dict):
            return content
    return {}


def modified(path: Path) -> float:
    """Return when a file changed, in Unix time; 0 where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _time(text: Any) -> float | None:
    with contextlib.suppress(TypeError, ValueError):
        return datetime.fromisoformat(text).timestamp()
    return None
