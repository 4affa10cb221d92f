"""The paper's figures: a function each, named by figure and content, that returns (Figure, DataFrame of its data)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.study import Study


@dataclass(frozen=True)
class Entry:
    """Where a figure is drawn and from what."""

    module: str  # file in analysis/figures/; the function in it has the figure's name
    study: str  # experiments/study/ whose runs it shows, and which names it among its figures
    number: str  # the paper's
    title: str


FIGURES = {
    "figure1_accuracy_groups": Entry("accuracy_groups", "table1", "Figure 1", "Accuracy groups before and after GRPO"),
    "figure4_training_curves": Entry("training_curves", "table1", "Figure 4", "Training curves"),
    "figure5_test_curves": Entry("test_curves", "figure5", "Figure 5", "Test curves of BAPO and its mini test"),
    "figure6_ablations": Entry("ablations", "figure6", "Figure 6", "Ablations of BAPO"),
    "figure7_tracking": Entry("tracking", "table1", "Figure 7", "Tracking of accuracy bins, mathematics"),
    "figure8_batch_composition": Entry("batch_composition", "table1", "Figure 8", "Batch composition, mathematics"),
    "figure9_cumulative_rollouts": Entry("cumulative_rollouts", "table1", "Figure 9", "Cumulative rollouts"),
    "figure10_online_filters": Entry("online_filters", "figure10", "Figure 10", "Online filters"),
    "figure11_dynamics": Entry("dynamics", "table1", "Figure 11", "Reward, entropy and response length"),
    "figure12_test_curves": Entry("test_curves", "table1", "Figure 12", "Test curves"),
    "figure13_tracking": Entry("tracking", "table1", "Figure 13", "Tracking of accuracy bins, Countdown and geometry"),
    "figure14_batch_composition": Entry("batch_composition", "table1", "Figure 14", "Batch composition, all tasks"),
    "figure15_migration": Entry("migration", "table1", "Figure 15", "Migration between accuracy bins"),
    "figure16_ppo": Entry("test_curves", "figure16", "Figure 16", "PPO against BA-PPO"),
}

#: figure -> the paper's number
NAMES = {name: entry.number for name, entry in FIGURES.items()}

#: the figures that show one method, which may be chosen
ONE_METHOD = ("figure15_migration",)


def of_study(name: str) -> list[str]:
    """The figures drawn from a study's runs; of a study file that names none of ours, those of Table 1."""
    return [f for f, e in FIGURES.items() if e.study == name] or of_study("table1")


def draw(name: str, study: Study, out: Path, method: str | None = None) -> list[Path]:
    """Write NAME.pdf, NAME.png, NAME.svg and NAME.csv to ``out``. method: of a figure that shows one.

    Raises UserError naming the runs that are missing and the command that makes them.
    """
    from analysis import style

    function = getattr(import_module(f"analysis.figures.{FIGURES[name].module}"), name)
    with style.settings():
        fig, frame = function(study, method) if name in ONE_METHOD else function(study)
        return style.save(fig, frame, out, name, f"{FIGURES[name].number}: {FIGURES[name].title}")
