"""Problems and documents on disk: parquet files in verl's schema, which both engines read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bapo.errors import UserError
from bapo.tasks.base import Problem

if TYPE_CHECKING:
    import pyarrow as pa


def write_problems(path: Path, problems: Sequence[Problem], data_source: str, ability: str, split: str) -> None:
    """Write one split: data_source, prompt (one user message), ability, reward_model and extra_info, a row a problem.

    Problems with images make a column ``images`` more, a list of {"bytes", "path"} a row (the hub's image feature).
    Raises UserError if the file cannot be written.
    """
    import pyarrow as pa

    text = pa.string()
    with_images = any(problem.images for problem in problems)
    fields = {
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({"split": text, "index": pa.int64(), "id": text}),
    }
    if with_images:
        fields["images"] = pa.list_(pa.struct({"bytes": pa.binary(), "path": text}))
    rows = [
        {
            "data_source": data_source,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "ability": ability,
            "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
            "extra_info": {"split": split, "index": index, "id": problem.id},
            **({"images": [{"bytes": image, "path": None} for image in problem.images]} if with_images else {}),
        }
        for index, problem in enumerate(problems)
    ]
    _write(path, pa.Table.from_pylist(rows, schema=pa.schema(fields)))


def write_documents(
    path: Path, ids: Sequence[str], prompts: Sequence[str], responses: Sequence[str], images: Sequence[bytes] = ()
) -> None:
    """Write supervised documents: id (of the problem in the prompt), prompt and response, a row a document.

    images: the one image of each document, where there are any; they make a column ``images`` as in problems.
    Raises UserError if the file cannot be written.
    """
    import pyarrow as pa

    columns = {"id": ids, "prompt": prompts, "response": responses}
    arrays = {name: pa.array(values, type=pa.string()) for name, values in columns.items()}
    if images:
        kind = pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        arrays["images"] = pa.array([[{"bytes": image, "path": None}] for image in images], type=kind)
    _write(path, pa.table(arrays))


def read_problems(path: Path) -> list[Problem]:
    """The problems of a file of :func:`write_problems`, in order. Raises UserError if it is missing or broken."""
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


def _write(path: Path, table: pa.Table) -> None:
    """Write beside the target and rename: a reader sees the whole file or none."""
    import pyarrow.parquet as pq

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, temporary, compression="zstd")
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error}); free space or change paths") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
