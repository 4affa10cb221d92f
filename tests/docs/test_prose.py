"""The pages in numbers: words a sentence, numbers a sentence, idioms that a reader stumbles over.

The pages of STRICT keep the rules. Every other page has recorded counts of what breaks them, and these may only shrink:
write the smaller numbers into RECORDED.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from support.pages import PAGES, prose
from support.paths import ROOT

LINES = 120  # of the README
WORDS, NUMBERS = 30, 4  # the most in a sentence
IDIOMS = (
    "level with|came out|comes out|in place of|is said|says so|all but|of its own|of their own|by itself|by themselves|"
    "so many|none of it is|not to be|to be told|beside"
)
#: page -> the most words a sentence may have on average
STRICT = {"README.md": 12, "docs/results.md": 13, "docs/deciding.md": 13, "docs/running.md": 12}
#: page -> sentences of more than WORDS, sentences of more than NUMBERS, idioms
RECORDED = {
    "CONTRIBUTING.md": (0, 0, 0),
    "docs/README.md": (0, 0, 0),
    "docs/audit.md": (2, 3, 3),
    "docs/claims.md": (1, 1, 1),
    "docs/data.md": (5, 0, 1),
    "docs/engines.md": (6, 3, 6),
    "docs/evaluation.md": (5, 3, 1),
    "docs/fidelity.md": (5, 1, 1),
    "docs/grader_disagreements.md": (0, 0, 0),
    "docs/imports.md": (0, 0, 0),
    "docs/matched.md": (6, 13, 0),
    "docs/methods.md": (1, 0, 0),
    "docs/paper_scale.md": (6, 7, 2),
    "docs/pocket.md": (3, 4, 2),
    "docs/project.md": (1, 0, 3),
    "docs/provenance.md": (4, 0, 0),
    "docs/robustness.md": (0, 2, 1),
    "docs/scales.md": (3, 2, 0),
    "docs/sharing.md": (2, 0, 0),
    "docs/single_gpu.md": (1, 0, 0),
    "docs/slurm.md": (4, 0, 1),
    "docs/speed.md": (0, 0, 0),
    "docs/status.md": (0, 0, 0),
    "docs/sweeps.md": (0, 0, 1),
    "docs/tuning.md": (1, 0, 1),
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


def sentences(text: str) -> list[str]:
    """Return the sentences of a page without fenced blocks; a single word is none."""
    found = [s for p in paragraphs(text) for s in re.split(r'(?<=[.!?])\s+(?=[A-Z"(])', p)]
    return [sentence for sentence in found if len(sentence.split()) > 1]


def long(found: list[str]) -> list[str]:
    return [s for s in found if len(s.split()) > WORDS]


def numerous(found: list[str]) -> list[str]:
    return [s for s in found if len(re.findall(r"(?<![\w.])[-+]?\d[\d,.]*%?", s)) > NUMBERS]


def idioms(found: list[str]) -> list[str]:
    return re.findall(rf"\b(?:{IDIOMS})\b", " ".join(found), re.IGNORECASE)


def of(page: str) -> list[str]:
    return sentences(prose(ROOT / page))


def test_the_counts_find_what_they_look_for() -> None:
    page = (
        "# A title\n\n> [!NOTE]\n> **Bold words.** It is level with `x`, by -1.2\n> (0.5 to 1.0), 3% and 4. [A "
        f"link](x.md#1) ends.\n\n| a table | 1 2 3 4 5 |\n\n1. {'word ' * 30}end\n2. `One` two three 4.\n"
    )
    bold, first, second, third, fourth = found = sentences(page)
    assert (bold, second, fourth) == ("Bold words.", "A link ends.", "Code two three 4.")
    assert long(found) == [third] and numerous(found) == [first] and idioms(found) == ["level with"]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LINES


@pytest.mark.parametrize("page", STRICT)
def test_a_page_that_keeps_the_rules(page: str) -> None:
    found = of(page)
    assert (long(found), numerous(found), idioms(found)) == ([], [], [])
    assert sum(len(s.split()) for s in found) / len(found) <= STRICT[page]


@pytest.mark.parametrize("page", [name for p in PAGES if (name := str(p.relative_to(ROOT))) not in STRICT])
def test_a_page_that_is_on_its_way(page: str) -> None:
    found = of(page)
    now = tuple(map(len, (long(found), numerous(found), idioms(found))))
    assert now == RECORDED[page], [*long(found), *numerous(found), *idioms(found)]
