"""What a study wrote down before its first run: gates that must hold, and the rules that decide its questions.

This module judges ``gates`` and ``decisions`` of ``experiments/study/NAME.yaml`` by finished runs, in the file's order.
A gate is a positive control: where one fails, this testbed cannot test the claim.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, get_args

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from analysis import probes, results, statistics, text
from analysis.beyond import asymptote
from analysis.page import Page, Table
from analysis.products import GATES
from analysis.results import BASE, Row
from analysis.statistics import Estimate
from analysis.study import Block, StudyFile, model_of, workflow_command
from bapo.errors import UserError, unknown
from bapo.experiments import places
from bapo.validate import Part, matching, parse_yaml, read, wrong

if TYPE_CHECKING:
    from bapo.experiments.studies import Study

#: a rule, such as "low > 0.5": an estimate's mean, low or high (of the 95% interval) in points, or its p
RULE = re.compile(r"(mean|low|high|p) (>=|<=|>|<) -?\d+(\.\d+)?")
ORDERS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
#: unit of a study -> what its pages call several of them
UNITS = {"base": "base models", "data": "data sets"}
HEADER = ("Written down before the runs", "Of", "Measure", "Points", "Rule", "Verdict")
#: what a measure is made of: answers to the benchmarks, probes of training prompts, evaluated checkpoints
OfAnswers = Literal["accuracy", "gain", "gain_share", "pass@32"]
OfProbes = Literal["start", "fall", "unlocked", "never_solved"]
OfCurves = Literal["asymptote", "prediction_error"]
_EXAMPLE = 'one of mean, low, high and p, an order and a number, such as "low > 0.5"'
Rules = Annotated[list[Annotated[str, matching(RULE.pattern, _EXAMPLE)]], Field(min_length=1)]


class Pair(Part):
    """A difference of two methods."""

    of: str
    minus: str


class Quantity(Part):
    """A measure of each unit of the method ``of``, less the measure of ``minus`` in the same unit, in points.

    measure: accuracy: at the end; gain: accuracy less the base model's; gain_share: the difference of two methods'
    accuracies in percent of the gain of ``minus`` over ``gain_from``, by default the base model; start: share of the
    probed training prompts at 0/G before training; fall: start less the same share at the end; unlocked: of the prompts
    at 0/G in another seed's probe of the base, the share that the seed solves at the end; never_solved: of the prompts
    that no probe of the base solves, of any run of the reference, the same share; pass@32: the share of problems that
    one of 32 samples solves; asymptote: of a sigmoid fit to the evaluated checkpoints against the rollouts;
    prediction_error: the end that a fit to the first half predicts, less the end (analysis/beyond/asymptote.py).
    minus: a method, or "base" with accuracy and pass@32.
    problems: what accuracies are of: the benchmarks, each with the same weight, one of them by its name, or the probe's
    held-out prompts. prompts: a regular expression that the ids of these problems match, or of the training prompts.
    less: a second difference that is taken off the first.
    """

    measure: OfAnswers | OfProbes | OfCurves
    of: str
    minus: str | None = None
    less: Pair | None = None
    gain_from: str = BASE
    problems: str = "benchmarks"
    prompts: str = ""

    @model_validator(mode="after")
    def _of_one_measure(self) -> Self:
        if self.less and (self.measure not in ("accuracy", "gain") or not self.minus):
            raise ValueError("less is taken off a difference of accuracies: it needs minus, and measure: accuracy")
        if self.gain_from != BASE and self.measure != "gain_share":
            raise ValueError("gain_from belongs to measure: gain_share")
        if self.measure == "gain_share" and not self.minus:
            raise ValueError("gain_share needs minus, whose gain it is a share of")
        if self.minus == BASE and self.measure not in ("accuracy", "pass@32"):
            raise ValueError("minus: base belongs to measure: accuracy or pass@32; gain is less the base model's")
        if self.prompts and self.measure in get_args(OfCurves):
            raise ValueError(f"prompts chooses problems or probed prompts; {self.measure} is of whole benchmarks")
        try:
            re.compile(self.prompts)
        except re.error as error:
            raise ValueError(f"prompts: bad regular expression ({error})") from None
        return self

    def methods(self) -> dict[str, str]:
        """Return field -> the method that it names, without the base model where that is allowed."""
        named = {"of": self.of, "gain_from": self.gain_from} | ({"minus": self.minus} if self.minus else {})
        named |= {"less.of": self.less.of, "less.minus": self.less.minus} if self.less else {}
        allowed = named if self.measure in ("accuracy", "pass@32") else ("gain_from", "less.of", "less.minus")
        return {field: method for field, method in named.items() if method != BASE or field not in allowed}


class Gate(Quantity):
    """A quantity and the rules that its estimate must all meet. says: what that shows, in words."""

    says: str
    must: Rules
    family: ClassVar[str] = ""

    def verdict(self, estimate: Estimate, p: float) -> str:
        """Return passed or failed. estimate: in points; p: its p-value, corrected over its family."""
        return "passed" if meets(estimate, self.must, p) else "failed"

    def words(self) -> tuple[str, str]:
        """Return what it says, and its rules."""
        return self.says, " and ".join(self.must)


class Decision(Quantity):
    """A question, its comparison, and what supports or contradicts it; else it is undecided.

    family: questions of one family share Holm's correction of their p.
    """

    asks: str
    family: str = ""
    support: Rules
    contradiction: Rules

    def verdict(self, estimate: Estimate, p: float) -> str:
        """Return support or contradiction, or undecided where both or neither are met. estimate, p: as of a gate."""
        met = [name for name in ("support", "contradiction") if meets(estimate, getattr(self, name), p)]
        return met[0] if len(met) == 1 else "undecided"

    def words(self) -> tuple[str, str]:
        """Return what it asks, and its rules."""
        return self.asks, f"{' and '.join(self.support)}; against it {' and '.join(self.contradiction)}"


class Registered(Part):
    """What a study's file says of its question. claim: what cannot be tested here where a gate fails.

    unit: what is drawn anew where a study is repeated: training seeds from one base model, the problems given; base
    models, each with its runs, and problems; or data sets, each with a base model, and problems that no other one has.
    """

    claim: str
    unit: Literal["seed", "base", "data"] = "seed"
    gates: Annotated[list[Gate], Field(min_length=1)]
    decisions: list[Decision] = Field([])  # the first is the primary one

    @property
    def quantities(self) -> dict[str, Gate | Decision]:
        """Return place in the file -> each gate, then each decision."""
        gates = {f"gates.{number}": gate for number, gate in enumerate(self.gates)}
        return gates | {f"decisions.{number}": decision for number, decision in enumerate(self.decisions)}

    @model_validator(mode="after")
    def _of_the_unit(self) -> Self:
        for place, quantity in self.quantities.items():
            if self.unit == "seed" and quantity.less:
                raise ValueError(f"{place}.less: needs unit: base or data")
            if self.unit != "seed" and (quantity.measure not in get_args(OfAnswers) or quantity.problems == "probe"):
                raise ValueError(f"{place}: with unit: {self.unit} a measure is of answers to the benchmarks")
        return self


def registered(study: str) -> Registered:
    """Read what the file of a study wrote down. Raises UserError where it has no gates or a wrong field."""
    if not study:
        raise UserError("the study file has no name, as one of `bapo import`, so no rules were written down for it")
    path = places.file_of("study", study)
    content = parse_yaml(path) if path.exists() else {}
    return read(Registered, {key: content[key] for key in Registered.model_fields if key in content}, path)


def check(study: Study, benchmarks: Sequence[Sequence[str]], chosen: bool) -> None:
    """Check the rules of a study against the runs that it would have, before the first of them.

    benchmarks: of each task; chosen: whether the methods are others than those that the study's file has.

    Raises UserError for what :func:`registered` refuses, and for a rule that such runs cannot be judged by.
    """
    name, path = study.file.name, places.file_of("study", study.file.name)
    rules = registered(name)
    seeds: dict[tuple[str, str], dict[str, set[int]]] = {}  # (task, model) -> method -> seeds
    for cell in study.cells:
        seeds.setdefault((cell.task, cell.model), {}).setdefault(study.method_of(cell), set()).add(cell.seed)
    shared = [method for method in next(iter(seeds.values())) if all(method in methods for methods in seeds.values())]
    if rules.unit != "seed":
        alone = [task for task, models in Counter(task for task, _ in seeds).items() if models < 2]
        if alone:
            cure = f"its rules need two base models of {alone[0]} at scale {study.scale}; add one to models"
            raise wrong(path, "unit", rules.unit, cure)
        if odd := [place for place, of in seeds.items() if len({frozenset(of[m]) for m in shared}) > 1]:
            raise UserError(f"{path}: the methods of {' '.join(odd[0])} have different seeds; give them the same ones")
    sets = ["benchmarks", "probe", *(n for n in benchmarks[0] if all(n in names for names in benchmarks))]
    for place, each in rules.quantities.items():
        if unread := [(field, method) for field, method in each.methods().items() if method not in shared]:
            where, method = f"{path}: {place}.{unread[0][0]}", unread[0][1]
            if chosen:
                cure = f"leave methods=... out, or ask for runs_{name} alone"
                raise wrong(None, where, method, f"is not among the methods asked for; {cure}")
            raise UserError(unknown(where, f"not every model has runs of {method}", method, shared))
        if each.problems not in sets or (each.measure, each.problems) == ("pass@32", "probe"):
            raise UserError(unknown(f"{path}: {place}.problems", f"no set '{each.problems}'", each.problems, sets))
        if fault := _fault(each, study, rules.unit, list(seeds.values())):
            raise wrong(path, f"{place}.measure", each.measure, fault)


def _fault(quantity: Quantity, study: Study, unit: str, runs: Sequence[Mapping[str, set[int]]]) -> str:
    """Say why runs would lack what a quantity is read from, and the cure; "" where they have it.

    runs: method -> seeds, of each model.
    """
    trained = [method for method in quantity.methods().values() if method != BASE]
    if quantity.measure in get_args(OfCurves) and (bare := [m for m in trained if m not in study.file.curves]):
        return f"needs evaluated checkpoints of {bare[0]}; add it to curves"
    of_probes = quantity.measure in get_args(OfProbes) or quantity.problems == "probe"
    if not (of_probes or study.file.evaluated):
        return "needs evaluations; leave out `evaluated: false`"
    if quantity.measure == "never_solved" and not all(study.file.reference in of for of in runs):
        return f"needs runs of the reference, {study.file.reference}; add it to methods"
    if quantity.measure == "unlocked" and any(len(of[method]) < 2 for of in runs for method in trained):
        return "needs two seeds of each method; add one to seeds"
    if unit == "seed" and trained and not all(set.intersection(*(of[method] for method in trained)) for of in runs):
        return f"is of {', '.join(trained)}, which share no seed; give them the same ones"
    return ""


def meets(estimate: Estimate, rules: Sequence[str], p: float) -> bool:
    """Return whether an estimate, in points, meets all rules; a missing interval meets none about its ends or p."""
    values = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "p": p}
    parts = (rule.split() for rule in rules)
    return all(ORDERS[order](values[name], float(limit)) for name, order, limit in parts)


def judge(blocks: Sequence[Block], study: StudyFile, rules: Registered) -> list[Row]:
    """Judge every gate, then every decision, by the runs of one block, or of all where the unit is no seed.

    Returns a row each: quantity, estimate in points, and verdict: passed, failed, support, ... Raises UserError for a
    method without runs.
    """
    runs = RunsOfBlock(blocks[0], study) if rules.unit == "seed" else RunsOfBases(blocks, study, rules.unit == "base")
    estimates = [(quantity, runs.estimate(quantity)) for quantity in rules.quantities.values()]
    rows = []
    for each, estimate in estimates:
        family = [e for q, e in estimates if q is each or (each.family and q.family == each.family)]
        p = statistics.holm([e.p for e in family])[family.index(estimate)]
        rows.append({"quantity": each, "estimate": estimate, "verdict": each.verdict(estimate, float(p))})
    return rows


@dataclass(frozen=True)
class RunsOfBlock:
    """The finished runs of one block, whose evaluations are read once."""

    block: Block
    study: StudyFile

    @cached_property
    def evaluated(self) -> dict[str, results.Result]:
        """Return the evaluated rows of the block by method. Raises UserError naming a broken run."""
        return results.collect(self.block, self.study)

    def estimate(self, quantity: Quantity) -> Estimate:
        """Return the estimate of a quantity over training seeds, in points.

        Raises UserError for a method without a run, and for two without a common seed.
        """
        if quantity.measure in get_args(OfCurves):
            of = self.curves(quantity.of)
            minus = self.curves(quantity.minus) if quantity.minus else None
            return asymptote.estimate(of, minus, quantity.measure).times(100)
        ours = self.values(quantity, quantity.of)
        if quantity.minus is None:
            return statistics.clustered(ours.to_numpy())
        ours, theirs = ours.align(self.values(quantity, quantity.minus), join="inner")
        if ours.empty:
            both = f"{quantity.of} and {quantity.minus}"
            raise UserError(f"{self.study.name}: {both} share no seed; pair them: {self.study.command}")
        if quantity.measure != "gain_share":
            return statistics.clustered((ours - theirs).to_numpy())
        if quantity.gain_from == BASE:
            start = self.accuracy(quantity, quantity.minus, start=True)
        else:
            start = self.values(quantity, quantity.gain_from)
        sides = pd.concat([ours, theirs, start], axis=1, join="inner").to_numpy().T
        (shares,) = statistics.share_of_gain(*([side] for side in sides))
        return statistics.clustered(100 * shares)

    def curves(self, method: str) -> asymptote.Curves:
        """Return a method's accuracy by rollouts. Raises UserError without a run, NotRecorded without checkpoints."""
        self._require(method)
        return asymptote.read(self.block, method, self.study, "rollouts")

    def _require(self, method: str) -> None:
        if method not in self.block.methods:
            path = places.file_of("study", self.study.name)
            raise UserError(f"{path}: {method} has no run at this scale; add it to methods")

    def values(self, quantity: Quantity, method: str) -> pd.Series:
        """Return the measure of each seed of a method, in points; of a share of the gain the accuracy.

        The base model has the same number beside every seed. Raises UserError for a method without a run, or where
        "never_solved" has no prompt; NotRecorded without probes, or where seeds cannot be compared across.
        """
        if method == BASE and quantity.measure in ("accuracy", "pass@32"):
            return self.accuracy(quantity, quantity.of, start=True)
        self._require(method)
        if quantity.measure in get_args(OfAnswers):
            end = self.accuracy(quantity, method)
            return end - self.accuracy(quantity, method, start=True) if quantity.measure == "gain" else end
        probed = probes.read(self.block, method, self.study, prompts=quantity.prompts)
        if quantity.measure == "unlocked":
            shares = probed.across(probed.steps[-1], probes.improved)
        elif quantity.measure == "never_solved":
            self._require(self.study.reference)
            base = probes.read(self.block, self.study.reference, self.study, prompts=quantity.prompts)
            never = np.sum(base.at(0), axis=0) == 0
            if not never.any() or not probed.same_prompts or probed.prompts[0] != base.prompts[0]:
                raise UserError(f"{self.study.name}: {method} and the base share no probed prompt that is never solved")
            shares = np.array([np.mean(counts[never] > 0) for counts in probed.at(probed.steps[-1])])
        else:
            start, end = (np.array([np.mean(c == 0) for c in probed.at(probed.steps[i])]) for i in (0, -1))
            shares = {"start": start, "fall": start - end}[quantity.measure]
        return pd.Series(100 * shares, probed.seeds)

    def accuracy(self, quantity: Quantity, method: str, start: bool = False) -> pd.Series:
        """Return accuracy, or pass@32, of each seed of a method in percent; start: of the model that it began with.

        Raises UserError for a benchmark that does not exist, NotRecorded without probes.
        """
        if quantity.problems == "probe" and quantity.measure != "pass@32":
            probed = probes.read(self.block, method, self.study, "probe", quantity.prompts)
            correct = probed.at(probed.steps[0 if start else -1])
            return pd.Series([100 * c.mean() / probed.samples for c in correct], probed.seeds)
        if start and BASE not in self.evaluated:
            raise UserError(f"{self.study.name}: {self.block.title} is not evaluated; {self.study.command}")
        tables = _tables(self.evaluated[BASE if start else method], quantity, self.study)
        means = 100 * np.mean([table.mean(axis=1) for table in tables], axis=0)
        return pd.Series(means[0] if start else means, self.evaluated[method].seeds)


def _tables(row: results.Result, quantity: Quantity, study: StudyFile) -> list[np.ndarray]:
    """Return what a quantity is of in a row: accuracies, or pass@32, of its benchmarks [S, n] each."""
    names = list(row.outcomes) if quantity.problems == "benchmarks" else [quantity.problems]
    if unknown := [name for name in names if name not in row.outcomes]:
        raise UserError(f"{study.name}: problems: {unknown[0]} is no benchmark; there are {', '.join(row.outcomes)}")
    tables = []
    for name in names:
        outcome = row.outcomes[name]
        chosen = [i for i, problem in enumerate(outcome.problems) if re.search(quantity.prompts, problem)]
        if not chosen:
            raise UserError(f"{study.name}: prompts: no problem of {name} matches {quantity.prompts!r}")
        tables.append((outcome.pass_at(32) if quantity.measure == "pass@32" else outcome.accuracy)[:, chosen])
    return tables


@dataclass(frozen=True)
class RunsOfBases:
    """The evaluated runs of all blocks, each from another base model.

    same_problems: whether all are evaluated on the same ones, and not each on those of another data set.
    """

    blocks: Sequence[Block]
    study: StudyFile
    same_problems: bool

    @cached_property
    def evaluated(self) -> list[dict[str, results.Result]]:
        """Return the rows of each base by method, those alone that all bases have.

        Raises UserError for one base, for methods with other seeds than each other, and for bases with other problems,
        if these should be the same.
        """
        every = [results.collect(block, self.study) for block in self.blocks]
        if len(every) < 2:
            raise UserError(f"{self.study.name}: its rules need runs from two base models; {self.study.command}")
        shared = [{m: row for m, row in rows.items() if all(m in other for other in every)} for rows in every]
        names = [name for name, _ in self.blocks[0].benchmarks]
        if missing := [b.title for b, rows in zip(self.blocks, every, strict=True) if BASE not in rows]:
            raise UserError(f"{self.study.name}: {missing[0]} is not evaluated; {self.study.command}")
        for block, rows in zip(self.blocks, shared, strict=True):
            if len({row.seeds for method, row in rows.items() if method != BASE}) > 1:
                raise UserError(f"{block.title}: the methods have different training seeds; {self.study.command}")
            same = [rows[BASE].outcomes[n].problems == every[0][BASE].outcomes[n].problems for n in names]
            if rows is not shared[0] and (not all(same) if self.same_problems else any(same)):
                which = "other problems than" if self.same_problems else "the same problems as"
                raise UserError(f"{block.title}: evaluated on {which} {self.blocks[0].title}")
        return shared

    def estimate(self, quantity: Quantity) -> Estimate:
        """Return the estimate of a quantity, in points.

        Random are bases and problems (``statistics.mean_over_seeds``), or data sets.

        Raises UserError as :meth:`of`.
        """
        values = self.of(quantity, quantity.of)
        if quantity.measure == "gain_share":
            assert quantity.minus is not None
            reference = self.of(quantity, quantity.minus)
            values = statistics.share_of_gain(values, reference, self.of(quantity, quantity.gain_from))
        else:
            off = [quantity.minus] if quantity.minus else [BASE] * (quantity.measure == "gain")
            signed = [(-1, each) for each in off]
            signed += [(-1, quantity.less.of), (1, quantity.less.minus)] if quantity.less else []
            for sign, method in signed:
                values = [x + sign * y for x, y in zip(values, self.of(quantity, method), strict=True)]
        if not self.same_problems:
            return statistics.clustered(100 * np.mean([table.mean(axis=1) for table in values], axis=0))
        return statistics.mean_over_seeds(*values).tested.times(100)

    def of(self, quantity: Quantity, method: str) -> list[np.ndarray]:
        """Return what the quantity is of, a table [bases, problems] a benchmark, averaged over a base's seeds.

        It is averaged over the problems too, [bases, 1], where each base has its own.

        Raises UserError where a base lacks a run of the method, or as :attr:`evaluated`.
        """
        if method not in self.evaluated[0]:
            path = places.file_of("study", self.study.name)
            raise UserError(f"{path}: {method} lacks a finished run from one of the bases; {self.study.command}")
        of_base = [_tables(rows[method], quantity, self.study) for rows in self.evaluated]
        axis = 0 if self.same_problems else None
        return [
            np.stack([np.atleast_1d(table.mean(axis=axis)) for table in tables])
            for tables in zip(*of_base, strict=True)
        ]


# ------------------------------------------------------------------------------------------------ as text


def sentence(verdicts: Sequence[Row], rules: Registered) -> str:
    """Return the sentence above the tables: what the study can say."""
    failed = [row["quantity"].words()[0] for row in verdicts if row["verdict"] == "failed"]
    if failed:
        return f"This setup cannot test the claim that {rules.claim}. What failed is: {'; '.join(failed)}."
    if not rules.decisions:
        return f"Every positive control passed, so this setup can test the claim that {rules.claim}."
    first = verdicts[len(rules.gates)]
    answer = f"{first['verdict'].capitalize()}: {text.change(*first['estimate'].ends)}"
    return f"Every positive control passed. {first['quantity'].words()[0]} {answer}."


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write gates_STUDY.csv, .md and .tex. Raises UserError where the study lacks gates, or runs that they name."""
    if study.missing:
        models = dict.fromkeys("/".join(place.split("/")[:2]) for place in study.missing)
        command = workflow_command([f"runs_{study.name}"], ())
        cure = f"make those of {', '.join(models)} with `{command}`, or unpack them from evidence"
        raise UserError(f"{study.name}: {study.share_of_runs}; gates are judged by all of them: {cure}")
    rules, rows, tables, introduction = registered(study.name), [], [], []
    groups: list[list[Block]] = [[block] for block in study.blocks]
    if rules.unit != "seed":
        tasks = dict.fromkeys(block.task for block in study.blocks)
        groups = [[block for block in study.blocks if block.task == task] for task in tasks]
    for blocks in groups:
        block, lines = blocks[0], []
        verdicts = judge(blocks, study, rules)
        for each in verdicts:
            quantity, ends = each["quantity"], each["estimate"].ends
            says, rule = quantity.words()
            row = {**block.keys(quantity.of), "model": model_of(blocks), "minus": quantity.minus}
            row |= {"measure": quantity.measure, "says": says}
            row |= dict(zip(("mean", "low", "high"), ends, strict=True))
            rows.append(row | {"verdict": each["verdict"]})
            methods = quantity.of + (f" minus {quantity.minus}" if quantity.minus else "")
            methods += f", less {quantity.less.of} minus {quantity.less.minus}" if quantity.less else ""
            lines.append([says, methods, quantity.measure, text.change(*ends), rule, each["verdict"]])
        title = block.title if len(blocks) == 1 else f"{block.task_title}, {len(blocks)} {UNITS[rules.unit]}"
        tables.append(Table(f"Positive controls: {title}", HEADER, lines, "lllrll"))
        introduction.append(sentence(verdicts, rules))
    notes = text.words({"seed": GATES, "base": "gates_of_bases", "data": "gates_of_data"}[rules.unit])
    page = Page.of(study, f"Positive controls: {study.title}", tables, notes, introduction=introduction)
    return page.write(out, f"{GATES}_{study.name}", rows)
