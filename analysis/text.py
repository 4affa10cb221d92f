"""Numbers, intervals and sentences as text, flat configurations, and CSV files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo import validate
from bapo.store.files import write_text

if TYPE_CHECKING:
    import pandas as pd

    from analysis.statistics import Estimate

#: printed where there is no number (an en dash)
MISSING = "\u2013"
BOLD, UNDERLINE = "bold", "underline"


def words(*keys: str, **fields: object) -> list[str]:
    """Return the sentences under keys of ``words.yaml``, their fields filled in."""
    sentences = validate.parse_yaml(Path(__file__).with_name("words.yaml"))
    return [sentence.format(**fields) for key in keys for sentence in sentences[key]]


def number(value: float | None, digits: int = 1, missing: str = MISSING) -> str:
    """Return a number as text: 12.34 -> "12.3"; ``missing`` where there is none."""
    return missing if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def signed(value: float, digits: int = 1) -> str:
    """Return a difference: 1.25 -> "+1.2"; 0.03 -> "+0.03", since "+0.0" would hide the sign; never "-0.0"."""
    if not math.isfinite(value):
        return MISSING
    digits += round(value, digits) == 0 != round(value, digits + 1)
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def thousands(value: float | None) -> str:
    """Return a count as the paper prints rollouts: 25600 -> "25.6k", 677000 -> "677k", 1921000 -> "1921k"."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value < 1000:
        return f"{value:.0f}"
    return f"{value / 1000:.0f}k" if value >= 100_000 else f"{value / 1000:.1f}k"


def operations(value: float) -> str:
    """Return a number of operations: 2345678 -> "2.35e+06"; an en dash where there is none."""
    return f"{value:.3g}" if math.isfinite(value) else MISSING


def p_number(value: float | None) -> str:
    """Return a p-value: 0.0004 -> "< 0.001", 0.0432 -> "0.043", 0.432 -> "0.43"; an en dash where there is none."""
    return "< 0.001" if value is not None and value < 0.001 else number(value, 3 if value and value < 0.1 else 2)


def p_value(value: float) -> str:
    """Return :func:`p_number` with its symbol: "p = 0.043", "p < 0.001"."""
    p = p_number(value)
    return f"p = {p}" if p[0].isdigit() else f"p {p}"


def span(values: Sequence[int]) -> str:
    """Return the range of numbers: {3} -> "3", {3, 5} -> "3 to 5"."""
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def counted(values: Sequence[int], noun: str) -> str:
    """Return :func:`span` with its noun: "1 seed", "3 to 5 seeds"."""
    return f"{span(values)} {noun}{'' if max(values) == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return seconds in words: 45 -> "45 s", 95 -> "1 min 35 s", 7500 -> "2 h 05 min", 200000 -> "2 d 7 h"."""
    whole = round(max(0.0, seconds))
    minutes, hours = whole // 60, whole // 3600
    if whole < 60:
        return f"{whole} s"
    if hours < 48:
        return f"{hours} h {minutes % 60:02d} min" if hours else f"{minutes} min {whole % 60:02d} s"
    return f"{hours // 24} d {hours % 24} h"


def minutes(seconds: float) -> str:
    """Return seconds in words, rounded up to minutes: 45 -> "1 min", 95 -> "2 min", 7500 -> "2 h 05 min"."""
    return duration(60 * math.ceil(seconds / 60)).removesuffix(" 00 s")


def ends(row: Mapping[str, Any], name: str = "") -> tuple[float, float, float]:
    """Return a number of a row with its 95% interval: NAME, NAME_low, NAME_high, or mean, low, high."""
    first, *others = (f"{name}{end}" for end in ("", "_low", "_high")) if name else ("mean", "low", "high")
    return row.get(first, math.nan), *(row.get(other, math.nan) for other in others)


def percent(mean: float, low: float, high: float) -> str:
    """Return a share and the half-width of its 95% interval in percent: "31.2 ± 1.4"."""
    return f"{number(mean)} ± {number((high - low) / 2)}"


def interval(low: float, high: float) -> str:
    """Return a 95% interval: "-0.3 to +2.7"."""
    return f"{signed(low)} to {signed(high)}"


def change(mean: float, low: float, high: float, form: Callable[[float], str] = signed) -> str:
    """Return a difference in points with its 95% interval, from low to high: "+1.2 (-0.3 to +2.7)".

    A missing one is an en dash. form: how each number is written.
    """
    return f"{form(mean)} ({form(low)} to {form(high)})" if math.isfinite(mean) else MISSING


def points(estimate: Estimate | None, *fields: str, prefix: str = "", suffix: str = "") -> dict[str, float]:
    """Return fields of an estimate in points or percent, named PREFIXfieldSUFFIX: CSV columns; NaN without one."""
    return {f"{prefix}{field}{suffix}": 100 * getattr(estimate, field, math.nan) for field in fields}


def columns(name: str, estimate: Estimate | None, *fields: str) -> dict[str, float]:
    """Return the mean as NAME and fields as NAME_field, as :func:`points`."""
    return {name: 100 * getattr(estimate, "mean", math.nan)} | points(estimate, *fields, prefix=f"{name}_")


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a CSV file with 6 significant digits: enough for any use, few enough to compare two files by eye.

    A text that a spreadsheet would take for a formula gets an apostrophe in front; a number is none.
    """
    formula = re.compile(r"[=@\t\r]|[+-](?![\d.]+$)")
    frame = frame.map(lambda cell: f"'{cell}" if isinstance(cell, str) and formula.match(cell) else cell)
    write_text(path, frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a configuration: {"train": {"steps": 1}} -> {"train.steps": 1}; an empty mapping is a value."""
    flattened: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        flattened |= flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return flattened
