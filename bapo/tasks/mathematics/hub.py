"""Mathematics from public sets: those of the paper (DeepScaleR-Preview to train on, five benchmarks) and GSM8K."""

from __future__ import annotations

from typing import Any

from bapo.errors import UserError
from bapo.tasks.real import decisions, sources
from bapo.tasks.real.boxed import RealSets, to_golds, to_text
from bapo.tasks.real.cleaning import Item


def items(entry: sources.Source, opened: sources.Opened) -> list[Item]:
    """Read one source: a text and its golds a row."""
    return [
        Item(
            f"{entry.name}/{row.place}" if row.place else f"{entry.name}:{row.number}",
            to_text(row, entry),
            to_golds(row.where, _answer(row, entry)),
            gold=f"{row.where}: column '{entry.columns.get('answer', 'answer')}'" if row.place else "",
        )
        for row in sources.rows(entry, opened, ("problem", "answer"))
    ]


def _answer(row: sources.Row, entry: sources.Source) -> Any:
    """Return a row's answer, without the solution before it. Raises UserError where there is no such answer."""
    answer, mark = row.values["answer"], entry.answer_after
    if mark is None:
        return answer
    if not isinstance(answer, str) or mark not in answer:
        raise UserError(f"{row.where}: no '{mark}' in column 'answer'; correct the set or {entry.where}.answer_after")
    return answer.rpartition(mark)[2].strip()


SETS = RealSets(
    task="mathematics",
    benchmarks=("aime24", "amc", "math500", "minerva", "olympiad", "gsm8k"),
    choices={key: allowed for key, allowed in decisions.CHOICES.items() if key != "shared_diagrams"},
    items=items,
)
