"""``bapo grade``: grades recorded responses line by line."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TextIO

from bapo import tasks
from bapo.errors import UserError
from bapo.evaluation import instruments
from bapo.graders.verdict import OVERLOADED, Verdict
from bapo.store.files import Json
from bapo.tasks.base import Task
from bapo.tasks.real import RealTask
from bapo.validate import each_once, wrong

LISTED = 20  #: the most lines on which two graders disagree that the summary names


def grade_file(task: str, file: Path | str, out: TextIO | None = None, second: str | None = None) -> None:
    """Grade a JSONL file with a task's verifier, and with a second grader if one is named.

    Each line gives a line {"correct": bool, "parsed": bool, "reason": str}, in the same order, with the verdict of the
    second grader as "second". The file is read as a stream, and a summary goes to stderr.

    Raises UserError naming the file, the line and the field that is wrong, after the verdicts on the lines before it
    were written; also for a second grader that cannot grade the task.
    """
    verifier, path, out = tasks.get(task), Path(file), out or sys.stdout
    if second and not (isinstance(verifier, RealTask) and instruments.in_boxes(verifier)):
        raise wrong(None, "--second", second, f"grades answers in boxes, which task {task} has none of; leave it out")
    counts: Counter[str] = Counter()
    disputed: list[int] = []
    try:
        with open(path, "rb") as lines:  # bytes, so that a broken character is reported with its line
            for number, line in enumerate(lines, start=1):
                if line.isspace():
                    continue
                record, verdict = _grade_line(verifier, line, f"{path}, line {number}")
                content: Json = verdict._asdict()
                if second:
                    golds = [record["gold"]] if isinstance(record["gold"], str) else record["gold"]
                    second_verdict = instruments.second_verdict(record["response"], golds)
                    content["second"] = second_verdict._asdict()
                    if OVERLOADED not in (verdict.reason, second_verdict.reason):
                        disputed += [number] * (verdict.correct != second_verdict.correct)
                        counts["alone"] += verdict.correct > second_verdict.correct
                counts["graded"] += 1
                counts["correct"] += verdict.correct
                counts["unread"] += not verdict.parsed
                out.write(json.dumps(content) + "\n")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"{path}: {error.strerror}; name a file with one JSON object a line") from None
    out.flush()
    if not counts["graded"]:
        raise UserError(f"{path}: has no line to grade; write one JSON object a line")
    sentence = f"{counts['graded']} graded, {counts['correct']} correct, {counts['unread']} without a readable answer"
    print(sentence, file=sys.stderr)
    if second:
        share = len(disputed) / max(counts["graded"], 1)
        sentence = f"{second} disagrees on {len(disputed)} ({share:.1%}): {counts['alone']} are right here alone"
        rest = f" and {len(disputed) - LISTED} more" if len(disputed) > LISTED else ""
        print(f"{sentence}; lines {', '.join(map(str, disputed[:LISTED])) or 'none'}{rest}", file=sys.stderr)


def _grade_line(task: Task, line: bytes, where: str) -> tuple[Json, Verdict]:
    try:
        record = json.loads(line.decode("utf-8-sig"), object_pairs_hook=each_once)
        if not isinstance(record, dict):
            raise UserError(f"must be a JSON object, not {type(record).__name__}")
        return record, task.grade_line(record)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except KeyError as error:
        raise UserError(f"{where}: field {error.args[0]!r} is missing") from None
    # json also raises ValueError for an integer of thousands of digits, and RecursionError for deeply nested brackets
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON in UTF-8 ({error})") from None
