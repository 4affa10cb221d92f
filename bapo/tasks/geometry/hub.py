"""Visual geometry at paper scale: Geometry3K, a diagram and a question a row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from bapo.errors import UserError
from bapo.tasks import files
from bapo.tasks.base import Problem, Progress
from bapo.tasks.mathematics.hub import check, ground_truth, select, to_golds
from bapo.tasks.real import cleaning, sources
from bapo.tasks.real import decisions as cleaning_decisions
from bapo.tasks.real import report as cleaning_report
from bapo.tasks.real.cleaning import Item
from bapo.tasks.real.lock import SourceLock

#: ``data.prompt`` -> the user's message. Both ask, in our words, for what the recipes for this set ask for.
PROMPTS = {
    "think-boxed": (
        "{images}{problem} First think it through inside <think> </think> tags, then give the final answer within "
        "\\boxed{{}}."
    ),
    "boxed": "{images}{problem} Let's think step by step and output the final answer within \\boxed{{}}.",
}
BENCHMARKS = ("geo3k_val", "geo3k_test")
CHOICES = {key: cleaning_decisions.CHOICES[key] for key in ("empty_answers", "duplicates", "shared_diagrams")}
_IMAGE = "<image>"
_LARGEST = 20_000_000  # bytes of a diagram's file; those of Geometry3K have some 20,000


def write(config: DictConfig, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Write ``<split>.parquet`` of every split of ``data.split_sizes`` and the cleaning report.

    As :func:`bapo.tasks.mathematics.hub.write`; the diagrams are in the files, as the bytes that they were read as.
    """
    from bapo.graders import geometry as grader

    data, lock = config.data, SourceLock.of(config)
    template = check(data, PROMPTS, ("train", "probe", *BENCHMARKS))
    decisions = cleaning.options(data.get("cleaning") or {}, CHOICES)
    read = {
        split: _items(sources.source(data.hub, split), config.paths.data_folder, lock)
        for split in data.split_sizes
        if split != "probe"
    }
    train, findings = cleaning_decisions.clean(read, decisions, grader.check_golds, texts_alone=False)
    written = select({**read, "train": train}, data, "geometry")
    counts = {}
    for split, items in written.items():
        problems = [to_problem(item, template) for item in items]
        files.write_problems(folder / f"{split}.parquet", problems, "geometry", "geometry", split)
        counts[split] = {"problems": len(problems), "rows": findings["rows"].get(split, len(train))}
    sizes = {split: len(items) for split, items in written.items()}
    cleaning_report.write(folder, "geometry", lock.used, decisions, findings, sizes, progress or (lambda text: None))
    lock.save()
    return counts


def read(hub: Mapping[str, Any], split: str, prompt: str, data_folder: str | None, lock: SourceLock) -> list[Problem]:
    """One benchmark's problems, without a configuration. Raises UserError naming the key or file and the cure."""
    return [to_problem(item, PROMPTS[prompt]) for item in _items(sources.source(hub, split), data_folder, lock)]


def to_problem(item: Item, template: str) -> Problem:
    prompt = template.format(images=_IMAGE * len(item.images), problem=item.text)
    return Problem(item.id, prompt, ground_truth(item.golds), item.images)


def _items(entry: sources.Source, data_folder: str | None, lock: SourceLock) -> list[Item]:
    rows = list(sources.rows(entry, sources.find(entry, data_folder, lock), ("images", "problem", "answer")))
    paths = [_paths(row) for row in rows]
    missing = [(row, path) for row, found in zip(rows, paths, strict=True) for path in found if not path.is_file()]
    if missing:
        row, path = missing[0]
        raise UserError(
            f"{row.where}: no diagram {path} ({len(missing)} of {len(rows)} are missing); put the diagrams there, or "
            "read the hub, which has them in its files (paths.data_folder=null)"
        )
    items = []
    for row, found in zip(rows, paths, strict=True):
        images = tuple(_file(entry, row, path, data_folder, lock) for path in found) or _bytes(row)
        text = row.values["problem"]
        if not isinstance(text, str) or not text.replace(_IMAGE, "").strip():
            raise UserError(f"{row.where}: column 'problem' holds no text; correct the set or {entry.where}.columns")
        if not images or text.count(_IMAGE) not in (0, len(images)):
            raise UserError(
                f"{row.where}: {len(images)} diagrams, but the text has {text.count(_IMAGE)} places for them; correct "
                f"the set or {entry.where}.columns"
            )
        items.append(
            Item(
                f"{entry.name}/{entry.where.rpartition('.')[2].removeprefix('geo3k_')}:{row.index}",
                text.replace(_IMAGE, "").strip(),
                to_golds(row.where, row.values["answer"]),
                images,
                "".join(_pixels(row, image) for image in images),
            )
        )
    return items


def _paths(row: sources.Row) -> list[Path]:
    """The diagrams of a row that names files, which are sought beside its own; [] where it has their bytes."""
    value = row.values["images"]
    names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    paths = [Path(name) for name in names if isinstance(name, str)]
    for path in paths:
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{row.where}: diagram {path} is outside of {row.file.parent}; correct the row")
    return [row.file.parent / path for path in paths]


def _file(entry: sources.Source, row: sources.Row, path: Path, data_folder: str | None, lock: SourceLock) -> bytes:
    if path.stat().st_size > _LARGEST:
        raise UserError(f"{row.where}: diagram {path} has more than {_LARGEST} bytes; correct the row")
    lock.check_folder(entry.where, path.relative_to(data_folder or row.file.parent).as_posix(), path)
    return path.read_bytes()


def _bytes(row: sources.Row) -> tuple[bytes, ...]:
    """The diagrams of a row of the hub's: one {"bytes", "path"} or a list of them."""
    value = row.values["images"]
    found = [one.get("bytes") for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
    if not found or not all(isinstance(image, bytes) and len(image) <= _LARGEST for image in found):
        raise UserError(f"{row.where}: column 'images' holds no diagram; get the set again")
    return tuple(found)


def _pixels(row: sources.Row, image: bytes) -> str:
    """A digest of what a diagram shows, the same for two encodings of one picture. Raises UserError for no picture."""
    from PIL import Image

    try:
        with Image.open(BytesIO(image), formats=("PNG", "JPEG")) as picture:
            shown = picture.convert("RGB")
    except Exception as error:  # Pillow raises many kinds, for broken files and for ones that unpack to gigabytes
        raise UserError(f"{row.where}: the diagram is no PNG or JPEG file ({error}); get the set again") from None
    return hashlib.sha256(f"{shown.size}".encode() + shown.tobytes()).hexdigest()
