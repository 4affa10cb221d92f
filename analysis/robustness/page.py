"""The robustness report in words and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import text
from analysis.page import Page, Table, at_scale
from analysis.robustness.reading import COMPLETE, FAIL, Sweep, Trial
from analysis.robustness.sensitivity import Region, Sensitivity, against_reference, shown
from bapo.store.files import write_text

if TYPE_CHECKING:
    import pandas as pd


def sentence(row: Sensitivity, area: Region | None) -> str:
    """Say what the sweep shows about one parameter."""
    name = row.parameter.title
    if row.change is None or row.ends is None:
        return f"{name}: tried at one value only, so nothing can be said."
    change, (first, last) = row.change, row.ends
    moved = f"from {first.words} to {last.words} accuracy changes by {text.signed(100 * change.mean)} points"
    if math.isfinite(change.half_width):
        moved += f" (95% {text.interval(change)}, {text.p_value(row.p)} after Holm)"
    verdict = "a significant difference" if row.found else "no difference was found, which is not the same as none"
    if not math.isfinite(row.p):
        verdict = "whether that is significant cannot be told"
    inside = _inside(row, area)
    return f"{name}: {moved}: {verdict}. {inside}"


def _inside(row: Sensitivity, area: Region | None) -> str:
    if area is None or not row.inside:
        return "No trial lies in the region."
    tried = [v for level in row.levels for v in level.values]
    kept = [v for v in tried if v in row.inside]
    if len(kept) == len(tried):
        values = f"every value tried ({_range(row, tried)})"
    else:
        values = f"{_range(row, kept)} of {_range(row, tried)}"
    return f"The region holds {values}."


def _range(row: Sensitivity, values: Sequence[Any]) -> str:
    if row.parameter.numeric and len(values) > 2:
        return f"{shown(values[0])} to {shown(values[-1])}"
    return ", ".join(map(shown, values))


def region_sentence(sweep: Sweep, area: Region | None) -> str:
    if area is None:
        return "No trial was completed, so there is no best one."
    n, inside, surely = len(sweep.complete), len(area.inside), len(area.surely)
    drawn = ", ".join(f"{p.title} = {shown(area.best.drawn[p.name])}" for p in sweep.parameters)
    return (
        f"The best of {n} complete trials has {text.percent(area.best.estimate)} % ({drawn}); "
        f"{sweep.reference_title} has {text.percent(area.reference)} % with the same seeds. "
        f"{inside} of {n} lie in the region: at least "
        f"{text.number(100 * area.bound)} % (the best minus one standard error) and above {sweep.reference_title}; "
        f"{surely} of these above it beyond doubt (95% interval of the difference)."
    )


def trials_table(sweep: Sweep, area: Region | None) -> Table:
    drawn = [p.title for p in sweep.parameters]
    header = ["Trial", *drawn, "Seeds", "Accuracy", f"Minus {sweep.reference_title}", "Region"]
    rows = []
    for t in sorted(sweep.trials, key=_rank):
        cells = [str(t.number), *(shown(t.drawn.get(p.name, text.MISSING)) for p in sweep.parameters)]
        cells.append(", ".join(text.number(100 * m) for m in t.seed_means) or text.MISSING)
        if len(t.accuracy):
            d = against_reference(t, sweep)
            cells += [text.percent(t.estimate), f"{text.signed(100 * d.mean)} ({text.interval(d)})"]
        else:
            cells += [text.MISSING, text.MISSING]
        cells.append("yes" if area and t in area.inside else "" if t.state == COMPLETE else t.state)
        rows.append(cells)
    failed = [f"Trial {t.number} failed: {t.reason}." for t in sweep.trials if t.state == FAIL]
    return Table("Trials, the best first", header, rows, "r" * (len(header) - 1) + "l", failed)


def _rank(trial: Trial) -> tuple[int, float]:
    return int(trial.state != COMPLETE), -trial.estimate.mean if len(trial.accuracy) else 0.0


def levels_table(sweep: Sweep, rows: Sequence[Sensitivity]) -> Table:
    header = ["Parameter", "Value", "Trials", "Accuracy", "Importance"]
    cells = []
    for row in rows:
        for i, level in enumerate(row.levels):
            weight = text.MISSING if row.importance is None else f"{100 * row.importance:.0f} %"
            numbers = [str(len(level.trials)), text.percent(level.estimate), weight if i == 0 else ""]
            cells.append([row.parameter.title, level.title, *numbers])
    return Table("Accuracy by value, over all complete trials", header, cells, "llrrr")


def notes(sweep: Sweep) -> list[str]:
    v, seeds = sweep.content["validation"], len(sweep.content["seeds"])
    over = "over problems and seeds" if seeds > 1 else "over problems, the run given"
    return [
        *([sweep.content["note"]] if sweep.content["note"] else []),
        f"Accuracy: percent of {v['samples']} samples of each of {sweep.reference.shape[1]} held-out validation "
        f"problems after the last step, mean over {text.counted([seeds], 'training seed')}; no test problem is "
        f"used. ±: half-width of the 95% interval {over}, left out where it would be wider "
        "than 100 points: too little data to tell.",
        "The best of many trials looks better than it is, because it is the best of noisy values: the region is "
        "therefore the thing to read, and a test of the chosen values needs new seeds.",
        "Differences are paired on the problems, seeds taken as independent, and Holm's correction is over the "
        "parameters; where values have no order, the one furthest from the first is compared with it, and p first "
        "multiplied by how many it was the furthest of. A level's accuracy is the mean of its trials, whatever their "
        "other parameters are"
        + (
            ": every combination was tried."
            if sweep.content["sampler"] == "grid"
            else "; a free search tries good neighbourhoods more often, so levels differ in other parameters too."
        ),
        f"Importance: PED-ANOVA's share for telling the better trials from all; with {len(sweep.complete)} trials it "
        "has no interval and orders the parameters roughly at best.",
    ]


def frame(sweep: Sweep, area: Region | None, rows: Sequence[Sensitivity]) -> pd.DataFrame:
    """Return one row a trial, then one a level of a parameter; accuracies in percent, differences in points."""
    import pandas as pd

    lines: list[dict[str, Any]] = []
    for t in sweep.trials:
        line: dict[str, Any] = {"kind": "trial", "trial": t.number, "state": t.state, **t.drawn}
        if len(t.accuracy):
            e, d = t.estimate, against_reference(t, sweep)
            line |= {
                "accuracy": 100 * e.mean,
                **text.points(e, "low", "high", "se"),
                "minus_reference": 100 * d.mean,
                **text.points(d, "low", "high", prefix="minus_"),
                "in_region": bool(area and t in area.inside),
                "runs": " ".join(t.runs),
            }
        lines.append(line)
    for row in rows:
        for level in row.levels:
            e = level.estimate
            lines.append(
                {
                    "kind": "level",
                    "parameter": row.parameter.name,
                    "level": level.title,
                    "trials": len(level.trials),
                    "accuracy": 100 * e.mean,
                    **text.points(e, "low", "high", "se"),
                    "importance": row.importance,
                    "p_holm": row.p,
                }
            )
    return pd.DataFrame(lines)


def write(sweep: Sweep, area: Region | None, rows: Sequence[Sensitivity], path: Path) -> pd.DataFrame:
    """Write the Markdown page; returns the numbers behind it."""
    c = sweep.content
    sentences = [region_sentence(sweep, area), *(sentence(row, area) for row in rows)]
    heading = at_scale(f"Robustness of {str(c['method_title']).lstrip('+')}: {c['title']}", c["scale"])
    tables = [levels_table(sweep, rows), trials_table(sweep, area)]
    write_text(path, Page(f"{heading} ({c['model_title']})", tables, notes(sweep), sentences).markdown())
    return frame(sweep, area, rows)
