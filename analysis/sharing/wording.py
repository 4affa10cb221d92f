"""A comparison of two results in words, as a table and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from analysis import text
from analysis.page import markdown_table
from analysis.sharing.comparing import AGREES, DIFFERS, IDENTICAL, NO_INTERVAL, STATES, Comparison, Line, Number
from analysis.statistics import Estimate

RULE = """\
Two numbers agree where the difference is not significant at 5% (Holm's correction over all lines). Intervals are 95%:
over new problems and, where both sides have several seeds, new training seeds. (*) one seed: two trained models are
compared, not two methods."""
STRICT = RULE.replace("5% (Holm's correction over all lines)", "5%, each line by itself")


#: the fields of a claim that has another verdict
VERDICT = ("claim", "task", "model", "a", "b")


def as_text(found: Comparison, names: tuple[str, str], every: bool = False, strict: bool = False) -> str:
    """Return what agrees and what does not. every: all lines, not only those that are not the same."""
    counts = Counter(line.state for line in found.lines)
    shared = sum(counts[s] for s in (IDENTICAL, AGREES, DIFFERS, NO_INTERVAL))
    all_of_them = "all agree" if shared == len(found.lines) else "all shared numbers agree"
    verdict = all_of_them if found.agree else f"{counts[DIFFERS]} of {shared} differ"
    parts = [f"# A: {names[0]}, B: {names[1]}: {verdict}", ""]
    parts += [", ".join(f"{counts[s]} {s}" for s in STATES if counts[s]) + ".", ""]
    for side, faults in zip("AB", found.faults, strict=True):
        if faults:
            more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
            parts += [f"Warning: {side} is not as it was packed: {faults[0]}{more}; see `bapo verify`.", ""]
    if found.scales[0] != found.scales[1]:
        parts += [f"The scales are not the same: {found.scales[0]} and {found.scales[1]}.", ""]
    shown = [line for line in found.lines if every or line.state in (DIFFERS, NO_INTERVAL)]
    if shown:
        head = ["Task", "Model", "Method", "Column", "A", "B", "A - B", "p", "p Holm", ""]
        parts += [markdown_table(head, [_row(line) for line in shown], "llllrrrrrl"), STRICT if strict else RULE, ""]
    changed = {line.configuration: line for line in found.lines if line.configuration}
    if changed:
        parts += ["## Configurations that differ", ""]
        for keys, line in changed.items():
            more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
            parts.append(f"- {line.task}/{line.model}/{line.method}: {', '.join(keys[:8])}{more}")
        parts.append("")
    if found.verdicts:
        parts += ["## Claims with another verdict", ""]
        parts += [f"- {' '.join(filter(None, k))}: {a}; {b}" for k, (a, b) in found.verdicts.items()]
        parts.append("")
    return "\n".join(parts)


def _row(line: Line) -> list[str]:
    difference = text.MISSING
    if line.difference is not None and line.state != IDENTICAL:
        difference = _amount(line, line.difference.mean, signed=True)
        if math.isfinite(line.difference.half_width):
            ends = [_amount(line, v, signed=True) for v in (line.difference.low, line.difference.high)]
            difference += f" ({ends[0]} to {ends[1]})"
    state = line.state + ("" if line.several_seeds or line.is_cost else " (*)")
    place = [line.task, line.model, line.method, line.column]
    return [*place, _shown(line, line.a), _shown(line, line.b), difference, _p(line.p), _p(line.adjusted), state]


def _p(value: float) -> str:
    return text.p_number(value if math.isfinite(value) else None)


def _shown(line: Line, number: Number | None) -> str:
    if number is None:
        return text.MISSING
    half = number.estimate.half_width
    mean = _amount(line, number.estimate.mean)
    return f"{mean} ± {_amount(line, half)}" if math.isfinite(half) and half else mean


def _amount(line: Line, value: float, signed: bool = False) -> str:
    scaled, digits = (value, 0) if line.is_cost else (100 * value, 1)
    return text.signed(scaled, digits) if signed else text.number(scaled, digits)


def as_json(found: Comparison, names: tuple[str, str]) -> dict[str, Any]:
    """Return every line: accuracies in percent, differences in points, costs as they are; what is missing is null."""
    counts = Counter(line.state for line in found.lines)
    return {
        "a": names[0],
        "b": names[1],
        "agree": found.agree,
        "scales": list(found.scales),
        "faults": dict(zip("ab", found.faults, strict=True)),
        "counts": {state: counts[state] for state in STATES},
        "numbers": [_dictionary(line) for line in found.lines],
        "verdicts": [dict(zip(VERDICT, (*k, *v), strict=True)) for k, v in found.verdicts.items()],
    }


def _dictionary(line: Line) -> dict[str, Any]:
    scale = 1 if line.is_cost else 100
    return {
        **{key: getattr(line, key) for key in ("task", "model", "method", "column", "state", "paired")},
        "a": _number(line.a, scale),
        "b": _number(line.b, scale),
        "difference": _estimate(line.difference, scale),
        "p": _finite(line.p),
        "p_holm": _finite(line.adjusted),
        "configuration_differs": list(line.configuration),
    }


def _number(number: Number | None, scale: int) -> dict[str, Any] | None:
    return None if number is None else {**_estimate(number.estimate, scale), "seeds": number.seeds}


def _estimate(estimate: Estimate | None, scale: int) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {key: _finite(scale * getattr(estimate, key)) for key in ("mean", "low", "high")}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
