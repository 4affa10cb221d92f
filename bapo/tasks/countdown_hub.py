"""Countdown's public sets, from the hub or from local copies: rows with ``nums`` and ``target``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bapo.errors import UserError
from bapo.tasks.countdown_grammar import check_numbers
from bapo.tasks.countdown_splits import problem_id

#: What an entry of ``config.data.hub`` may hold.
KEYS = ("repository", "revision", "split", "file", "start")
COLUMNS = ("nums", "target")


class Rows(NamedTuple):
    """A split's problems as (numbers, target), and how many rows were passed over to find them."""

    problems: list[tuple[tuple[int, ...], int]]
    duplicates: int  # of an earlier row of the same split
    overlaps: int  # with a split taken before: training first, so no held-out problem was trained on


def load(hub: Mapping[str, Any], sizes: Mapping[str, int], data_folder: str | None) -> dict[str, Rows]:
    """The first ``sizes[split]`` usable rows of each split, from row ``start`` of its set on.

    hub: split -> {repository, revision, split: "train", start: 0, file}; the training split is taken first, then the
    others in the order of ``sizes``. A row is passed over if its problem (multiset of numbers and target) was taken
    before. data_folder: read ``file`` in it, or the set's name with .parquet, .jsonl or as a folder of parquet files;
    None: read the hub. Raises UserError naming the key or file and the cure.
    """
    taken: set[str] = set()
    found = {}
    for split in sorted(sizes, key=lambda name: name != "train"):
        source = _source(hub, split)
        rows = _local_rows(source, split, Path(data_folder)) if data_folder else _hub_rows(source, split)
        found[split] = _take(split, rows, sizes[split], taken)
        taken |= {problem_id(*problem) for problem in found[split].problems}
    return {split: found[split] for split in sizes}


def _take(split: str, rows: Iterator[tuple[str, Any, Any]], size: int, taken: set[str]) -> Rows:
    problems: dict[str, tuple[tuple[int, ...], int]] = {}
    duplicates = overlaps = 0
    for where, nums, target in rows:
        if len(problems) == size:
            break
        numbers, target = check_numbers(where, nums, target)
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


def _source(hub: Mapping[str, Any], split: str) -> dict[str, Any]:
    source = hub.get(split)
    if not isinstance(source, Mapping) or not source.get("repository"):
        raise UserError(f"data.hub.{split}.repository has no value: name the set that split '{split}' is taken from")
    unknown = sorted(set(source) - set(KEYS))
    if unknown:
        raise UserError(f"data.hub.{split}.{unknown[0]}: no such key; allowed: {', '.join(KEYS)}")
    start = source.get("start", 0)
    if not isinstance(start, int) or start < 0:
        raise UserError(f"data.hub.{split}.start={start}: must be a row number, 0 or more")
    return {"split": "train", "revision": None, "file": None, **source, "start": start}


# ------------------------------------------------------------------------------------------------ reading


def _hub_rows(source: Mapping[str, Any], split: str) -> Iterator[tuple[str, Any, Any]]:
    from datasets import load_dataset

    name = source["repository"]
    try:
        data = load_dataset(name, revision=source["revision"], split=source["split"]).select_columns(list(COLUMNS))
    except Exception as error:  # the library raises many kinds, and those of the libraries below it
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"data.hub.{split}: {name} cannot be loaded ({reason[0]}); or set paths.data_folder to a folder "
            f"with {_stem(source)}.parquet or {_stem(source)}.jsonl"
        ) from None
    for index in range(source["start"], len(data)):
        row = data[index]
        yield f"{name} row {index}", row["nums"], row["target"]


def _stem(source: Mapping[str, Any]) -> str:
    return source["repository"].rpartition("/")[2]


def _local_rows(source: Mapping[str, Any], split: str, folder: Path) -> Iterator[tuple[str, Any, Any]]:
    rows: Iterator[tuple[str, Any, Any]] = (row for file in _files(source, split, folder) for row in _file_rows(file))
    return islice(rows, source["start"], None)


def _files(source: Mapping[str, Any], split: str, folder: Path) -> list[Path]:
    if source["file"]:
        names = [source["file"]]
    else:
        names = [f"{_stem(source)}{suffix}" for suffix in (".parquet", ".jsonl", "")]
    for path in (folder / name for name in names):
        if path.is_file():
            return [path]
        parts = sorted(path.rglob(f"{source['split']}*.parquet")) if path.is_dir() else []
        if parts:
            return parts
    raise UserError(
        f"{folder}: holds none of {', '.join(names)} for split '{split}'; "
        f"put the set there, set data.hub.{split}.file or correct paths.data_folder"
    )


def _file_rows(path: Path) -> Iterator[tuple[str, Any, Any]]:
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                row = json.loads(line)
                yield f"{path} line {number}", row["nums"], row["target"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path}: not one JSON object with nums and target a line ({type(error).__name__}: {error})"
        ) from None


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    index = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096, columns=list(COLUMNS)):
                for row in batch.to_pylist():
                    yield f"{path} row {index}", row["nums"], row["target"]
                    index += 1
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UserError(f"{path}: not a parquet file with the columns nums and target ({error})") from None
