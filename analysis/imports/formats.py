"""Formats of logs by name: how a line of each is read, and what tells it from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.imports import accuracies, training
from analysis.imports.lines import Log, Record, document, json_object, lines
from analysis.imports.tables import Settings, Tables
from bapo.errors import UserError

__all__ = ["FORMATS", "Settings", "Tables", "detect", "read_log"]


@dataclass(frozen=True)
class Format:
    """A format. line: a line's record, None for a line that is none, ValueError for a broken one.

    needed: fields that every record has; signs: beginnings of names, one of which tells the format; shown: in words.
    """

    line: Callable[[str], dict[str, Any] | None]
    read: Callable[[Log, Settings], Tables]
    shown: str
    needed: frozenset[str] = frozenset()
    signs: tuple[str, ...] = ()

    def fits(self, record: dict[str, Any]) -> bool:
        known = self.needed <= set(record)
        return known and (not self.signs or any(str(key).startswith(self.signs) for key in record))


#: name -> format; the first that fits a file's first record is taken
FORMATS = {
    "histories": Format(
        json_object, accuracies.histories, "id, acc_history: a prompt's accuracies", frozenset({"id", "acc_history"})
    ),
    "tracking": Format(
        json_object, accuracies.tracking, "prompt, step, reward: a response", frozenset({"prompt", "step", "reward"})
    ),
    "verl": Format(
        training.verl_line,
        training.verl,
        "verl's file or console logger: step, critic/score/mean, ...",
        frozenset({"step"}),
        ("critic/", "actor/", "val", "timing_s/", "response_length/"),
    ),
    "openrlhf": Format(
        training.openrlhf_line,
        training.openrlhf,
        "OpenRLHF's console or wandb history: policy_loss, reward, ...",
        signs=("policy_loss", "rollout/", "actor_lr"),
    ),
    "trl": Format(
        training.trl_line,
        training.trl,
        "TRL's trainer_state.json, console or wandb history: reward, completions/mean_length, ...",
        signs=("reward", "completion"),
    ),
}
#: the list of records in a document of the Hugging Face trainer
HISTORY = "log_history"


def detect(path: Path) -> str:
    """Return the format of a file by its first record. Raises UserError naming the file and what is known."""
    content = document(path)
    if content and isinstance(content.get(HISTORY), list):
        return "trl"
    first = None
    for number, text in lines(path):
        if not text or not text.strip():
            continue
        for name, known in FORMATS.items():
            try:
                record = known.line(text)
            except ValueError as error:
                first = first or (number, str(error))
                continue
            if record is not None and known.fits(record):
                return name
            if record is not None:
                first = first or (
                    number,
                    f"the fields {', '.join(sorted(map(str, record))[:8])} are of no known format",
                )
    if first is None:
        raise UserError(f"{path}: {'empty' if not path.stat().st_size else 'no line is of a known format'}; {_known()}")
    raise UserError(f"{path}, line {first[0]}: {first[1]}; {_known()}")


def _known() -> str:
    return "known are " + "; ".join(f"{name} ({known.shown})" for name, known in FORMATS.items())


def read_log(path: Path, settings: Settings, name: str | None = None) -> tuple[Tables, Log]:
    """Return the tables of a log, and the log with the lines that were refused. name: of FORMATS; None: detected.

    Raises UserError where nothing can be read from it.
    """
    known = FORMATS[name or detect(path)]
    log = Log(path)
    for place, given in _records(path, known, log):
        missing = sorted(known.needed - set(given))
        if missing:
            log.refuse(place, f"field '{missing[0]}' is missing")
        else:
            log.records.append(Record(place, given))
    log.require(len(log.records))
    try:
        return known.read(log, settings), log
    except UserError as error:
        raise UserError(f"{error}" if str(path) in str(error) else f"{path}: {error}") from None
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise UserError(f"{path}: {error}") from None


def _records(path: Path, known: Format, log: Log) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, record) of a document's history or of the lines; broken ones are refused, others passed over."""
    content = document(path)
    if content and isinstance(content.get(HISTORY), list):
        for i, entry in enumerate(content[HISTORY], 1):
            if isinstance(entry, dict):
                yield f"{HISTORY} entry {i}", entry
            else:
                log.refuse(f"{HISTORY} entry {i}", "must be a JSON object")
        return
    for number, text in lines(path):
        if text is None:
            log.refuse(f"line {number}", "too long; is this a log?")
        elif text.strip():
            try:
                record = known.line(text)
            except ValueError as error:
                log.refuse(f"line {number}", str(error))
                continue
            if record is None and ".jsonl" in path.suffixes:
                log.refuse(f"line {number}", "must be a JSON object")
            elif record is None:
                log.passed += 1
            else:
                yield f"line {number}", record
