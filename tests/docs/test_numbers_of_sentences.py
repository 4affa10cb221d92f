"""Every number of a sentence about results stands in a table that evidence gives."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.evidence import MARK, made_of
from support.pages import FENCE
from support.paths import ROOT

PAGES = ("README", *(f"docs/{n}" for n in ("results", "deciding", "hard_prompts", "replay2026", "specifications")))
#: numbers without evidence, "PAGE: NUMBER", one a line: of the paper, of a machine, or of a table that is not kept
WITHOUT = ROOT / "tests" / "docs" / "numbers_without_evidence.txt"
NUMBER = re.compile(r"(?<![\w.])[-+]?(\d+\.\d+)(?![\w.]*\.?\d)")
CELL = re.compile(r"-?\d+(\.\d+)?")
ENDS = re.compile(r"[-+]?(\d[\d.]*\d|\d)(?: below| fewer| lower)? to [-+]?(\d[\d.]*\d|\d)(?![\d.])")


def numbers(text: str, before: str = "") -> set[str]:
    """Return the decimals of a text without their signs, and both ends of its intervals as one. before: an interval."""
    ends = (sorted(m.groups()) for m in re.finditer(before + ENDS.pattern, text))
    return set(NUMBER.findall(text)) | {" to ".join(pair) for pair in ends if "." in "".join(pair)}


@dataclass(frozen=True)
class Paragraph:
    """A paragraph or list item. sources: SCALE/STUDY and product, of comments in it; links: pages that it names."""

    page: str
    text: str
    sources: tuple[tuple[str, str], ...]
    links: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.text.split()[:6])}"


def paragraphs(page: str) -> Iterator[Paragraph]:
    text = FENCE.sub("", (ROOT / f"{page}.md").read_text(encoding="utf-8"))
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)|\n(?=<!--)", text):
        words = re.sub(r"<!--.*?-->|^\s*[|#>].*$", "", part, flags=re.MULTILINE | re.DOTALL)
        links = re.findall(r"\]\(((?:\.\./)?[\w/]*)\.md", words)
        words = " ".join(re.sub(r"`[^`]*`|\]\([^)]*\)", "", words).split())
        if numbers(words, r"\("):
            yield Paragraph(page, words, tuple(MARK.findall(part)), tuple(links))


def of_tables(page: Path) -> set[str]:
    """Return the numbers of a page's tables."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return set().union(*(numbers(cell) for line in lines if line.startswith("|") for cell in line.split("|")))


def of_rows(file: Path) -> set[str]:
    """Return the numbers of a CSV file with one to three decimals, and its intervals: columns low and high."""
    header, *rows = csv.reader(file.read_text(encoding="utf-8").splitlines())
    ends = [(i, header.index(name.replace("low", "high"))) for i, name in enumerate(header) if "low" in name]
    known = set()
    for row in rows:
        rounded = [[f"{abs(float(cell)):.{n}f}" for n in (1, 2, 3)] if CELL.fullmatch(cell) else [] for cell in row]
        known |= {number for numbers in rounded for number in numbers}
        known |= {" to ".join(sorted(pair)) for i, j in ends for pair in zip(rounded[i], rounded[j], strict=False)}
    return known


PARAGRAPHS = [p for page in PAGES for p in paragraphs(page)]
MARKED = [
    pytest.param(p, marks=[pytest.mark.slow] * bool(p.sources), id=", ".join([*(s for s, _ in p.sources[:1]), str(p)]))
    for p in PARAGRAPHS
]
LISTED = set(WITHOUT.read_text(encoding="utf-8").splitlines())


def unknown(paragraph: Paragraph) -> set[str]:
    """Return the numbers of a paragraph that neither its page's tables have nor the pages that it links to."""
    pages = [(ROOT / paragraph.page).parent / f"{link}.md" for link in paragraph.links]
    known = set().union(of_tables(ROOT / f"{paragraph.page}.md"), *map(of_tables, pages))
    if paragraph.page == "README":  # what it repeats of a sentence is checked there
        known |= {n for p in PARAGRAPHS if p.page in paragraph.links for n in numbers(p.text, r"\(")}
    return numbers(paragraph.text, r"\(") - known


@pytest.mark.parametrize("paragraph", MARKED)
def test_a_number_of_a_sentence_stands_in_a_table(
    paragraph: Paragraph, tmp_path_factory: pytest.TempPathFactory
) -> None:
    left = {f"{paragraph.page}: {n}" for n in unknown(paragraph)} - LISTED
    for source in paragraph.sources if left else ():
        folder = made_of(tmp_path_factory, *source)
        known = set().union(*map(of_tables, folder.glob("*.md")), *map(of_rows, folder.glob("*.csv")))
        left -= {f"{paragraph.page}: {n}" for n in known}
    assert left == set(), f"{paragraph}: name the evidence in a comment at its end"


def test_numbers_without_evidence_are_still_there() -> None:
    assert LISTED - {f"{p.page}: {n}" for p in PARAGRAPHS for n in unknown(p)} == set(), f"take them off {WITHOUT.name}"
