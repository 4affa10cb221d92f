"""What a command of the analysis did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Made:
    """What a command did. message: what it wrote, in words; files, inputs: for the record of where the files come from.

    text: what it prints; status: its exit status.
    """

    message: str = ""
    files: Sequence[Path] = ()
    inputs: Sequence[Path] = ()
    text: str = ""
    status: int = 0


def listed(files: Sequence[Path]) -> str:
    return " ".join(map(str, files))
