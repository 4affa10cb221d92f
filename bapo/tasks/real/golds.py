"""Gold against gold: a task's verifier must accept what its own ground truths say, or no accuracy means anything.

Checked when problems are written (:mod:`bapo.tasks.job`, which keeps the count in its summary) and when they are loaded
from anywhere else; the same ground truths once a process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from bapo.errors import UserError
from bapo.tasks.base import Task

#: Rows that an error lists.
LISTED = 10

_known: dict[tuple[str, str], int] = {}


def check(task: Task, problems: Iterable[tuple[str, str]], where: Any) -> int:
    """Grade all gold responses. Returns their number; zero where the task knows none.

    problems: (id, ground truth); where: the file or set, for the message.
    Raises UserError listing the problems whose gold is not accepted.
    """
    problems = list(problems)
    content = hashlib.sha256("\0".join(text for pair in problems for text in pair).encode()).hexdigest()
    key = (task.name, content)
    if key not in _known:
        _known[key] = _check(task, problems, where)
    return _known[key]


def _check(task: Task, problems: list[tuple[str, str]], where: Any) -> int:
    graded = 0
    refused = []
    for row, (name, truth) in enumerate(problems):
        try:
            responses = task.gold_responses(truth)
            reasons = [verdict.reason for verdict in (task.verify(r, truth) for r in responses) if not verdict.correct]
        except UserError as error:
            responses, reasons = (), [str(error)]
        graded += len(responses)
        if reasons:
            refused.append(f"row {row} ({name}: {reasons[0]})")
    if refused:
        more = f" and {len(refused) - LISTED} more" if len(refused) > LISTED else ""
        raise UserError(
            f"{where}: the grader does not accept the gold answer of {len(refused)} of {len(problems)} problems: "
            f"{', '.join(refused[:LISTED])}{more}; correct or remove these rows"
        )
    return graded
