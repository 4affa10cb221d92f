"""The paper's figures: a function each, named by figure and content, that returns (Figure, DataFrame of its data).

Each raises UserError naming the runs that are missing, and NotRecorded where a run does not hold what is drawn.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from analysis import products, style
from analysis.study import StudyFile
from bapo import project


def function(name: str) -> Any:
    """Return what draws a figure, or what FILE.py:NAME of a project names. Raises UserError where there is no such."""
    if project.is_place(name):
        return project.load(name, "figures")
    return getattr(import_module(f"analysis.{products.FIGURES[name].made_by}"), name)


def draw(name: str, study: StudyFile, out: Path, stem: str = "") -> list[Path]:
    """Write NAME.pdf, NAME.png, NAME.svg and NAME.csv of a study's runs to ``out``. stem: in the place of NAME.

    Raises UserError naming the runs that are missing and the command that makes them.
    """
    figure = products.FIGURES.get(name)
    title = figure.heading if figure else name.rpartition(":")[2].replace("_", " ").capitalize()
    with style.settings():
        fig, frame = function(name)(study)
        return style.save(fig, frame, out, stem or name, title)
