"""What a command of the analysis did, and which files it has read: inputs of the records beside what it wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.products import robustness_reports
from bapo.store.files import SUMMARY, read_json

#: the files of a run's folder that stand for what an analysis has read
SUMMARIES = (SUMMARY, f"eval/{SUMMARY}", f"curve/{SUMMARY}")


@dataclass(frozen=True)
class Made:
    """What a command did. message: what it wrote, in words; files, inputs: for the record of where the files come from.

    text: what it prints; status: its exit status.
    """

    message: str = ""
    files: Sequence[Path] = ()
    inputs: Sequence[Path] = ()
    text: str = ""
    status: int = 0


def listed(files: Sequence[Path]) -> str:
    return " ".join(map(str, files))


def inputs_of_studies(paths: Iterable[Path]) -> list[Path]:
    """Return the study files and the existing summaries of the runs and base models that they name."""
    inputs: dict[Path, None] = {}
    for path in paths:
        inputs[Path(path)] = None
        content = read_json(path)
        for entry in (*content.get("cells", []), *content.get("bases", [])):
            inputs |= dict.fromkeys(p for name in SUMMARIES if (p := Path(entry["run"], name)).is_file())
    return list(inputs)


def inputs_of_sweep(trials: Path) -> list[Path]:
    """Return a sweep's trials.json and the existing summaries of its runs and the reference's."""
    content = read_json(trials)
    folders = [seed["run"] for trial in content.get("trials", []) for seed in trial["seeds"].values()]
    folders += content.get("reference", {}).get("runs", {}).values()
    return [trials, *dict.fromkeys(p for run in folders if (p := Path(run, SUMMARY)).is_file())]


def inputs_of_report(results: Path) -> list[Path]:
    """Return the files of a scale's folder that the page may show: tables, figures, sweeps, ledger, studies' runs."""
    shown = [p for part in ("tables", "figures") for p in sorted((results / part).glob("*")) if p.is_file()]
    shown += [p for files in robustness_reports(results) for p in files]
    shown += sorted(results.glob("claims*.*"))
    return [*shown, *inputs_of_studies(sorted((results / "studies").glob("*.json")))]
