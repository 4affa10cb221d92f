"""The lines of the ledger: every claim on every task and model it was run on, and over all of them.

They are written as Markdown to read, CSV to sort, JSON with everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from analysis import products, statistics, text
from analysis.claims import BASE, CHANCE, CONTRADICTED, FIRM, NO_EFFECT, NOT_TESTABLE, UNDERPOWERED, VERDICTS
from analysis.claims.entries import OVERALL, Claim
from analysis.claims.measures import NOTHING, Measure, mean_of, mean_of_bases
from analysis.claims.queries import names
from analysis.claims.verdicts import Judgement, judge
from analysis.claims.view import ClaimView
from analysis.page import without_html
from analysis.reading import NotRecorded, kind_of_base
from analysis.results import Row
from analysis.study import Block, StudyFile, merged, pruned, workflow_command
from bapo.store.files import write_text

TEMPLATE = Path(__file__).resolve().parents[1] / "templates" / "claims.md"


@dataclass(frozen=True)
class LedgerLine:
    """One verdict. measure: of the part that decides it, NOTHING where nothing could be measured."""

    claim: Claim
    task: str
    model: str
    verdict: Judgement
    measure: Measure = NOTHING
    parts: Mapping[str, Measure] = field(default_factory=dict)
    paper: float | None = None
    runs: tuple[str, ...] = ()
    command: str = ""
    kind: str = ""  # what base models of one kind share
    missing: bool = False  # not testable only because runs are missing
    unknown: tuple[str, ...] = ()  # what of the claim could not be measured here
    adjusted: float = float("nan")  # Holm's p over all lines of the ledger

    @property
    def holds_corrected(self) -> bool:
        """Return whether a firm verdict stands after Holm's correction; without a p (nothing varies) it does."""
        return self.verdict.verdict in FIRM and not self.adjusted >= 1 - statistics.CONFIDENCE

    @property
    def place(self) -> str:
        return "/".join(w for w in (self.task, self.model) if w)

    def p_or(self, otherwise: float) -> float:
        """Return the verdict's p, ``otherwise`` where nothing varies."""
        return self.verdict.p if np.isfinite(self.verdict.p) else otherwise


def ledger(claims: Sequence[Claim], studies: Mapping[str, StudyFile]) -> list[LedgerLine]:
    """Return all lines, claim by claim. Raises UserError naming a broken run.

    studies: by name; one that a claim names and is not here counts as not run.
    """
    cache: dict[tuple[str, ...], Any] = {}
    config = next((s.config for s in studies.values()), ())
    scale = next((s.scale for s in studies.values()), "")
    lines = []
    for claim in claims:
        targets = [f"runs_{name}" for name in products.at_scale(claim.studies, scale)]
        command = workflow_command(targets, config) if claim.query else ""
        lines += [replace(line, command=command) for line in _lines(claim, studies, cache)]
    tested = [i for i, line in enumerate(lines) if np.isfinite(line.verdict.p)]
    adjusted = statistics.holm([lines[i].verdict.p for i in tested])
    for i, p in zip(tested, adjusted, strict=True):
        lines[i] = replace(lines[i], adjusted=float(p))
    return lines


def _lines(claim: Claim, studies: Mapping[str, StudyFile], cache: dict[tuple[str, ...], Any]) -> list[LedgerLine]:
    if not claim.query:
        return [_without(claim, claim.not_testable)]
    absent = [s for s in claim.studies if s not in studies]
    given = [studies[s] for s in claim.studies if s in studies]
    study = merged(given) if given else None
    blocks = [b for b in study.blocks if _concerns(claim, b)] if study else []
    if study is None or not blocks:
        reason = f"studies not given: {', '.join(absent)}" if absent else "no study names these methods together"
        return [_without(claim, f"no runs; {reason}", missing=True)]
    lines = [_line(claim, block, study, cache) for block in blocks]
    if claim.not_testable and next(iter(studies.values())).scale not in claim.scales:
        unjudged = Judgement(NOT_TESTABLE, claim.not_testable)  # it is measured all the same
        return [replace(x, verdict=replace(unjudged, part=x.verdict.part)) if x.parts else x for x in lines]
    tasks = {block.task for block in blocks}
    lines += [_without(claim, "no runs in the study", task, missing=True) for task in claim.tasks if task not in tasks]
    if len(lines) > 1 and any(line.parts for line in lines):
        lines.append(_overall(claim, lines))
    return lines


def _concerns(claim: Claim, block: Block) -> bool:
    """Return whether the study asks for a method of each side on this task."""
    if claim.tasks and block.task not in claim.tasks:
        return False
    sides = [names(claim.query[key]) for key in ("of", "over") if claim.query.get(key) is not None]
    return all(any(m in block.methods or m in (BASE, CHANCE) for m in side) for side in sides)


def _without(claim: Claim, reason: str, task: str = "", model: str = "", missing: bool = False) -> LedgerLine:
    verdict = Judgement(NOT_TESTABLE, reason)
    return LedgerLine(claim, task, model, verdict, paper=claim.paper_value(task, model), missing=missing)


def _line(claim: Claim, block: Block, study: StudyFile, cache: dict[tuple[str, ...], Any]) -> LedgerLine:
    finished = pruned(block, claim.question.evaluated)
    wanted = [m for m in dict.fromkeys(claim.methods()) if m in block.methods]
    gone = [f"{block.task}/{block.model}/{m}" for m in wanted if m not in finished.methods]
    try:
        parts, unmeasured = claim.question.answer(ClaimView(finished, study, cache), **claim.parameters)
    except NotRecorded as reason:
        return _without(claim, str(reason), block.task, block.model)
    if not parts:
        return _without(claim, f"no runs of {', '.join(gone)}", block.task, block.model, missing=True)
    paper = claim.paper_value(block.task, block.model)
    if claim.judged_by.near is not None and paper is None:
        return _without(claim, "the paper gives no number for this task", block.task, block.model)
    if claim.judged_by.equal and not all(np.isfinite(m.margin) for m in parts.values()):
        missing = "no margin of equivalence: it takes what GRPO gains over its base here, and the paper's model"
        return _without(claim, missing, block.task, block.model)
    gone += [f"{part} ({why})" for part, why in unmeasured.items()]
    verdict = _with_unknown(judge(parts, claim.judged_by, paper), gone)
    fewer = [m for m in wanted if m in finished.methods and len(finished.methods[m]) < len(block.methods[m])]
    if fewer:
        verdict = replace(verdict, reason=f"{verdict.reason}; unfinished seeds of {', '.join(fewer)}")
    runs = tuple(sorted(str(c.run) for m in wanted for c in finished.methods.get(m, ())))
    kind, measure = kind_of_base(block), parts[verdict.part]
    return LedgerLine(
        claim, block.task, block.model, verdict, measure, parts, paper, runs, kind=kind, unknown=tuple(gone)
    )


def _with_unknown(verdict: Judgement, unknown: Sequence[str], firm: bool = True) -> Judgement:
    """Lower a verdict whose claim has unknown parts: it cannot be reproduced. firm: it can be contradicted."""
    if not unknown:
        return verdict
    lowered = replace(verdict, reason=f"{verdict.reason}; not known: {', '.join(dict.fromkeys(unknown))}")
    if verdict.verdict == CONTRADICTED and firm:
        return lowered
    return replace(lowered, verdict=UNDERPOWERED, size="")


def _overall(claim: Claim, lines: list[LedgerLine]) -> LedgerLine:
    """Return the line over all tasks: the mean of each part that all have, or the weakest of the lines.

    What lines without a measure would say is unknown.
    """
    rule, paper = claim.judged_by, claim.paper_value(OVERALL)
    answers = [line for line in lines if line.parts]
    # where the paper says nothing of a line's task, nothing is missing
    absent = [line.place for line in lines if not line.parts and not (rule.near is not None and line.paper is None)]
    unknown = (*(what for line in answers for what in line.unknown), *absent)
    alike = all(set(line.parts) == set(answers[0].parts) for line in answers)
    parts: dict[str, Measure] = {}
    if claim.overall == "all" or rule.always or rule.near is not None or not alike:
        outcome, worst, p = _weakest(answers)
        each = ", ".join(f"{line.place} {line.verdict.verdict}" for line in answers)
        verdict = Judgement(outcome, f"all tasks at once: {each}", f"{worst.place}: {worst.verdict.part}", p)
        verdict, measure = _with_unknown(verdict, unknown), worst.measure
    else:
        parts = {part: _mean_over_tasks(part, answers) for part in answers[0].parts}
        verdict = _with_unknown(judge(parts, rule, paper), unknown, firm=not absent)
        measure = parts[verdict.part]
    runs = tuple(sorted({r for line in answers for r in line.runs}))
    return LedgerLine(claim, OVERALL, "", verdict, measure, parts, paper, runs, unknown=unknown)


def _mean_over_tasks(part: str, lines: list[LedgerLine]) -> Measure:
    """Average over tasks, each counted once: models of a task answer the same problems, so they are averaged first.

    Of these, base models of one kind are draws of it, so that their differences are part of the error.
    """
    tasks: dict[str, dict[str, list[Measure]]] = {}
    for line in lines:
        tasks.setdefault(line.task, {}).setdefault(line.kind or line.model, []).append(line.parts[part])
    means = [[ms[0] if len(ms) == 1 else mean_of_bases(ms) for ms in of_task.values()] for of_task in tasks.values()]
    return mean_of([mean_of(of_one, independent=False) for of_one in means])


def _weakest(lines: list[LedgerLine]) -> tuple[str, LedgerLine, float]:
    """Return (verdict, the line that decides, p) of "in every task", which one firm exception contradicts.

    The error is 5% over all tasks.
    """
    against = [line for line in lines if line.verdict.verdict == CONTRADICTED]
    if against:
        worst = min(against, key=lambda line: line.p_or(0.0))  # without a p nothing varies, so nothing is left open
        p = min(1.0, worst.p_or(0.0) * len(lines))
        return (CONTRADICTED if p < 1 - statistics.CONFIDENCE else UNDERPOWERED), worst, p or float("nan")
    outcomes = {outcome: [x for x in lines if x.verdict.verdict == outcome] for outcome in (UNDERPOWERED, NO_EFFECT)}
    open_lines = outcomes[UNDERPOWERED] or outcomes[NO_EFFECT]
    worst = max(open_lines or lines, key=lambda line: line.p_or(2.0 if open_lines else 0.0))
    return worst.verdict.verdict, worst, worst.verdict.p


def as_dictionary(line: LedgerLine) -> Row:
    """Return what the files hold of a line; numbers that do not exist are None."""
    claim = line.claim
    numbers = _numbers(line.measure)
    if claim.rule and claim.rule.always:
        numbers |= {"low": None, "high": None}
    return {
        **{key: getattr(claim, key) for key in ("id", "section", "quote")},
        **{key: getattr(line, key) for key in ("task", "model")},
        "paper_value": claim.paper if isinstance(claim.paper, str) else line.paper,
        "query": claim.query.get("name", ""),
        "parameters": claim.parameters,
        "rule": claim.rule.text() if claim.rule else "",
        **numbers,
        **{key: getattr(line.verdict, key) for key in ("verdict", "size", "reason", "part")},
        **_finite(p=line.verdict.p, p_holm=line.adjusted),
        "holds_corrected": line.holds_corrected,
        "parts": [{"part": part, **_numbers(m), "note": m.note} for part, m in line.parts.items()],
        "by_definition": claim.by_definition,
        "note": claim.note,
        "studies": list(claim.studies),
        **{key: getattr(line, key) for key in ("missing", "command")},
        "runs": list(line.runs),
    }


def _numbers(m: Measure) -> Row:
    ends = dict(zip(("estimate", "low", "high"), m.estimate.ends, strict=True))
    return {**_finite(**ends), "unit": m.unit, "n_seeds": m.seeds, "varies": m.varies}


def _finite(**numbers: float) -> Row:
    return {name: float(value) if np.isfinite(value) else None for name, value in numbers.items()}


# ------------------------------------------------------------------------------------------------ the files


def write(lines: Sequence[LedgerLine], studies: dict[str, StudyFile], out: Path) -> list[Path]:
    """Write claims.md, claims.csv and claims.json into ``out``."""
    rows = [as_dictionary(line) for line in lines]
    scale, note = next(((s.scale, s.note) for s in studies.values()), ("", ""))
    paths = [out / f"claims.{kind}" for kind in ("md", "csv", "json")]
    write_text(paths[0], without_html(markdown(rows, scale, note)))
    flat = pd.DataFrame(rows).drop(columns=["parts", "parameters", "studies"])
    text.write_csv(paths[1], flat.assign(runs=flat["runs"].map(" ".join)))
    content = {"scale": scale, "note": note, "counts": counts(rows), "claims": rows}
    write_text(paths[2], json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return paths


def counts(rows: Sequence[Row]) -> dict[str, Any]:
    """Count the lines with each verdict, those that only lack runs, and the claims behind them.

    overall: the claims that runs decide; by_definition: those that follow from how the methods are defined.
    """
    claims = [headline(lines) for lines in by_claim(rows).values()]
    sorts = {"lines": rows, "overall": [c for c in claims if not c["by_definition"]]}
    sorts["by_definition"] = [c for c in claims if c["by_definition"]]
    counted = {name: {v: sum(r["verdict"] == v for r in each) for v in VERDICTS} for name, each in sorts.items()}
    return {"claims": len(claims), **counted, "no_runs": sum(row["missing"] for row in rows)}


def by_claim(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the lines of each claim."""
    return {name: [*lines] for name, lines in groupby(rows, key=itemgetter("id"))}


def headline(lines: Sequence[Row]) -> Row:
    """Return the line that stands for a claim: that over all tasks, else the first with a measure, else the first."""
    return next((r for r in lines if r["task"] == OVERALL), next((r for r in lines if r["parts"]), lines[0]))


def markdown(rows: Sequence[Row], scale: str, note: str) -> str:
    """Return the ledger's page."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.globals |= {"interval": _interval, "p_number": text.p_number, "firm": FIRM}
    environment.filters["headline"] = headline
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        **{"scale": scale, "note": note, "counts": counts(rows), "rows": rows, "missing": text.MISSING},
        claims=[*by_claim(rows).values()],
    )


def _interval(row: Row, unit: str = "") -> str:
    ends = [row[key] for key in ("estimate", "low", "high") if row[key] is not None]
    numbers = [text.number(end, 2 if abs(end) < 10 else 1) for end in ends] or [text.MISSING]
    numbers[0] += f" {unit}" if unit == "points" and ends else unit
    return numbers[0] + (f" ({numbers[1]} to {numbers[2]})" if len(numbers) > 2 else "")
