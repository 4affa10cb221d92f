"""table1_so_far.md: the rows that Table 1 has already, while the workflow makes the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analysis.page import Page, at_scale
from analysis.products import SO_FAR
from analysis.results import Result
from analysis.study import Block, Study, evaluated
from analysis.tables.table1 import Section, page_table, parts
from bapo.store.files import write_text


def write(study: Study, out: Path) -> list[Path]:
    """Write the page; of a study without an evaluation nothing. No row is compared with another yet."""
    there = evaluated(study)
    if not there.blocks:
        return []
    asked = {(b.task, b.model): b for b in study.blocks}
    sections = [_section(block, asked[block.task, block.model], there) for block in there.blocks]
    runs, of = (sum(len(cells) for b in s.blocks for cells in b.methods.values()) for s in (there, study))
    introduction = [
        f"Unfinished: {runs} of {of} runs are evaluated. At the end table1.md replaces this page.",
        "A row says which seeds it has. Do not compare rows before all have theirs.",
    ]
    tables = [page_table(title, halves, said=False) for title, halves in parts(sections)]
    page = Page(f"{at_scale('Table 1', study.scale)}, so far", tables, [study.note] * bool(study.note), introduction)
    path = out / f"{SO_FAR}.md"
    write_text(path, page.markdown())
    return [path]


def _section(block: Block, asked: Block, study: Study) -> Section:
    """Return a block whose rows say which seeds they have. asked: the block with all runs that it will have."""
    section = Section.of(block, study, compared=False)
    rows = [row if row.is_base else replace(row, title=_with_seeds(row, asked)) for row in section.rows]
    return replace(section, rows=rows)


def _with_seeds(row: Result, asked: Block) -> str:
    wanted = [cell.seed for cell in asked.methods[row.method]]
    return f"{row.title} (seed{'s' * (len(row.seeds) > 1)} {', '.join(map(str, row.seeds))} of {len(wanted)})"
