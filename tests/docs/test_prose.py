"""The pages that keep the rules of plain words: words a sentence, numbers a sentence, idioms that stop a reader."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from support.pages import prose
from support.paths import ROOT

LINES = 120  # of the README
WORDS, NUMBERS = 30, 4  # the most in a sentence
IDIOMS = (
    "level with|came out|comes out|in place of|is said|says so|all but|of its own|of their own|by itself|by themselves|"
    "so many|none of it is|not to be|to be told|beside"
)
#: page -> the most words a sentence may have on average
STRICT = {
    **{"README.md": 12, "CONTRIBUTING.md": 15, "docs/results.md": 13, "docs/deciding.md": 13, "docs/running.md": 12},
    **{"docs/speed.md": 15, "docs/status.md": 15},
}


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page without fenced blocks, each as one line without markup."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^>[ ]?(\[!\w+\])?", "", text, flags=re.MULTILINE)  # quotations
    text = re.sub(r"^\s*(\||#).*$", "", text, flags=re.MULTILINE)  # tables, headings
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "Code", text)
    text = re.sub(r"<[^>]+>|[*_]{1,3}", "", text)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)", text):
        words = re.sub(r"^([-*+]|\d+\.)\s", "", part.strip()).split()
        if len(words) > 3:
            yield " ".join(words)


@pytest.mark.parametrize("page", STRICT)
def test_a_page_that_keeps_the_rules(page: str) -> None:
    found = [s for p in paragraphs(prose(ROOT / page)) for s in re.split(r'(?<=[.!?])\s+(?=[A-Z"(])', p)]
    found = [sentence for sentence in found if len(sentence.split()) > 1]
    assert [s for s in found if len(s.split()) > WORDS] == []
    assert [s for s in found if len(re.findall(r"(?<![\w.])[-+]?\d[\d,.]*%?", s)) > NUMBERS] == []
    assert re.findall(rf"\b(?:{IDIOMS})\b", " ".join(found), re.IGNORECASE) == []
    assert sum(len(s.split()) for s in found) / len(found) <= STRICT[page]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LINES
