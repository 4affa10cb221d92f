"""The pages for readers: links, paths, the index, and what the README repeats."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml
from support import scripted
from support.pages import PAGES, Block, anchors, blocks, example, prose
from support.paths import ROOT

from bapo.methods import MethodConfig

FOLDERS = "analysis|bapo|benchmarks|containers|docs|experiments|profiles|tests|workflows"
BLOCKS = [b for b in blocks() if b.language != "sh"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        assert ":" not in target, f"{target}: only links within the checkout are checked"
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
    assert sorted(listed) == sorted(p.removeprefix("docs/") if "/" in p else f"../{p}" for p in pages)


def test_the_readmes_averages_are_those_of_the_whole_table() -> None:
    def rows(page: str) -> list[list[str]]:
        table = [line for line in prose(ROOT / page).splitlines() if line.startswith("| ")]
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]

    whole = [row for row in rows("docs/results.md") if len(row) in (10, 14)]
    excerpt = [row for row in rows("README.md") if len(row) == 7 and " ± " in row[1]]
    assert [row[0] for row in excerpt] == ["base model", "+GRPO", "+DAPO", "+BAPO"]
    for label, *averages in excerpt:
        expected = []
        for width, label_at, average_at in ((10, 0, 6), (14, 0, 3), (14, 7, 10)):
            table = [row for row in whole if len(row) == width]
            titles = [row[label_at] for row in table]
            base = next(title for title in titles if title.startswith("**Qwen"))
            at = titles.index(label if label in titles else base)
            assert titles[at + 1].startswith("*paper")
            expected += [table[at][average_at].split(" (sd")[0], table[at + 1][average_at]]
        assert averages == expected, label


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_what_it_says(block: Block) -> None:
    """A language that is not known would hide commands from tests/docs/test_commands.py."""
    assert block.language in ("python", "yaml", "text")
    if block.language == "python":
        ast.parse(block.text if not block.text.startswith('"') else "{" + block.text + "}")
    elif block.language == "yaml":
        assert yaml.safe_load(block.text)


def test_the_readmes_method_does_what_it_says() -> None:
    """The workflow takes it too: tests/docs/test_commands.py."""
    space: dict[str, Any] = {"__name__": "bapo.methods.positive_only"}
    exec(example("python", "bapo/methods/positive_only.py"), space)
    method = space["PositiveOnly"](MethodConfig(), batch_size=2, seed=1)
    never, once = scripted.group("never", 0), scripted.group("once", 1)
    batch = method.build_batch(1, [never, once], None)
    assert batch.groups == [once] and batch.rejected == [(never, "never solved")]
