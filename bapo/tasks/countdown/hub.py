"""Countdown's public sets, from the hub or from local copies: rows with ``nums`` and ``target``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bapo.errors import UserError
from bapo.tasks.countdown.grammar import check_numbers
from bapo.tasks.countdown.problems import problem_id
from bapo.tasks.real import decisions, sources


class Rows(NamedTuple):
    """A split's problems as (numbers, target), and how many rows were passed over to find them."""

    problems: list[tuple[tuple[int, ...], int]]
    duplicates: int  # of an earlier row of the same split
    overlaps: int  # with a split taken before: training first, so no held-out problem was trained on
    source: sources.Opened | None = None  # its files


def load(hub: Mapping[str, Any], sizes: Mapping[str, int], data_folder: str | None) -> dict[str, Rows]:
    """Read the first ``sizes[split]`` usable rows of each split, from row ``start`` of its set on.

    hub: entries as :mod:`bapo.tasks.real.sources` reads them; the training split is taken first, then the others in the
    order of ``sizes``. A row is passed over if its problem (multiset of numbers and target) was taken before.
    Raises UserError naming the key or file and the cure.
    """
    taken: set[str] = set()
    splits = {}
    for split in sorted(sizes, key=lambda name: name != "train"):
        entry = sources.source(hub, split)
        opened = sources.find(entry, data_folder)
        rows = sources.rows(entry, opened, ("nums", "target"))
        splits[split] = _take(split, rows, sizes[split], taken)._replace(source=opened)
        taken |= {problem_id(*problem) for problem in splits[split].problems}
    return {split: splits[split] for split in sizes}


def report(folder: Path, splits: Mapping[str, Rows], say: Callable[[str], None]) -> None:
    """Write ``cleaning.json`` and ``cleaning.md``. Problems are compared by numbers and target, not by n-grams."""
    lines = [
        f"{split}: {len(rows.problems)} problems; rows passed over: {rows.duplicates} duplicates, {rows.overlaps} in "
        "another split"
        for split, rows in splits.items()
    ]
    for line in lines:
        say(line)
    counts = {
        split: {"problems": len(r.problems), "duplicates_dropped": r.duplicates, "overlaps_dropped": r.overlaps}
        for split, r in splits.items()
    }
    files = sources.digests(rows.source for rows in splits.values() if rows.source)
    decisions.write_plain_report(folder, "countdown", files, counts, lines)


def _take(split: str, rows: Iterator[sources.Row], size: int, taken: set[str]) -> Rows:
    problems: dict[str, tuple[tuple[int, ...], int]] = {}
    duplicates = overlaps = 0
    for row in rows:
        if len(problems) == size:
            break
        where = row.where
        numbers, target = check_numbers(where, row.values["nums"], row.values["target"])
        if split == "cd4" and len(numbers) != 4:
            raise UserError(f"{where}: {len(numbers)} numbers, but CD-4 has four; correct data.hub.cd4")
        identity = problem_id(numbers, target)
        if identity in taken:
            overlaps += 1
        elif identity in problems:
            duplicates += 1
        else:
            problems[identity] = (numbers, target)
    if len(problems) < size:
        raise UserError(
            f"data.split_sizes.{split}={size}: only {len(problems)} usable rows from row data.hub.{split}.start on "
            f"({duplicates} duplicates, {overlaps} in another split); lower one of the two"
        )
    return Rows(list(problems.values()), duplicates, overlaps)
