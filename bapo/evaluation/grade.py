"""``python -m bapo grade``: verdicts on recorded responses, line by line."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TextIO

from bapo import tasks
from bapo.errors import UserError
from bapo.graders.verdict import Verdict
from bapo.tasks.base import Task


def grade_file(task: str, file: Path | str, out: TextIO | None = None) -> None:
    """Grade a JSONL file with a task's verifier.

    One line in, one line out, in the same order: {"correct": bool, "parsed": bool, "reason": str}. The file is read as
    a stream, and a summary goes to stderr. Raises UserError naming the file, the line and the field that is wrong. The
    verdicts on the lines before it have been written by then.
    """
    verifier, path, out = tasks.get(task), Path(file), out or sys.stdout
    counts: Counter[str] = Counter()
    try:
        with open(path, "rb") as lines:  # bytes: a broken character is reported with its line
            for number, line in enumerate(lines, start=1):
                verdict = _graded(verifier, line, f"{path}, line {number}")
                content = {"correct": verdict.correct, "parsed": verdict.parsed, "reason": verdict.reason}
                counts.update(graded=1, correct=verdict.correct, unread=not verdict.parsed)
                out.write(json.dumps(content) + "\n")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"{path}: {error.strerror}; name a file with one JSON object a line") from None
    out.flush()
    said = f"{counts['graded']} graded, {counts['correct']} correct, {counts['unread']} without a readable answer"
    print(said, file=sys.stderr)


def _graded(task: Task, line: bytes, where: str) -> Verdict:
    try:
        record = json.loads(line.decode("utf-8-sig"))
        if not isinstance(record, dict):
            raise UserError(f"must be a JSON object, not {type(record).__name__}")
        return task.grade_line(record)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except KeyError as error:
        raise UserError(f"{where}: field {error.args[0]!r} is missing") from None
    # a ValueError also for an integer of thousands of digits, a RecursionError for brackets nested thousands deep
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON in UTF-8 ({error})") from None
