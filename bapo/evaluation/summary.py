"""What the tables of an evaluation come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from bapo.evaluation import scores
from bapo.graders.verdict import OVERLOADED

if TYPE_CHECKING:
    import pandas as pd


def not_graded(frames: Iterable[pd.DataFrame]) -> int:
    """Count the responses that the machine was too busy to grade."""
    return int(sum((frame["reason"] == OVERLOADED).sum() for frame in frames))


def summarise(frame: pd.DataFrame, vote: Callable[[str], str | None] = str.strip) -> dict[str, Any]:
    """Accuracy, its standard error, pass@k, maj@K and the unparsed share of one benchmark's table.

    vote: what of a response is voted on.
    """
    names, correct, parsed, responses = (
        frame[column].to_numpy(object) for column in ("problem_id", "correct", "parsed", "response")
    )
    votes = {response: vote(response) for response in dict.fromkeys(responses)}
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    problems = [
        scores.problem_scores([(correct[r], parsed[r]) for r in own], [votes[responses[r]] for r in own])
        for own in rows.values()
    ]
    means = {key: sum(p[key] for p in problems) / len(problems) for key in problems[0]}
    return {
        "accuracy": means.pop("acc"),
        "standard_error": scores.standard_error([p["acc"] for p in problems]),
        "problems": len(problems),
        "samples": len(frame) // len(problems),
        **means,
    }
