"""The tables, from run directories: csv, Markdown and LaTeX. analysis/products.py lists them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import figures, products

if TYPE_CHECKING:
    from analysis.study import Study


def write(name: str, study: Study, out: Path) -> list[Path]:
    """Write a table into the folder ``out``; returns the files. Raises UserError naming missing runs."""
    from analysis.reading import from_evidence, require_runs

    table = (products.TABLES | products.OTHERS)[name]
    if not table.partial:
        require_runs(study)
    files = import_module(f"analysis.{table.made_by}").write(study, out)
    for figure in products.compared_with(study.name) if name == products.COMPARISON else ():
        known = products.FIGURES.get(figure)
        if not (known and known.groups and from_evidence(study)):
            files += figures.draw(figure, study, out, stem=products.beside_file(study.name, figure))
    return files
