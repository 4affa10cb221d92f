"""The pages for readers: links, paths, the index, what the README repeats, and the rules of plain words."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
import yaml
from support.pages import PAGES, Block, anchors, blocks, prose
from support.paths import ROOT

from analysis import products
from bapo import methods
from bapo.experiments.places import options
from bapo.experiments.studies import study_file
from bapo.store import columns

#: where a link may lead outside of the checkout; its form is checked, not the network
OUTSIDE = re.compile(r"https://(arxiv\.org/abs/\d{4}\.\d{5}|snakemake\.github\.io|github\.com/[\w.-]+/[\w.-]+)")
FOLDERS = "analysis|bapo|benchmarks|containers|docs|examples|experiments|profiles|tests|workflows"
BLOCKS = [b for b in blocks() if b.language != "sh"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = prose(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'\bsrc(?:set)?="([^"]+)"', text):
        if OUTSIDE.fullmatch(target):
            continue
        assert ":" not in target, f"{target}: only links of a known form lead outside of the checkout"
        path, _, anchor = target.partition("#")
        place = page.parent / path if path else page
        assert place.exists(), target
        if anchor:
            assert anchor in anchors(place), f"{target}: the headings are {sorted(anchors(place))}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_path_that_is_named_exists(page: Path) -> None:
    """In code; a star stands for any name."""
    named = re.findall(rf"`((?:{FOLDERS})/[^\s`:]*)`", prose(page))
    assert [path for path in named if not any(ROOT.glob(path.rstrip("/")))] == []


def test_every_name_of_the_code_exists() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    named = {name for text in texts for name in re.findall(r"`(bapo(?:\.\w+)+)\b", text)}
    named |= {f"{m}.{name}" for text in texts for m, name in re.findall(r"^from (bapo\S*) import (\w+)", text, re.M)}
    for name in named - {"bapo.yaml"}:  # a file
        resolve_name(name)


def test_the_index_lists_every_page_once() -> None:
    listed = re.findall(r"^\| \[\S+\]\((\S+)\) \|", prose(ROOT / "docs" / "README.md"), re.MULTILINE)
    pages = [str(page.relative_to(ROOT)) for page in PAGES[1:] if page.name != "README.md"]
    others = ["../benchmarks/NOTES.md", "../evidence/README.md"]  # the site needs a place for what pages link to
    assert sorted(listed) == sorted([*(p.removeprefix("docs/") if "/" in p else f"../{p}" for p in pages), *others])


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_what_it_says(block: Block) -> None:
    """A language that is not known would hide commands from tests/docs/test_commands.py."""
    assert block.language in ("python", "yaml", "text")
    if block.language == "python":
        ast.parse(block.text if not block.text.startswith('"') else "{" + block.text + "}")
    elif block.language == "yaml":
        assert yaml.safe_load(block.text)


def targets() -> str:
    """Return the studies, tables and figures as the Markdown table that docs/running.md shows."""
    lines = ["| target | what it makes | scales or study |", "|---|---|---|"]
    files = [study_file(name) for name in options("study")]
    lines += [f"| `{file.name}` | {file.title} | {', '.join(file.scales)} |" for file in files]
    scales = dict.fromkeys(scale for file in files for scale in file.scales)
    drawn = [products.drawn_by(names, s) for s in scales for names in (products.tables_of, products.figures_of)]
    studies = {name: study for part in drawn for name, study in part.items() if name != study}
    for name, product in (products.TABLES | products.FIGURES).items():
        lines += [f"| `{name}` | {product.heading} | of `{studies[name]}` |"] if name in studies else []
    return "\n".join(lines)


def test_the_page_lists_every_target() -> None:
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    assert targets() in page
    named = " ".join(re.findall(r"`([^`]*)`", page)).split()
    assert {target for scale in options("scale") for target in products.targets(scale, ())} - {*named} == set()


def test_the_page_lists_every_column() -> None:
    assert columns.markdown() in (ROOT / "docs" / "running.md").read_text(encoding="utf-8")


def test_the_reference_is_made_from_the_code() -> None:
    made = [sys.executable, str(ROOT / "docs" / "reference.py")]
    page = subprocess.run(made, capture_output=True, text=True, check=True).stdout
    assert page == (ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), "write it again: docs/reference.py"
    assert re.findall(r"^.*\|  \|$", page, re.MULTILINE) == [], "keys without a word: comments in the classes"


def test_the_classes_that_people_derive_from_explain_every_argument() -> None:
    page = (ROOT / "docs" / "classes.md").read_text(encoding="utf-8")
    silent = []
    for place in re.findall(r"autoclass:: (\S+)", page):
        cls = resolve_name(place)
        hooks = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
        for name, value in hooks.items():
            function = getattr(value, "__func__", value)
            names = [n for n in inspect.signature(function).parameters if n != "self"] if callable(function) else []
            text = inspect.getdoc(function) or ""
            silent += [
                f"{place}.{name}: {n}" for n in names if not isinstance(value, type) and f"    {n}: " not in text
            ]
    assert silent == []


LINES = 120  # of the README
WORDS, NUMBERS = 30, 4  # the most in a sentence
FILES, ALL_WORDS = 20, 24_000  # pages by hand, and their words outside of tables
IN_A_PARAGRAPH = 5  # numbers, without "0/8", which is a word
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,.]*%?")
#: phrases that no right sentence needs
CALQUES = "level with|came out|comes out|is said|says so|none of it is|to be told|so many"
#: and those that no page has: calques, and terms that have a plainer name
BANNED = r"give (?:it|the|them|that|your)|told apart|anew|by little|for itself|stands? in for|stands? for|lies in"
BANNED += r"|is no \w+ (?:picture|statement)|turn\w* .{0,30} round|the house|sealed doors?|ledgers?|informative groups?"
BANNED += r"|gate (?:fails|holds)|the delay|delayed GRPO|fresh groups?|(?<![-/])crates?"
#: terms that a page links to their meaning where it first uses them
TERMS = (
    "identit(?:y|ies)",
    "probe",
    "evidence",
    "positive control",
    "claim check",
    "pass@",
    "X[123]",
    "stale sampling",
)
#: where the meanings stand
MEANINGS = ("#words", "#how-to-read-the-numbers", "#evidence-in-the-repository", "claims.md")
#: pages that explain the terms, and lists
EXPLAINING = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/README.md", "docs/reference.md", "docs/classes.md")
#: what tables, figures and verdicts say, by where it stands
WORDS_OF_THE_CODE = {
    "methods": methods.table(),
    "columns": columns.markdown(),
    **{str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in ROOT.glob("analysis/claims/*.yaml")},
    "words": (ROOT / "analysis" / "words.yaml").read_text(encoding="utf-8"),
}
STRICT = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{n}.md" for n in ("results", "deciding", "running", "engines", "status")),
]


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


@pytest.mark.parametrize("page", NAMES)
def test_a_page_that_keeps_the_rules(page: str) -> None:
    parts = [*paragraphs(prose(ROOT / page))]
    assert re.findall(rf"\b(?:{BANNED})\b", " ".join(parts), re.IGNORECASE) == []
    assert [p for p in parts if len(NUMBER.findall(re.sub(r"\b[08]/8\b", "", p))) > IN_A_PARAGRAPH] == []
    if page not in STRICT:
        return
    found = [s for p in parts for s in re.split(r'(?<=[.!?])\s+(?=[A-Z"(])', p)]
    found = [sentence for sentence in found if len(sentence.split()) > 1]
    assert [s for s in found if len(s.split()) > WORDS] == []
    assert [s for s in found if len(NUMBER.findall(s)) > NUMBERS] == []
    assert re.findall(rf"\b(?:{CALQUES})\b", " ".join(found), re.IGNORECASE) == []


@pytest.mark.parametrize("page", sorted({*NAMES} - {*EXPLAINING}))
def test_a_page_links_a_term_at_its_first_use(page: str) -> None:
    """In sentences; "(X2)" and "**X1" are explanations themselves."""
    text = re.sub(r"<!--.*?-->|^\|.*?$|^#.*?$|`[^`]*`", "", prose(ROOT / page), flags=re.DOTALL | re.MULTILINE)
    for term in TERMS:
        mark, linked = r"(\*\*|\(|\[(?:[^\]]* )?)?(?<![\w/@#-])", r"(?:[^\]]*\]\(([^)]*)\))?"
        first = re.search(f"{mark}{term}{linked}", " ".join(text.split()), re.IGNORECASE)
        assert first is None or first[1], first
        assert first is None or first[1][0] != "[" or first[2].endswith(MEANINGS), first


@pytest.mark.parametrize("text", WORDS_OF_THE_CODE)
def test_what_the_code_shows_has_plain_words(text: str) -> None:
    """Tables of evidence keep the questions as they were registered."""
    assert re.findall(rf"\b(?:{BANNED})\b", WORDS_OF_THE_CODE[text], re.IGNORECASE) == []


def test_the_pages_are_few() -> None:
    """Without their index and what is made from code."""
    made = ("README.md", "classes.md", "reference.md", "grader_disagreements.md")
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in made]
    assert len(pages) <= FILES
    lines = [line for page in pages for line in prose(page).splitlines() if not line.startswith("|")]
    assert sum(len(line.split()) for line in lines) <= ALL_WORDS


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LINES
