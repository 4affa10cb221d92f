"""The pages for readers, and what stands in them: fenced blocks, shell commands, headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block. line: where it begins, counted from 1."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> Iterator[Block]:
    """Every fenced block of every page, in the order of the pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Block(page, line, match[2], re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE))


def example(language: str, file: str) -> str:
    """The block whose first line, after Hydra's own, is ``# file``. Raises ValueError unless there is exactly one."""
    first = (f"# {file}\n", f"# @package _global_\n# {file}\n")
    (text,) = (b.text for b in blocks() if b.language == language and b.text.startswith(first))
    return text


def write_examples(folder: Path, *files: str) -> None:
    """Write files as the pages show them."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(example("python" if file.endswith(".py") else "yaml", file), encoding="utf-8")


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command of a shell block; continued lines are joined, and ``&&`` divides commands."""
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="&|<>")
        words.whitespace_split = True
        yield from (list(part) for both, part in groupby(words, "&&".__eq__) if not both)


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
