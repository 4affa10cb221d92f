"""The paper's figures: a function each, named by figure and content, that returns (Figure, DataFrame of its data)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo import project
from bapo.experiments import places, products

if TYPE_CHECKING:
    from analysis.study import Study

#: the figures whose method may be chosen
ONE_METHOD = ("figure15_migration",)


def function(name: str) -> Any:
    """Return what draws a figure, from the file called by its content; PPO's are test curves too.

    Of a project's own, FILE.py:NAME, what it names. Raises UserError where there is no such function.
    """
    if project.is_place(name):
        return project.load(name, "also")
    if name in products.ALSO:
        return getattr(import_module(f"analysis.figures.{name}"), name)
    content = name.partition("_")[2]
    return getattr(import_module(f"analysis.figures.{'test_curves' if content == 'ppo' else content}"), name)


def _spoken(place: str) -> str:
    return place.rpartition(":")[2].replace("_", " ").capitalize()


def of_study(name: str) -> list[str]:
    """Return the figures drawn from a study's runs; for a study file that names none of ours, those of Table 1."""
    known = name in places.options("study") and products.figures_of(name)
    return known or products.figures_of(products.MAIN)


def draw(name: str, study: Study, out: Path, method: str | None = None, stem: str = "") -> list[Path]:
    """Write NAME.pdf, NAME.png, NAME.svg and NAME.csv to ``out``. method: of a figure that shows one; stem: not NAME.

    Raises UserError naming the runs that are missing and the command that makes them.
    """
    from analysis import style

    figure = products.FIGURES.get(name)
    title = f"{figure.number}: {figure.title}" if figure else products.ALSO.get(name) or _spoken(name)
    with style.settings():
        fig, frame = function(name)(study, method) if name in ONE_METHOD else function(name)(study)
        return style.save(fig, frame, out, stem or name, title)
