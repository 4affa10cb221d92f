"""The tables, from run directories: csv, Markdown and LaTeX. Those of the paper, and one of every other study."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import figures
from bapo.experiments import products

if TYPE_CHECKING:
    from analysis.study import Study

#: command of ``python -m analysis`` -> the module here that writes the table
MODULES = {
    "table1": "table1.files",
    "table1-so-far": "table1.so_far",
    "first-look": "first_look",
    "table2": "table2",
    "table3": "table3",
    "table4": "table4",
    "checkpoint-choice": "checkpoint_choice.files",
    "variance": "variance",
    "theory": "theory.monitor",
    "comparison": "comparison",
    "tuning": "tuning",
}

#: commands that say themselves what is missing, or can do without
SPARING = ("table1", "table1-so-far", "first-look", "checkpoint-choice", "theory")


def write(command: str, study: Study, out: Path) -> list[Path]:
    """Write one of MODULES into the folder ``out``; returns the files. Raises UserError naming missing runs."""
    from analysis.reading import require_runs

    if command not in SPARING:
        require_runs(study)
    modules = [MODULES[command]]
    if command == "comparison" and study.name == products.REGIMES:
        modules.append("regimes.files")
    files = [path for name in modules for path in import_module(f"analysis.tables.{name}").write(study, out)]
    for figure in products.also(study.name) if command == "comparison" else ():
        files += figures.draw(figure, study, out, stem=products.also_file(study.name, figure))
    return files
