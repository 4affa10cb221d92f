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


def grade_file(task_name: str, path: Path | str, out: TextIO | None = None) -> int:
    """Grade a JSONL file with a task's verifier; return the number of lines.

    One line in, one line out, in the same order: {"correct": bool, "parsed": bool, "reason": str}. The file is read as
    a stream, and a summary goes to stderr. A blank line within it is refused, because line n of the output would no
    longer answer line n of the input; blank lines at its end are ignored.

    Raises UserError naming the file, the line and the field that is wrong. The verdicts on the lines before it have
    been written by then.
    """
    task, path, out = tasks.get(task_name), Path(path), out or sys.stdout
    graded = blank = 0
    counts: Counter[str] = Counter()
    try:
        with open(path, "rb") as lines:  # bytes: a broken character is reported with its line
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    blank = blank or number
                    continue
                if blank:
                    raise UserError(f"{path}, line {blank}: blank; remove it (every line must be a JSON object)")
                verdict = _graded(task, line, f"{path}, line {number}")
                content = {"correct": verdict.correct, "parsed": verdict.parsed, "reason": verdict.reason}
                counts["correct"] += verdict.correct
                counts["without a readable answer"] += not verdict.parsed
                out.write(json.dumps(content) + "\n")
                graded += 1
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; name a file with one JSON object a line") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; name a file with one JSON object a line") from None
    out.flush()
    print(", ".join([f"{graded} graded", *(f"{count} {what}" for what, count in counts.items())]), file=sys.stderr)
    return graded


def _graded(task: Task, line: bytes, where: str) -> Verdict:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON ({error.msg} at character {error.pos + 1})") from None
    except (ValueError, RecursionError):  # an integer of thousands of digits, or brackets nested thousands deep
        raise UserError(f"{where}: a number is too long or the nesting is too deep to be read as JSON") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: must be a JSON object, not {type(record).__name__}")
    try:
        return task.grade_line(record)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except KeyError as error:
        raise UserError(f"{where}: field {error.args[0]!r} is missing") from None
