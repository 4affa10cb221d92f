"""The rows of a file, parquet, CSV, JSON or JSON lines, each with its place; what is wrong is said with its line."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bapo.errors import UserError

LINES = (".jsonl", ".jsonl.gz")
Rows = Iterator[tuple[str, dict[str, Any]]]
#: how much of a file's content a message shows
SHOWN = 200


def count(path: Path) -> int:
    """Return the number of a file's rows."""
    if path.suffix != ".parquet":
        return sum(1 for _ in rows_of(path))
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a parquet file ({error}); get it again") from None


def rows_of(path: Path) -> Rows:
    """Read the rows of a file, each with its place, by the file's suffix."""
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    if path.suffix == ".csv":
        return _csv_rows(path)
    return _line_rows(path) if path.name.endswith(LINES) else _array_rows(path)


def where_columns_are(path: Path, where: str) -> str:
    """Return the place that names a file's columns: the header of a table, else the row at ``where``."""
    return f"{path} line 1" if path.suffix == ".csv" else where


def _lines(path: Path) -> Iterator[str]:
    """Read lines of UTF-8 one by one, so that what is no text is named with its line."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"{path} line {number}: the byte 0x{byte:02x} is no UTF-8; save the file as UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read after line {number} ({error}); get it again") from None


def _csv_rows(path: Path) -> Rows:
    """Read a table with a header, comma separated; all values are texts."""
    reader = csv.DictReader(_lines(path), strict=True)
    first = 1  # line of the row that is being read, which may have line breaks between quotation marks
    try:
        for row in reader:
            first = _first_line(reader.line_num, row)
            if None in row or None in row.values():
                columns = ", ".join(reader.fieldnames or ())
                raise UserError(f"{path} line {first}: must have one value for each of {columns}")
            yield f"{path} line {first}", row
            first = reader.line_num + 1
    except csv.Error as error:
        reason = "a quotation mark is never closed" if "unexpected end" in str(error) else str(error)
        raise UserError(f"{path} line {first}: {reason}; write a quotation mark inside quotation marks twice") from None


def _first_line(last: int, row: dict[Any, Any]) -> int:
    values = [v for value in row.values() for v in (value if isinstance(value, list) else [value])]
    return last - sum(value.count("\n") for value in values if value)


def _line_rows(path: Path) -> Rows:
    """Read a JSON object a line, without ``datasets``, which makes the number 25 of the text "025" where a column also
    holds lists. Blank lines are passed over."""
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            where = f"{path} line {number}"
            yield where, _object(line.rstrip("\r\n"), where)


def _object(text: str, where: str) -> dict[str, Any]:
    cure = "write one JSON object a line"
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}, column {error.colno}: {error.msg}; {cure}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: {str(error)[:SHOWN]}; {cure}") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: holds a {type(row).__name__}; {cure}")
    return row


def _array_rows(path: Path) -> Rows:
    """Read one JSON array of objects."""
    cure = "must be a JSON array of objects"
    try:
        rows = json.loads("".join(_lines(path)))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} line {error.lineno}, column {error.colno}: {error.msg}; {cure}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {str(error)[:SHOWN]}; {cure}") from None
    for index, row in enumerate(rows if isinstance(rows, list) else [rows]):
        if not isinstance(row, dict) or not isinstance(rows, list):
            raise UserError(f"{path} row {index}: holds a {type(row).__name__}; {cure}")
        yield f"{path} row {index}", row


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Stream rows through ``datasets``: nothing is copied into its cache, and images stay the bytes that they are."""
    import datasets

    index = 0
    try:
        data = datasets.load_dataset("parquet", data_files=[str(path)], split="train", streaming=True)
        for batch in data.with_format("arrow").iter(batch_size=1024):
            for row in batch.to_pylist():
                yield f"{path} row {index}", row
                index += 1
    except UserError:
        raise
    except Exception as error:  # the library's own kinds and Arrow's
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{path}: not a readable parquet file ({reason[0]}); get it again") from None
