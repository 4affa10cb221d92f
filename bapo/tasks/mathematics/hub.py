"""Mathematics at paper scale: DeepScaleR-Preview to train on; AIME 2024, AMC, MATH-500, Minerva, OlympiadBench."""

from __future__ import annotations

from bapo.tasks.real import decisions, sources
from bapo.tasks.real.boxed import BoxedSets, to_golds, to_text
from bapo.tasks.real.cleaning import Item
from bapo.tasks.real.lock import SourceLock


def _items(entry: sources.Source, data_folder: str | None, lock: SourceLock) -> list[Item]:
    return [
        Item(f"{entry.name}:{row.index}", to_text(row, entry), to_golds(row.where, row.values["answer"]))
        for row in sources.rows(entry, sources.find(entry, data_folder, lock), ("problem", "answer"))
    ]


SETS = BoxedSets(
    task="mathematics",
    benchmarks=("aime24", "amc", "math500", "minerva", "olympiad"),
    choices={key: allowed for key, allowed in decisions.CHOICES.items() if key != "shared_diagrams"},
    items=_items,
)
