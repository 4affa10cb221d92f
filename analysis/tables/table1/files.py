"""Table 1 of the paper from finished runs: table1.csv (long), table1.md, table1.tex and table1_differences.csv.

All accuracies are in percent, as the paper prints them. A row is a method, averaged over its training seeds.
"""

from __future__ import annotations

from pathlib import Path

from analysis import text
from analysis.study import Study
from analysis.tables.table1 import layout as table1_layout
from analysis.tables.table1 import numbers as table1_numbers
from analysis.tables.table1.numbers import Section
from bapo.store.files import write_text


def write(study: Study, out: Path) -> list[Path]:
    """Write the table in every format; returns the files."""
    sections = [Section.of(block, study) for block in study.blocks]
    paths = [out / f"table1.{suffix}" for suffix in ("csv", "md", "tex")] + [out / "table1_differences.csv"]
    text.write_csv(paths[0], table1_numbers.long_table(sections))
    write_text(paths[1], table1_layout.markdown(sections, study))
    write_text(paths[2], table1_layout.latex(sections, study))
    text.write_csv(paths[3], table1_numbers.differences(sections))
    return paths
