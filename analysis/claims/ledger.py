"""The lines of the ledger: every claim on every task and model it was run on, and over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from analysis import statistics
from analysis.beyond import bases
from analysis.claims import CONTRADICTED, NOT_TESTABLE, REPRODUCED, UNDERPOWERED
from analysis.claims.entries import Claim
from analysis.claims.measures import BASE, CHANCE, Measure, NotTestable, mean_of, mean_of_bases
from analysis.claims.queries import QUERIES
from analysis.claims.registry import names
from analysis.claims.verdicts import Verdict, judge
from analysis.claims.view import View, merged, pruned
from analysis.study import Block, Study, workflow_command

#: the task of a line over all tasks
ALL = "overall"


@dataclass(frozen=True)
class Line:
    """One verdict. measure: of the part that decides it, None where nothing could be measured."""

    claim: Claim
    task: str
    model: str
    verdict: Verdict
    measure: Measure | None = None
    parts: dict[str, Measure] = field(default_factory=dict)
    paper: float | None = None
    runs: tuple[str, ...] = ()
    command: str = ""
    missing: bool = False  # not testable only because runs are missing
    unknown: tuple[str, ...] = ()  # what of the claim could not be measured here
    adjusted: float = float("nan")  # Holm's p over all lines of the ledger

    @property
    def holds_corrected(self) -> bool:
        """Return whether a firm verdict stands after Holm's correction; without a p (nothing varies) it does."""
        firm = self.verdict.verdict in (REPRODUCED, CONTRADICTED)
        return firm and not self.adjusted >= 1 - statistics.CONFIDENCE


def ledger(claims: Sequence[Claim], studies: dict[str, Study]) -> list[Line]:
    """Return all lines, claim by claim. studies: by name; what a claim names and is not here counts as not run."""
    kept: dict[tuple[Any, ...], Any] = {}
    lines = [line for claim in claims for line in _lines(claim, studies, kept)]
    tested = [i for i, line in enumerate(lines) if np.isfinite(line.verdict.p)]
    adjusted = statistics.holm([lines[i].verdict.p for i in tested])
    for i, p in zip(tested, adjusted, strict=True):
        lines[i] = replace(lines[i], adjusted=float(p))
    return lines


def command(claim: Claim, studies: dict[str, Study]) -> str:
    """Return what makes the runs that a claim needs."""
    config = next((s.config for s in studies.values()), ())
    return workflow_command([f"runs_{name}" for name in claim.studies], config) if claim.studies else ""


def _lines(claim: Claim, studies: dict[str, Study], kept: dict[tuple[Any, ...], Any]) -> list[Line]:
    how = command(claim, studies)
    scale = next((s.scale for s in studies.values()), "")
    if not claim.query:
        return [_without(claim, claim.not_testable, "")]
    named = [studies[s] for s in claim.studies if s in studies]
    study = merged(named) if named else None
    blocks = [b for b in study.blocks if _concerns(claim, b)] if study else []
    if not blocks:
        absent = [s for s in claim.studies if s not in studies]
        return [_without(claim, f"no runs: {_absent(absent)}", how, missing=True)]
    lines = [_line(claim, block, study, kept, how) for block in blocks]
    if claim.not_testable and scale not in claim.scales:
        only_measured = Verdict(NOT_TESTABLE, claim.not_testable)
        return [
            replace(line, verdict=replace(only_measured, part=line.verdict.part)) if line.parts else line
            for line in lines
        ]
    lines += [
        _without(claim, f"no runs: the study has none of {task}", how, task=task, missing=True)
        for task in claim.tasks
        if task not in {block.task for block in blocks}
    ]
    if claim.overall != "none" and len(lines) > 1 and any(line.parts for line in lines):
        lines.append(_overall(claim, lines, how, {(b.task, b.model): bases.kind(b, study) for b in blocks}))
    return lines


def _absent(studies: Sequence[str]) -> str:
    """Say why no runs were found, of the studies that were not given."""
    if not studies:
        return "no study names these methods together"
    if len(studies) == 1:
        return f"the study {studies[0]} was not given"
    return f"the studies {', '.join(studies[:-1])} and {studies[-1]} were not given"


def _concerns(claim: Claim, block: Block) -> bool:
    """Return whether the study asks for a method of each side on this task."""
    if claim.tasks and block.task not in claim.tasks:
        return False
    sides = [names(claim.query[key]) for key in ("of", "over") if claim.query.get(key) is not None]
    return all(any(m in block.methods or m in (BASE, CHANCE) for m in side) for side in sides)


def _without(claim: Claim, reason: str, how: str, task: str = "", model: str = "", missing: bool = False) -> Line:
    verdict = Verdict(NOT_TESTABLE, reason)
    return Line(claim, task, model, verdict, paper=claim.paper_value(task, model), command=how, missing=missing)


def _line(claim: Claim, block: Block, study: Study, kept: dict[tuple[Any, ...], Any], how: str) -> Line:
    query = QUERIES[claim.query["name"]]
    finished = pruned(block, query.evaluated)
    wanted = [m for m in dict.fromkeys(claim.methods()) if m in block.methods]
    gone = [f"{block.task}/{block.model}/{m}" for m in wanted if m not in finished.methods]
    view = View(finished, study, kept)
    place = {"task": block.task, "model": block.model}
    try:
        parts = query.answer(view, **claim.parameters)
    except NotTestable as reason:
        return _without(claim, str(reason), how, **place)
    if not parts:
        return _without(claim, f"no runs of {', '.join(gone)}", how, **place, missing=True)
    paper = claim.paper_value(block.task, block.model)
    if claim.rule.kind == "near" and paper is None:
        return _without(claim, "the paper gives no number for this task", how, **place)
    gone += [f"{part} ({why})" for part, why in parts.unmeasured.items()]
    verdict = _with_unknown(judge(parts, claim.rule, paper), gone)
    fewer = [m for m in wanted if m in finished.methods and len(finished.methods[m]) < len(block.methods[m])]
    if fewer:
        verdict = replace(verdict, reason=f"{verdict.reason}; not every seed of {', '.join(fewer)} has finished")
    runs = tuple(sorted(view.read))
    decides = parts[verdict.part]
    return Line(claim, block.task, block.model, verdict, decides, parts, paper, runs, how, unknown=tuple(gone))


def _with_unknown(verdict: Verdict, unknown: Sequence[str], firm: bool = True) -> Verdict:
    """Lower a verdict whose claim has unknown parts: it cannot be reproduced. firm: it can be contradicted."""
    if not unknown:
        return verdict
    what = f"nothing is known of {', '.join(dict.fromkeys(unknown))}"
    if verdict.verdict == REPRODUCED:
        return replace(verdict, verdict=UNDERPOWERED, size="", reason=f"holds so far, but {what}")
    if verdict.verdict == CONTRADICTED and not firm:
        return replace(verdict, verdict=UNDERPOWERED, reason=f"does not hold so far, but {what}")
    return replace(verdict, reason=f"{verdict.reason}; {what}")


def _overall(claim: Claim, lines: list[Line], how: str, kinds: Mapping[tuple[str, str], str]) -> Line:
    """Over the tasks: the mean of each part that all have, or all lines at once; lines that say nothing are unknown.

    kinds: (task, model) -> what the bases of one kind share.
    """
    judged = [line for line in lines if line.parts]
    absent = [_place(line) for line in lines if not line.parts and not _not_of(claim, line)]
    unknown = [what for line in judged for what in line.unknown]
    runs = tuple(sorted({r for line in judged for r in line.runs}))
    paper = claim.paper_value(ALL)
    alike = all(set(line.parts) == set(judged[0].parts) for line in judged)
    if claim.overall == "all" or claim.rule.kind in ("always", "near") or not alike:
        outcome, worst, p = _weakest(judged)
        each = ", ".join(f"{_place(line)} {line.verdict.verdict}" for line in judged)
        verdict = Verdict(outcome, f"in every task at once: {each}", f"{_place(worst)}: {worst.verdict.part}", p)
        verdict = _with_unknown(verdict, [*unknown, *absent])
        return Line(claim, ALL, "", verdict, worst.measure, {}, paper, runs, how, unknown=(*unknown, *absent))
    parts = {part: _mean_over_tasks(part, judged, kinds) for part in judged[0].parts}
    verdict = _with_unknown(judge(parts, claim.rule, paper), [*unknown, *absent], firm=not absent)
    return Line(claim, ALL, "", verdict, parts[verdict.part], parts, paper, runs, how, unknown=(*unknown, *absent))


def _place(line: Line) -> str:
    return "/".join(w for w in (line.task, line.model) if w)


def _not_of(claim: Claim, line: Line) -> bool:
    """Return whether the paper says nothing of the line's task, so that nothing is missing."""
    return claim.rule.kind == "near" and line.paper is None


def _mean_over_tasks(part: str, lines: list[Line], kinds: Mapping[tuple[str, str], str]) -> Measure:
    """Average over tasks, each counted once: models of a task answer the same problems, so they are averaged first.

    Of these, base models of one kind are draws of it, so that their differences are part of the error.
    """
    tasks: dict[str, dict[str, list[Measure]]] = {}
    for line in lines:
        kind = kinds.get((line.task, line.model)) or line.model
        tasks.setdefault(line.task, {}).setdefault(kind, []).append(line.parts[part])
    means = [[ms[0] if len(ms) == 1 else mean_of_bases(ms) for ms in of_task.values()] for of_task in tasks.values()]
    return mean_of([mean_of(of_one, independent=False) for of_one in means])


def _weakest(lines: list[Line]) -> tuple[str, Line, float]:
    """(verdict, the line that decides, p) of "in every task": one firm exception contradicts, at 5% over all tasks."""
    against = [line for line in lines if line.verdict.verdict == CONTRADICTED]
    if against:
        worst = min(against, key=lambda line: _known(line, 0.0))  # without a p nothing varies, so nothing is left open
        p = min(1.0, _known(worst, 0.0) * len(lines))
        return (CONTRADICTED if p < 1 - statistics.CONFIDENCE else UNDERPOWERED), worst, p or float("nan")
    open_lines = [line for line in lines if line.verdict.verdict != REPRODUCED]
    worst = max(open_lines or lines, key=lambda line: _known(line, 2.0 if open_lines else 0.0))
    return worst.verdict.verdict, worst, worst.verdict.p


def _known(line: Line, otherwise: float) -> float:
    return line.verdict.p if np.isfinite(line.verdict.p) else otherwise


def as_dictionary(line: Line) -> dict[str, Any]:
    """Return what the files hold of a line; numbers that do not exist are None."""
    claim = line.claim
    numbers = _numbers(line.measure)
    if claim.rule and claim.rule.kind == "always":
        numbers |= {"low": None, "high": None}
    return {
        **{key: getattr(claim, key) for key in ("id", "section", "quote")},
        **{key: getattr(line, key) for key in ("task", "model")},
        "paper_value": claim.paper if isinstance(claim.paper, str) else _number(line.paper),
        "query": claim.query.get("name", ""),
        "parameters": claim.parameters,
        "rule": claim.rule.text() if claim.rule else "",
        **numbers,
        **{key: getattr(line.verdict, key) for key in ("verdict", "size", "reason", "part")},
        "p": _number(line.verdict.p),
        "p_holm": _number(line.adjusted),
        "holds_corrected": line.holds_corrected,
        "parts": [{"part": part, **_numbers(m), "note": m.note} for part, m in line.parts.items()],
        "note": claim.note,
        "studies": list(claim.studies),
        "missing": line.missing,
        "runs": list(line.runs),
        "command": line.command,
    }


def _numbers(measure: Measure | None) -> dict[str, Any]:
    if measure is None:
        return {"estimate": None, "low": None, "high": None, "unit": "", "n_seeds": 0, "varies": ""}
    e = measure.estimate
    ends = {"estimate": _number(e.mean), "low": _number(e.low), "high": _number(e.high)}
    return {**ends, "unit": measure.unit, "n_seeds": measure.seeds, "varies": measure.varies}


def _number(value: float | None) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None
