"""Records of a log, line by line: what is none is passed over, what is broken is refused and named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bapo.errors import UserError

#: characters of one line; a longer one is no record
LONGEST = 1_000_000
#: bytes of a document, which is read at once
LARGEST = 200_000_000
#: refused lines that are named; the others are counted
NAMED = 20


@dataclass(frozen=True)
class Record:
    """One record of a log. place: "line 3", or the entry of a document."""

    place: str
    fields: dict[str, Any]


@dataclass
class Log:
    """What a file holds. refused: (place, reason); passed: lines that are not asked for, such as a program's output."""

    path: Path
    records: list[Record] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    passed: int = 0

    def refuse(self, place: str, reason: str) -> None:
        self.refused.append((place, reason))

    def said(self, most: int = NAMED) -> list[str]:
        """Return a sentence for each refused line, with file and line; after ``most`` only their number."""
        listed = [f"{self.path}, {place}: {reason}" for place, reason in self.refused[:most]]
        more = len(self.refused) - len(listed)
        return [*listed, *([f"{self.path}: {more} more"] if more > 0 else [])]

    def require(self, count: int) -> None:
        """Raises UserError where nothing was read, with the first refused line."""
        if not count and self.refused:
            place, reason = self.refused[0]
            raise UserError(f"{self.path}, {place}: {reason} (all {len(self.refused)} records were refused)")


def lines(path: Path) -> Iterator[tuple[int, str | None]]:
    """(line number, text without its end) of a plain or gzip file; None for a line that is too long.

    Raises UserError naming file and line where the file cannot be read on.
    """
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8") as handle:
            while line := handle.readline(LONGEST):
                number += 1
                long = len(line) == LONGEST and not line.endswith("\n")
                while long and (rest := handle.readline(LONGEST)) and not rest.endswith("\n"):
                    pass
                yield number, None if long else line.rstrip("\n")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path}, after line {number}: not readable ({error}); unpack or repair the file") from None


def document(path: Path) -> dict[str, Any] | None:
    """Return a file that is one JSON object over many lines; None where it is no such file.

    Raises UserError where it is missing or larger than LARGEST.
    """
    if path.suffix != ".json":
        return None
    try:
        size = path.stat().st_size
        if size > LARGEST:
            most = f"a .json file of more than {LARGEST / 1e6:.0f} MB is not read"
            raise UserError(f"{path}: has {size / 1e6:.0f} MB, and {most}; write its records as JSON lines (.jsonl)")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def json_object(text: str) -> dict[str, Any]:
    """Return a line's JSON object. Raises ValueError saying why it is none."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError("must be a JSON object")
    return content
