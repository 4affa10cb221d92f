"""The figures, one function and file each. A figure is (Figure, DataFrame of its data); ``draw`` saves both."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.study import Study

#: figure and module name -> the paper's figure
NAMES = {
    "training_curves": "Figure 4",
    "migration_matrix": "Figure 15",
    "tracking": "Figures 7 and 13",
    "batch_composition": "Figures 8 and 14",
    "cumulative_rollouts": "Figure 9",
}


def draw(name: str, study: Study, out: Path, method: str | None = None) -> list[Path]:
    """Write NAME.pdf, NAME.png and NAME.csv to ``out``. method: the one that migration_matrix shows."""
    from analysis import style

    module = import_module(f"analysis.figures.{name}")
    with style.settings():
        fig, frame = module.figure(study, method) if name == "migration_matrix" else module.figure(study)
        return style.save(fig, frame, out, name)
