"""The claims ledger (``claims.json``), checked and put into words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import text
from analysis.claims import CONTRADICTED, NOT_TESTABLE, REPRODUCED, UNDERPOWERED
from bapo.errors import UserError
from bapo.store.files import read_json

#: how the verdicts look; another verdict looks like the last
LOOKS = {REPRODUCED: "good", CONTRADICTED: "bad", UNDERPOWERED: "open", NOT_TESTABLE: "none"}
FIRM = (REPRODUCED, CONTRADICTED)
#: commands in the formulas of quotations -> their signs
SIGNS = {"\\sim ": "~", "\\%": "%", "\\mu": "μ", "\\pi": "π", "\\theta": "θ"}
#: what a claim may say beside its columns -> its name here
FACTS = {
    "id": "Claim",
    "model": "Model",
    "query": "Query",
    "parameters": "Parameters",
    "rule": "Rule",
    "size": "Size",
    "part": "Decided by",
    "p": "p",
    "p_holm": "p, Holm over the ledger",
    "holds_corrected": "Holds after Holm",
    "note": "Note",
    "studies": "Studies",
    "command": "Command",
}


@dataclass(frozen=True)
class Part:
    """One of the comparisons that a claim is made of."""

    name: str
    estimate: str
    interval: str
    note: str


@dataclass(frozen=True)
class Claim:
    """A line of the ledger as it is printed. anchor: unique in the page; facts: what opening it shows, by name."""

    anchor: str
    id: str
    section: str
    quote: str
    paper: str
    task: str
    estimate: str
    interval: str
    unit: str
    n_seeds: str
    verdict: str
    look: str
    reason: str
    facts: tuple[tuple[str, str], ...]
    parts: tuple[Part, ...]
    runs: tuple[str, ...]
    sort: float | None  # the estimate, for sorting


def lines(path: Path) -> list[Mapping[str, Any]]:
    """Return the ledger as it is; [] where there is none. Raises UserError where it is not a list of claims."""
    if not path.exists():
        return []
    content = read_json(path)
    if isinstance(content, Mapping):
        content = content.get("claims")
    if not isinstance(content, list) or not all(isinstance(c, Mapping) and c.get("id") for c in content):
        raise UserError(f"{path}: must be a list of claims that have an id each; delete it and make it again")
    return content


def load(path: Path) -> list[Claim]:
    """Return the ledger in words, as :func:`lines` reads it."""
    return [_claim(i, line) for i, line in enumerate(lines(path))]


def anchor(index: int) -> str:
    """Return the name in the page of a line of the ledger."""
    return f"claim-{index + 1}"


def readable(quote: str) -> str:
    """Return a quotation without the marks of the paper's source: bold, underlined, formulas as plain text."""
    plain = re.sub(r"\*\*|</?u>", "", quote)
    plain = re.sub(r"\\mathcal\{X\}_(\d)", r"X\1", plain)
    return re.sub(r"\$([^$]+)\$", lambda formula: _formula(formula[1]), plain)


def _formula(tex: str) -> str:
    for name, sign in SIGNS.items():
        tex = tex.replace(name, sign)
    return re.sub(r"\b([cvm])_(\d)", r"\1\2", tex)


def _claim(index: int, line: Mapping[str, Any]) -> Claim:
    verdict = _words(line.get("verdict")) or "no verdict"
    estimate, low, high = _alike(line.get("estimate"), line.get("low"), line.get("high"))
    runs, parts = line.get("runs") or [], line.get("parts") or []
    facts = {name: _words(line.get(key)) for key, name in FACTS.items()}
    if verdict not in FIRM:  # a correction for many tests has nothing to say of what was not found
        facts[FACTS["holds_corrected"]] = ""
    shown = [_part(p) for p in parts if isinstance(p, Mapping)]
    value = line.get("estimate")
    return Claim(
        anchor=anchor(index),
        **{key: _words(line.get(key)) for key in ("id", "section", "task", "unit", "n_seeds", "reason")},
        quote=readable(_words(line.get("quote"))),
        paper=_number(line.get("paper_value")),
        estimate=estimate,
        interval=_interval(low, high),
        verdict=verdict,
        look=LOOKS.get(verdict.replace("_", " "), "none"),
        facts=tuple((name, words) for name, words in facts.items() if words),
        parts=tuple(shown) if len(shown) > 1 or any(p.note for p in shown) else (),
        runs=tuple(map(str, runs)) if isinstance(runs, list) else (_words(runs),),
        sort=float(value) if _is_number(value) else None,
    )


def _part(part: Mapping[str, Any]) -> Part:
    estimate, low, high = _alike(part.get("estimate"), part.get("low"), part.get("high"))
    unit = _words(part.get("unit"))
    return Part(_words(part.get("part")), f"{estimate} {unit}".strip(), _interval(low, high), _words(part.get("note")))


def _interval(low: str, high: str) -> str:
    return f"{low} to {high}" if text.MISSING not in (low, high) else ""


def _words(value: Any) -> str:
    """Return a value that may be a mapping or a list (a query) as one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_words(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any) -> str:
    """Return a number as the paper prints it, four significant digits at most; other values as they are."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return text.MISSING
    return _words(value) if not _is_number(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _alike(*values: Any) -> list[str]:
    """Return numbers that belong together with as many decimals as the largest needs for three digits."""
    largest = max((abs(v) for v in values if _is_number(v)), default=0.0)
    decimals = min(6, max(0, 2 - math.floor(math.log10(largest)))) if largest else 0
    return [f"{round(v, decimals) + 0.0:,.{decimals}f}" if _is_number(v) else _number(v) for v in values]


def tally(claims: list[Claim]) -> list[tuple[str, str, int]]:
    """(verdict, look, count), in the order of LOOKS."""
    counts = Counter((c.verdict, c.look) for c in claims)
    order = list(LOOKS)
    known = sorted(counts, key=lambda v: (order.index(v[0]) if v[0] in order else len(order), v))
    return [(*v, counts[v]) for v in known]
