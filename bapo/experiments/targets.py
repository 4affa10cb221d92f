"""What the workflow's targets are made of besides runs, read by the rules (workflows/) and `python -m bapo plan`."""

from __future__ import annotations

#: the paper's tables, and two of its kind, all of the runs of study table1
TABLES = ("table1", "table2", "table3", "table4", "checkpoint_choice", "theory_monitor")
#: studies beyond the paper's own tables and figures
BEYOND = ("offpolicy", "fidelity", "controls", "regimes")


def comparison_file(study: str) -> str:
    """The table of a study beyond the paper's; the regimes' has a page of its own."""
    return "regimes.md" if study == "regimes" else f"comparison_{study}.md"


def shows_curves(figure: str) -> bool:
    """Whether a figure shows the accuracy of every kept checkpoint, which takes evaluations of its own."""
    return figure.endswith(("_test_curves", "_ppo"))
