"""Visual geometry at paper scale: Geometry3K, a diagram and a question a row."""

from __future__ import annotations

import hashlib
from io import BytesIO
from pathlib import Path

from bapo.errors import UserError
from bapo.tasks.real import decisions, sources
from bapo.tasks.real.boxed import RealSets, to_golds, to_text
from bapo.tasks.real.cleaning import Item

_IMAGE = "<image>"
_LARGEST = 20_000_000  # bytes of a diagram's file; those of Geometry3K have some 20,000


def _items(entry: sources.Source, opened: sources.Opened) -> list[Item]:
    rows = list(sources.rows(entry, opened, ("images", "problem", "answer")))
    paths = [_paths(row) for row in rows]
    missing = [(row, path) for row, named in zip(rows, paths, strict=True) for path in named if not path.is_file()]
    if missing:
        row, path = missing[0]
        raise UserError(
            f"{row.where}: no diagram {path} ({len(missing)} of {len(rows)} are missing); put the diagrams there, or "
            "read the hub, which has them in its files (paths.data_folder=null)"
        )
    items = []
    for row, named in zip(rows, paths, strict=True):
        images = tuple(_file(row, path) for path in named) or _bytes(row)
        text = to_text(row, entry, without=_IMAGE)
        if not images or text.count(_IMAGE) not in (0, len(images)):
            raise UserError(
                f"{row.where}: {len(images)} diagrams, but the text has {text.count(_IMAGE)} places for them; correct "
                f"the set or {entry.where}.columns"
            )
        items.append(
            Item(
                f"{entry.name}/{entry.where.rpartition('.')[2].removeprefix('geo3k_')}:{row.number}",
                text.replace(_IMAGE, "").strip(),
                to_golds(row.where, row.values["answer"]),
                images,
                "".join(_pixels(row, image) for image in images),
            )
        )
    return items


def _paths(row: sources.Row) -> list[Path]:
    """Return the diagrams of a row that names files, relative to its own; [] where it holds their bytes."""
    value = row.values["images"]
    names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    paths = [Path(name) for name in names if isinstance(name, str)]
    for path in paths:
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{row.where}: diagram {path} is outside of {row.file.parent}; correct the row")
    return [row.file.parent / path for path in paths]


def _file(row: sources.Row, path: Path) -> bytes:
    if path.stat().st_size > _LARGEST:
        raise UserError(f"{row.where}: diagram {path} has more than {_LARGEST} bytes; correct the row")
    return path.read_bytes()


def _bytes(row: sources.Row) -> tuple[bytes, ...]:
    """Return the diagrams of a row of the hub's: one {"bytes", "path"} or a list of them."""
    value = row.values["images"]
    held = [one.get("bytes") for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
    images = tuple(image for image in held if isinstance(image, bytes) and len(image) <= _LARGEST)
    if not images or len(images) < len(held):
        raise UserError(f"{row.where}: column 'images' holds no diagram; get the set again")
    return images


def _pixels(row: sources.Row, image: bytes) -> str:
    """Return a digest of a diagram's pixels, the same for two encodings. Raises UserError for no picture."""
    from PIL import Image

    try:
        with Image.open(BytesIO(image), formats=("PNG", "JPEG")) as picture:
            shown = picture.convert("RGB")
    except Exception as error:  # Pillow raises many kinds, for broken files and for ones that unpack to gigabytes
        raise UserError(f"{row.where}: the diagram is no PNG or JPEG file ({error}); get the set again") from None
    return hashlib.sha256(f"{shown.size}".encode() + shown.tobytes()).hexdigest()


SETS = RealSets(
    task="geometry",
    benchmarks=("geo3k_val", "geo3k_test"),
    choices={key: decisions.CHOICES[key] for key in ("empty_answers", "duplicates", "shared_diagrams")},
    items=_items,
    texts_alone=False,
)
