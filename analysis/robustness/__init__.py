"""The robustness report of one sweep: ``python -m analysis robustness``."""

from __future__ import annotations

from pathlib import Path


def write(trials: Path, out: Path) -> list[Path]:
    """robustness.md, .csv, .pdf, .png and .svg of the sweep whose ``trials.json`` is given."""
    from analysis import style
    from analysis.robustness import figure, page, reading, sensitivity

    sweep = reading.load(trials)
    area = sensitivity.region(sweep)
    rows = sensitivity.sensitivities(sweep, area)
    text = out / "robustness.md"
    numbers = page.write(sweep, area, rows, text)
    with style.settings():
        drawn = figure.draw(sweep, area, rows)
        return [text, *style.save(drawn, numbers, out, "robustness", sweep.content["title"])]
