"""The tables, from run directories: csv, Markdown and LaTeX. analysis/products.py lists them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from analysis import figures, products
from analysis.study import StudyFile
from bapo.errors import UserError


def write(name: str, study: StudyFile, out: Path) -> list[Path]:
    """Write a table into the folder ``out``; returns the files. Raises UserError naming missing runs."""
    from analysis.reading import NotRecorded, require_runs

    table = (products.TABLES | products.OTHERS)[name]
    if name != products.FIRST_LOOK:  # it is made before the others' runs
        require_runs(study)
    files = import_module(f"analysis.{table.made_by}").write(study, out)
    for figure in products.compared_with(study.name) if name == products.COMPARISON else ():
        stem = f"{products.compared_file(study.name)}_{figure.rpartition(':')[2]}"
        try:
            files += figures.draw(figure, study, out, stem)
        except NotRecorded as lacking:  # evidence has no groups.parquet, which some figures read
            print(f"left out: {figure}: {lacking}", file=sys.stderr)
        except UserError as error:
            raise UserError(f"{figure}: {error}") from None
    return files
