"""The entries of the ledger: reading ``analysis/claims/*.yaml``, and every mistake as one sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from analysis import products
from analysis.claims import FOLDER
from analysis.claims.measures import BASE, CHANCE
from analysis.claims.queries import QUERIES
from analysis.claims.queries.training import SECONDS
from analysis.claims.registry import names
from analysis.study import Study
from bapo import validate
from bapo.errors import UserError, unknown
from bapo.experiments.places import options
from bapo.validate import REQUIRED, one_of, setting, wrong


@dataclass(frozen=True)
class Rule:
    """What the interval must show: exactly one of the rules, and for above and below perhaps the paper's size.

    above, below: a number that the interval must lie beyond; within: a band that must hold it; near: the same band,
    the paper's number plus and minus this share of it; always: the estimate must be exactly 100%.
    tolerance: how far short of the paper's number, in its unit, the estimate may fall and still have its size.
    """

    above: int | float | None = None
    below: int | float | None = None
    within: tuple[int | float, ...] | None = setting(
        None, validate.Rule(lambda v: len(v) == 2 and v[0] < v[1], "must be two numbers, the lower first")
    )
    near: int | float | None = None
    always: bool | None = setting(None, validate.Rule(bool, "must be true"))
    tolerance: int | float | None = None

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in RULES if getattr(self, kind) is not None]

    @property
    def kind(self) -> str:
        return self.kinds[0]

    @property
    def value(self) -> Any:
        return getattr(self, self.kind)

    def text(self) -> str:
        if self.kind == "always":
            return "always: 100%, without an exception"
        if self.kind == "near":
            return f"within {100 * self.value:g}% of the paper's number"
        return f"within {self.value[0]} to {self.value[1]}" if self.kind == "within" else f"{self.kind} {self.value}"


#: the key of the paper's number over all tasks
OVERALL = "overall"
RULES = tuple(f.name for f in fields(Rule) if f.name != "tolerance")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_number_or_words(value: Any) -> bool:
    by_task = isinstance(value, dict) and value and all(isinstance(k, str) and _is_number(v) for k, v in value.items())
    return bool(by_task or _is_number(value) or isinstance(value, str))


@dataclass(frozen=True)
class Claim:
    """One entry. paper: a number; or one for each task, task/model and "overall"; or words where the paper gives none.

    studies: whose runs the query reads (default: Table 1's); query: its name, and its parameters.
    scales: only judged at these, and elsewhere only measured (default: judged at all; at none, with not_testable).
    not_testable: why it is only measured, or why there is no query.
    tasks: only these (default: every task that the studies run the methods on).
    overall: how several tasks make one line: their mean, all of them at once, or none.
    """

    id: str = setting(
        REQUIRED, validate.Rule(re.compile("[a-z][a-z0-9_]*").fullmatch, "may have small letters, digits and _ only")
    )
    section: str
    quote: str
    paper: Any = setting(
        REQUIRED, validate.Rule(_is_number_or_words, "must be a number, a number for each task, or words")
    )
    studies: tuple[str, ...] = ()
    query: Mapping[str, Any] = setting({})
    rule: Rule | None = None
    tasks: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    overall: str = setting("mean", one_of("mean", "all", "none"))
    not_testable: str = ""
    note: str = ""

    @property
    def parameters(self) -> dict[str, Any]:
        return {key: value for key, value in self.query.items() if key != "name"}

    def paper_value(self, task: str, model: str = "") -> float | None:
        """Return the paper's number for a model (a key `task/model`), else its task; None where it prints none."""
        if isinstance(self.paper, Mapping):
            return self.paper.get(f"{task}/{model}", self.paper.get(task))
        return None if isinstance(self.paper, str) else self.paper

    def methods(self) -> list[str]:
        return [*names(self.query.get("of")), *names(self.query.get("over"))]


@dataclass(frozen=True)
class Known:
    """The names that entries may give beside those in experiments/: of the studies that they are asked of."""

    study: tuple[str, ...] = ()
    task: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()
    method: tuple[str, ...] = ()

    @staticmethod
    def of(studies: Mapping[str, Study]) -> Known:
        blocks = [b for s in studies.values() for b in s.blocks]
        tasks, methods = (b.task for b in blocks), (m for b in blocks for m in b.methods)
        scales = tuple({s.scale for s in studies.values() if s.scale})
        return Known(tuple(studies), tuple(dict.fromkeys(tasks)), scales, tuple(dict.fromkeys(methods)))


def read(place: Path = FOLDER, known: Known | None = None) -> list[Claim]:
    """Read all entries of a file, or of a folder file by file.

    known: of another paper's claims; their queries read all of its studies where an entry names none (else: Table 1's).
    Raises UserError naming the file, the entry and the field.
    """
    claims: dict[str, tuple[str, Claim]] = {}
    for path in sorted(place.glob("*.yaml")) if place.is_dir() else [place]:
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; name a YAML file with a list of claims") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
        if not isinstance(content, list):
            raise UserError(f"{path}: must be a list of entries, each with id, section, quote, paper, query and rule")
        for i, entry in enumerate(content, 1):
            if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
                raise UserError(f"{path}: entry {i}: id is missing; give it a name in small letters")
            where = f"{path}: entry '{entry['id']}'"
            if entry["id"] in claims:
                raise wrong(where, "id", None, f"is in {claims[entry['id']][0]} already; choose another")
            if known and entry.get("query"):
                entry = {"studies": list(known.study), **entry}
            claim = validate.read(Claim, products.with_studies(entry), where)
            _check(claim, where, known or Known())
            claims[claim.id] = (path.name, claim)
    return [claim for _, claim in claims.values()]


def _check(claim: Claim, where: str, known: Known) -> None:
    """Raise UserError for what no single field shows."""
    for key, group in (("studies", "study"), ("tasks", "task"), ("scales", "scale")):
        allowed = sorted({*options(group), *getattr(known, group)})
        for name in getattr(claim, key):
            if name not in allowed:
                raise UserError(unknown(f"{where}: {key}", f"no such {group}", name, allowed))
    if isinstance(claim.paper, Mapping):
        allowed = sorted({*options("task"), *known.task, OVERALL})
        for name in (str(key).partition("/")[0] for key in claim.paper):
            if name not in allowed:
                raise UserError(unknown(f"{where}: paper", "no such task", name, allowed))
    if claim.query:
        name = str(claim.query.get("name"))
        if name not in QUERIES:
            raise UserError(unknown(f"{where}: query.name", "no such query", name, sorted(QUERIES)))
        QUERIES[name].check(where, claim.parameters)
        _check_rule(claim.rule or Rule(), where, claim.paper)
        if not claim.studies:
            raise wrong(where, "studies", None, "is missing; name the studies whose runs the query reads")
        if claim.query.get("quantity") == SECONDS and (claim.scales or not claim.not_testable):
            cure = "is wall-clock time, which depends on what else the machine did: take flops, or say in not_testable "
            raise wrong(where, "query.quantity", SECONDS, cure + "that it is only shown, and name no scales")
        _check_methods(claim, where, known)
    if claim.scales and not claim.not_testable:
        raise wrong(where, "not_testable", None, "is missing; say why only the runs of scales are judged")
    if not claim.query and not claim.not_testable:
        raise wrong(where, "query", None, "is missing; give one, or say in not_testable why there can be none")


def _check_methods(claim: Claim, where: str, known: Known) -> None:
    allowed = sorted({*options("method"), *known.method})
    for key in ("of", "over"):
        for name in names(claim.query.get(key)):
            if name.partition("+")[0] not in (*allowed, BASE, CHANCE):
                raise UserError(unknown(f"{where}: query.{key}", "no such method", name, allowed))


def _check_rule(rule: Rule, where: str, paper: Any) -> None:
    if len(rule.kinds) != 1:
        raise wrong(where, "rule", None, f"must have exactly one of {', '.join(RULES)}")
    if rule.kind == "near" and isinstance(paper, str):
        raise wrong(where, "rule.near", rule.near, "needs a number in paper")
    if rule.tolerance is not None and (rule.kind not in ("above", "below") or isinstance(paper, str)):
        raise wrong(
            where, "rule.tolerance", rule.tolerance, "goes with above or below, and with a paper that gives a number"
        )
