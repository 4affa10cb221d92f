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
from analysis.claims.measures import BASE, CHANCE, Measure, NotTestable, mean_of, mean_of_bases, names
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


def ledger(claims: Sequence[Claim], studies: Mapping[str, Study]) -> list[Line]:
    """Return all lines, claim by claim. studies: by name; what a claim names and is not here counts as not run."""
    kept: dict[tuple[Any, ...], Any] = {}
    lines = [line for claim in claims for line in _lines(claim, studies, kept)]
    tested = [i for i, line in enumerate(lines) if np.isfinite(line.verdict.p)]
    adjusted = statistics.holm([lines[i].verdict.p for i in tested])
    for i, p in zip(tested, adjusted, strict=True):
        lines[i] = replace(lines[i], adjusted=float(p))
    return lines


def _lines(claim: Claim, studies: Mapping[str, Study], kept: dict[tuple[Any, ...], Any]) -> list[Line]:
    config = next((s.config for s in studies.values()), ())
    command = workflow_command([f"runs_{name}" for name in claim.studies], config) if claim.studies else ""
    if not claim.query:
        return [_without(claim, claim.not_testable)]
    named = [studies[s] for s in claim.studies if s in studies]
    study = merged(named) if named else None
    blocks = [b for b in study.blocks if _concerns(claim, b)] if study else []
    if study is None or not blocks:
        absent = [s for s in claim.studies if s not in studies]
        reason = f"studies not given: {', '.join(absent)}" if absent else "no study names these methods together"
        return [replace(_without(claim, f"no runs; {reason}", missing=True), command=command)]
    lines = [_line(claim, block, study, kept) for block in blocks]
    if claim.not_testable and next((s.scale for s in studies.values()), "") not in claim.scales:
        only_measured = Verdict(NOT_TESTABLE, claim.not_testable)
        measured = [replace(only_measured, part=line.verdict.part) if line.parts else line.verdict for line in lines]
        return [replace(line, verdict=v, command=command) for line, v in zip(lines, measured, strict=True)]
    there = {block.task for block in blocks}
    lines += [_without(claim, "no runs in the study", task, missing=True) for task in claim.tasks if task not in there]
    if claim.overall != "none" and len(lines) > 1 and any(line.parts for line in lines):
        lines.append(_overall(claim, lines, {(b.task, b.model): bases.kind(b, study) for b in blocks}))
    return [replace(line, command=command) for line in lines]


def _concerns(claim: Claim, block: Block) -> bool:
    """Return whether the study asks for a method of each side on this task."""
    if claim.tasks and block.task not in claim.tasks:
        return False
    sides = [names(claim.query[key]) for key in ("of", "over") if claim.query.get(key) is not None]
    return all(any(m in block.methods or m in (BASE, CHANCE) for m in side) for side in sides)


def _without(claim: Claim, reason: str, task: str = "", model: str = "", missing: bool = False) -> Line:
    return Line(
        claim, task, model, Verdict(NOT_TESTABLE, reason), paper=claim.paper_value(task, model), missing=missing
    )


def _line(claim: Claim, block: Block, study: Study, kept: dict[tuple[Any, ...], Any]) -> Line:
    finished = pruned(block, claim.asked.evaluated)
    wanted = [m for m in dict.fromkeys(claim.methods()) if m in block.methods]
    gone = [f"{block.task}/{block.model}/{m}" for m in wanted if m not in finished.methods]
    view = View(finished, study, kept)
    try:
        parts = claim.asked.answer(view, **claim.parameters)
    except NotTestable as reason:
        return _without(claim, str(reason), block.task, block.model)
    if not parts:
        return _without(claim, f"no runs of {', '.join(gone)}", block.task, block.model, missing=True)
    paper = claim.paper_value(block.task, block.model)
    if claim.judged_by.kind == "near" and paper is None:
        return _without(claim, "the paper gives no number for this task", block.task, block.model)
    gone += [f"{part} ({why})" for part, why in parts.unmeasured.items()]
    verdict = _with_unknown(judge(parts, claim.judged_by, paper), gone)
    fewer = [m for m in wanted if m in finished.methods and len(finished.methods[m]) < len(block.methods[m])]
    if fewer:
        verdict = replace(verdict, reason=f"{verdict.reason}; unfinished seeds of {', '.join(fewer)}")
    runs = tuple(sorted(view.read))
    measure = parts[verdict.part]
    return Line(claim, block.task, block.model, verdict, measure, dict(parts), paper, runs, unknown=tuple(gone))


def _with_unknown(verdict: Verdict, unknown: Sequence[str], firm: bool = True) -> Verdict:
    """Lower a verdict whose claim has unknown parts: it cannot be reproduced. firm: it can be contradicted."""
    if not unknown:
        return verdict
    lowered = verdict.verdict == REPRODUCED or (verdict.verdict == CONTRADICTED and not firm)
    reason = f"{verdict.reason}; not known: {', '.join(dict.fromkeys(unknown))}"
    if not lowered:
        return replace(verdict, reason=reason)
    return replace(
        verdict, verdict=UNDERPOWERED, size="" if verdict.verdict == REPRODUCED else verdict.size, reason=reason
    )


def _overall(claim: Claim, lines: list[Line], kinds: Mapping[tuple[str, str], str]) -> Line:
    """Over the tasks: the mean of each part that all have, or all lines at once; lines that say nothing are unknown.

    kinds: (task, model) -> what the bases of one kind share.
    """
    rule, paper = claim.judged_by, claim.paper_value(ALL)
    judged = [line for line in lines if line.parts]
    # where the paper says nothing of a line's task, nothing is missing
    absent = [_place(line) for line in lines if not line.parts and not (rule.kind == "near" and line.paper is None)]
    unknown = [*(what for line in judged for what in line.unknown), *absent]
    alike = all(set(line.parts) == set(judged[0].parts) for line in judged)
    parts: dict[str, Measure] = {}
    if claim.overall == "all" or rule.kind in ("always", "near") or not alike:
        outcome, worst, p = _weakest(judged)
        each = ", ".join(f"{_place(line)} {line.verdict.verdict}" for line in judged)
        verdict = Verdict(outcome, f"all tasks at once: {each}", f"{_place(worst)}: {worst.verdict.part}", p)
        verdict, measure = _with_unknown(verdict, unknown), worst.measure
    else:
        parts = {part: _mean_over_tasks(part, judged, kinds) for part in judged[0].parts}
        verdict = _with_unknown(judge(parts, rule, paper), unknown, firm=not absent)
        measure = parts[verdict.part]
    runs = tuple(sorted({r for line in judged for r in line.runs}))
    return Line(claim, ALL, "", verdict, measure, parts, paper, runs, unknown=tuple(unknown))


def _place(line: Line) -> str:
    return "/".join(w for w in (line.task, line.model) if w)


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
