"""Problems and documents on disk: parquet files in verl's schema, which both engines read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo.errors import UserError
from bapo.store.files import atomic
from bapo.tasks.base import Document, Problem

if TYPE_CHECKING:
    import pyarrow as pa


def write_problems(path: Path, problems: Sequence[Problem], data_source: str, ability: str, split: str) -> None:
    """Write one split: data_source, prompt (one user message), ability, reward_model and extra_info, a row a problem.

    Problems with images have a column ``images``, a list of {"bytes", "path"} a row (the hub's image feature).
    Raises UserError if the file cannot be written.
    """
    import pyarrow as pa

    text = pa.string()
    fields = {
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({"split": text, "index": pa.int64(), "id": text}),
    }
    rows = [
        {
            "data_source": data_source,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "ability": ability,
            "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
            "extra_info": {"split": split, "index": index, "id": problem.id},
        }
        for index, problem in enumerate(problems)
    ]
    _write(path, fields, rows, problems)


def write_documents(path: Path, documents: Sequence[Document]) -> None:
    """Write supervised documents: id (of the problem in the prompt), prompt and response, a row a document.

    Images as in :func:`write_problems`. Raises UserError if the file cannot be written.
    """
    import pyarrow as pa

    fields = dict.fromkeys(("id", "prompt", "response"), pa.string())
    rows = [{"id": d.id, "prompt": d.prompt, "response": d.response} for d in documents]
    _write(path, fields, rows, documents)


def read_problems(path: Path) -> list[Problem]:
    """Read a file of :func:`write_problems`, in order. Raises UserError if it is missing or broken."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return [
            Problem(
                row["extra_info"]["id"],
                row["prompt"][-1]["content"],
                row["reward_model"]["ground_truth"],
                tuple(image["bytes"] for image in row.get("images") or ()),
            )
            for row in pq.read_table(path).to_pylist()
        ]
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; `python -m bapo data` writes it") from None
    except (pa.ArrowException, OSError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{path}: not a readable data file ({error}); delete it and write the data again") from None


def _write(
    path: Path, fields: Mapping[str, pa.DataType], rows: Sequence[dict[str, Any]], sources: Sequence[Problem | Document]
) -> None:
    """Write rows, with the images of the problems or documents that they come from."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if any(source.images for source in sources):
        fields = {**fields, "images": pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()}))}
        for row, source in zip(rows, sources, strict=True):
            row["images"] = [{"bytes": image, "path": None} for image in source.images]
    try:
        with atomic(path) as temporary:
            pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(fields)), temporary, compression="zstd")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error}); free space or change paths") from None
