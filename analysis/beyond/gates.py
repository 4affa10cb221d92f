"""What a study wrote down before its first run: gates that must hold, and the rules that decide its questions.

This module judges ``gates`` and ``decisions`` of ``experiments/study/NAME.yaml`` by finished runs, in the file's order.
A gate is a positive control: where one fails, this testbed cannot test the claim.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from analysis import probes, results, statistics, text
from analysis.page import Page, Table, at_scale
from analysis.products import GATES
from analysis.results import AVERAGE, BASE
from analysis.statistics import Estimate
from analysis.study import Block, Study
from bapo.errors import UserError
from bapo.experiments import places
from bapo.validate import Part, parse_yaml, read

#: mean, low or high (ends of the 95% interval), an order, and points; or p
RULE = re.compile(r"(mean|low|high|p) (>=|<=|>|<) (-?\d+(?:\.\d+)?)")
ORDERS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
NOTE = (
    "Points: mean over training seeds with its 95% t interval; two methods are paired by seed. A rule is about the "
    "mean, an end of the interval, or p after Holm's correction within a family."
)
Rule = Annotated[str, Field(pattern=RULE.pattern)]


class Quantity(Part):
    """A measure of each seed of the method ``of``, less the measure of ``minus`` with the same seed, in points.

    measure: accuracy: at the end; gain: accuracy less the base model's; gain_share: the difference of two methods'
    accuracies in percent of the gain of ``minus``; unsolved: share of the probed training prompts at 0/G at the end;
    start: the same before training; fall: start less unsolved; unlocked: of the prompts at 0/G in another seed's probe
    of the base, the share that the seed solves at the end.
    on: what accuracies are of: the benchmarks, each with the same weight, or the probe's held-out prompts.
    prompts: a regular expression that the ids of the probed training prompts match.
    """

    measure: Literal["accuracy", "gain", "gain_share", "unsolved", "start", "fall", "unlocked"]
    of: str
    minus: str | None = None
    on: Literal["benchmarks", "probe"] = "benchmarks"
    prompts: str = ""


class Gate(Quantity):
    """A quantity and the rules that its estimate must all meet. says: what that shows, in words."""

    says: str
    must: Annotated[list[Rule], Field(min_length=1)]


class Decision(Quantity):
    """A question, its comparison, and what supports or contradicts it; else it is undecided.

    family: questions of one family share Holm's correction of their p.
    """

    asks: str
    family: str = ""
    support: Annotated[list[Rule], Field(min_length=1)]
    contradiction: Annotated[list[Rule], Field(min_length=1)]


class Registered(Part):
    """What a study's file says of its question. claim: what cannot be tested here where a gate fails."""

    claim: str
    gates: Annotated[list[Gate], Field(min_length=1)]
    decisions: list[Decision] = Field([])  # the first is the primary one


@dataclass(frozen=True)
class Judged:
    """A gate or a decision with its estimate, in points, and what it says: holds, fails, support, ..."""

    of: Gate | Decision
    estimate: Estimate
    verdict: str

    @property
    def says(self) -> str:
        return self.of.says if isinstance(self.of, Gate) else self.of.asks


def registered(study: str) -> Registered | None:
    """Read what the file of a study wrote down; None where it has no gates."""
    path = places.file_of("study", study)
    content = parse_yaml(path) if study and path.exists() else {}
    named = {key: content[key] for key in Registered.model_fields if key in content}
    return read(Registered, named, path) if "gates" in named else None


def meets(estimate: Estimate, rules: Sequence[str], p: float) -> bool:
    """Return whether an estimate, in points, meets all rules; a missing interval meets none about its ends or p."""
    for rule in rules:
        match = RULE.fullmatch(rule)
        assert match is not None
        if not ORDERS[match[2]](p if match[1] == "p" else getattr(estimate, match[1]), float(match[3])):
            return False
    return True


def judge(block: Block, study: Study, rules: Registered) -> list[Judged]:
    """Judge every gate, then every decision, by the runs of one block. Raises UserError for a method without runs."""
    values = cache(partial(_values, block, study))
    found = []
    for gate in rules.gates:
        estimate = _estimate(gate, study, values)
        found.append(Judged(gate, estimate, "holds" if meets(estimate, gate.must, estimate.p) else "fails"))
    estimates = [_estimate(decision, study, values) for decision in rules.decisions]
    for decision, estimate in zip(rules.decisions, estimates, strict=True):
        family = [e for d, e in zip(rules.decisions, estimates, strict=True) if d.family == decision.family]
        p = statistics.holm([e.p for e in family])[family.index(estimate)] if decision.family else estimate.p
        verdicts = {"support": decision.support, "contradiction": decision.contradiction}
        met = [verdict for verdict, needed in verdicts.items() if meets(estimate, needed, float(p))]
        found.append(Judged(decision, estimate, met[0] if len(met) == 1 else "undecided"))
    return found


#: measure or "base", on, prompts, method -> points by seed
Values = Callable[[str, str, str, str], dict[int, float]]


def _estimate(quantity: Quantity, study: Study, values: Values) -> Estimate:
    def of(method: str, measure: str = quantity.measure) -> dict[int, float]:
        return values(measure.replace("gain_share", "accuracy"), quantity.on, quantity.prompts, method)

    ours = of(quantity.of)
    if quantity.minus is None:
        return statistics.clustered(np.array(list(ours.values())))
    theirs = of(quantity.minus)
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        raise UserError(f"{study.name}: {quantity.of} and {quantity.minus} share no seed; pair them: {study.command}")
    a, b = (np.array([values[seed] for seed in seeds]) for values in (ours, theirs))
    if quantity.measure != "gain_share":
        return statistics.clustered(a - b)
    base = of(quantity.minus, "base")
    (shares,) = statistics.share_of_gain([a], [b], [np.array([base[seed] for seed in seeds])])
    share = statistics.clustered(shares)
    return Estimate(100 * share.mean, 100 * share.se, share.df)


def _values(block: Block, study: Study, measure: str, on: str, prompts: str, method: str) -> dict[int, float]:
    """Return the measure of each seed of a method, in points."""
    if method not in block.methods:
        raise UserError(f"{places.file_of('study', study.name)}: {method} has no run at this scale; add it to methods")
    if measure in ("accuracy", "gain", "base"):
        ends, starts = _accuracies(block, study, method, on)
        wanted = {"accuracy": ends, "base": starts, "gain": ends - starts}[measure]
        return dict(zip((cell.seed for cell in block.methods[method]), (100 * wanted).tolist(), strict=True))
    probed = probes.read(block, method, study, prompts=prompts)
    if measure == "unlocked":
        found = probed.across(probed.steps[-1], probes.improved)
    else:
        start, end = (np.array([np.mean(c == 0) for c in probed.at(probed.steps[i])]) for i in (0, -1))
        found = {"start": start, "unsolved": end, "fall": start - end}[measure]
    return dict(zip(probed.seeds, (100 * found).tolist(), strict=True))


def _accuracies(block: Block, study: Study, method: str, on: str) -> tuple[np.ndarray, np.ndarray]:
    """Return accuracies [S] of each seed of a method at the end, and of what it started from."""
    if on == "probe":
        probed = probes.read(block, method, study, "probe")
        end, start = (np.array([c.mean() / probed.samples for c in probed.at(probed.steps[i])]) for i in (-1, 0))
        return end, start
    rows = {row.method: row for row in results.collect(block, study)}
    end = np.array(rows[method].mean(AVERAGE).seed_means)
    return end, np.full(len(end), rows[BASE].mean(AVERAGE).mean)


# ------------------------------------------------------------------------------------------------ as text


def sentence(judged: Sequence[Judged], rules: Registered) -> str:
    """Say first what the study can say."""
    failed = [each.says for each in judged if isinstance(each.of, Gate) and each.verdict == "fails"]
    if failed:
        return f"This testbed cannot test the claim that {rules.claim}. What fails is: {'; '.join(failed)}."
    decided = next((each for each in judged if isinstance(each.of, Decision)), None)
    if decided is None:
        return f"Every gate holds, so this testbed can test the claim that {rules.claim}."
    return f"Every gate holds. {decided.says} {decided.verdict.capitalize()}: {text.change(_share(decided.estimate))}."


def _share(points: Estimate) -> Estimate:
    return Estimate(points.mean / 100, points.se / 100, points.df)


def table(judged: Sequence[Judged], title: str) -> Table:
    """Return the gates and the decisions as rows."""
    rows = []
    for each in judged:
        compared = each.of.of + (f" minus {each.of.minus}" if each.of.minus else "")
        rule = " and ".join(each.of.must if isinstance(each.of, Gate) else each.of.support)
        if isinstance(each.of, Decision):
            rule += f"; against it {' and '.join(each.of.contradiction)}"
        shown = text.change(_share(each.estimate))
        rows.append([each.says, compared, each.of.measure, shown, rule, each.verdict])
    header = ["Written down before the runs", "Of", "Measure", "Points", "Rule", "Verdict"]
    return Table(f"Gates: {title}", header, rows, "lllrll")


def numbers(judged: Sequence[Judged], block: Block) -> list[dict[str, object]]:
    """Return one row for each gate and decision of the CSV file, in points."""
    return [
        {
            **block.keys(each.of.of),
            "minus": each.of.minus,
            "measure": each.of.measure,
            "says": each.says,
            "mean": each.estimate.mean,
            "low": each.estimate.low,
            "high": each.estimate.high,
            "verdict": each.verdict,
        }
        for each in judged
    ]


def write(study: Study, out: Path) -> list[Path]:
    """Write gates_STUDY.csv, .md and .tex. Raises UserError where the study lacks gates, or runs that they name."""
    import pandas as pd

    rules = registered(study.name)
    if rules is None:
        raise UserError(f"{places.file_of('study', study.name)}: gates is missing; write down what must hold")
    judged = [(block, judge(block, study, rules)) for block in study.blocks]
    page = Page(
        at_scale(f"Gates: {study.title}", study.scale),
        [table(found, block.title) for block, found in judged],
        [*study.notes, NOTE],
        introduction=[sentence(found, rules) for _, found in judged],
    )
    frame = pd.DataFrame([row for block, found in judged for row in numbers(found, block)])
    return page.write(out, f"{GATES}_{study.name}", frame)
