"""The entries of the ledger: ``analysis/claims/*.yaml``, or those of another paper, as pydantic models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from analysis import audit, paper, products
from analysis.claims import FOLDER
from analysis.claims.measures import BASE, CHANCE, QUERIES, Query, names
from analysis.claims.queries import training
from analysis.study import Study
from bapo import project, validate
from bapo.errors import UserError, unknown
from bapo.experiments import places
from bapo.experiments.places import options

#: the key of the paper's number over all tasks
OVERALL = "overall"
Number = int | float


def _band(ends: tuple[Number, Number]) -> tuple[Number, Number]:
    if ends[0] >= ends[1]:
        raise ValueError("must be two numbers, the lower first")
    return ends


class Rule(BaseModel):
    """What the interval must show: exactly one of the rules, and for above and below perhaps the paper's size.

    above, below: a number that the interval must lie beyond; within: a band that must hold it; near: the same band,
    the paper's number plus and minus this share of it; always: the estimate must be exactly 100%.
    tolerance: how far short of the paper's number, in its unit, the estimate may fall and still have its size.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    above: Number | None = None
    below: Number | None = None
    within: Annotated[tuple[Number, Number], AfterValidator(_band)] | None = None
    near: Number | None = None
    always: Literal[True] | None = None
    tolerance: Number | None = None

    @model_validator(mode="after")
    def _one(self) -> Rule:
        given = [kind for kind in RULES if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"must have exactly one of {', '.join(RULES)}")
        if self.tolerance is not None and given[0] not in ("above", "below"):
            raise ValueError("tolerance goes with above or below")
        return self

    @property
    def kind(self) -> str:
        return next(kind for kind in RULES if getattr(self, kind) is not None)

    @property
    def value(self) -> Any:
        return getattr(self, self.kind)

    def text(self) -> str:
        if self.kind == "always":
            return "always: 100%, without an exception"
        if self.kind == "near":
            return f"within {100 * self.value:g}% of the paper's number"
        return f"within {self.value[0]} to {self.value[1]}" if self.kind == "within" else f"{self.kind} {self.value}"


RULES = tuple(name for name in Rule.model_fields if name != "tolerance")


class Claim(BaseModel):
    """One entry. paper: a number; or one for each task, task/model and "overall"; or words where the paper gives none.

    studies: whose runs the query reads (default: Table 1's); query: its name, and its parameters.
    scales: only judged at these, and elsewhere only measured (default: judged at all; at none, with not_testable).
    not_testable: why it is only measured, or why there is no query.
    tasks: only these (default: every task that the studies run the methods on).
    overall: how several tasks make one line: their mean, all of them at once, or none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
    section: str
    quote: str
    paper: Number | str | dict[str, Number]
    studies: tuple[str, ...] = ()
    query: dict[str, Any] = {}
    rule: Rule | None = None
    tasks: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    overall: Literal["mean", "all", "none"] = "mean"
    not_testable: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Claim:
        """Raise ValueError for what no single field shows."""
        if self.query and self.rule is None:
            raise ValueError("rule is missing")
        if self.query and not self.studies:
            raise ValueError("studies is missing; name the studies whose runs the query reads")
        if self.rule and isinstance(self.paper, str) and (self.rule.kind == "near" or self.rule.tolerance is not None):
            raise ValueError("rule.near and rule.tolerance need a number in paper")
        if not self.not_testable and (self.scales or not self.query):
            raise ValueError(
                "not_testable is missing; say why there is no query, or why only runs of scales are judged"
            )
        if self.query.get("quantity") == training.SECONDS and (self.scales or not self.not_testable):
            raise ValueError("query.quantity=seconds depends on the machine: take flops, or say so in not_testable")
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the query's parameters as they are written."""
        return {key: value for key, value in self.query.items() if key != "name"}

    @property
    def asked(self) -> Query:
        return QUERIES[self.query["name"]]

    @property
    def judged_by(self) -> Rule:
        assert self.rule is not None, "an entry with a query has a rule"
        return self.rule

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
        scales = tuple({s.scale for s in studies.values() if s.scale})
        return Known(
            tuple(studies), tuple({b.task for b in blocks}), scales, tuple({m for b in blocks for m in b.methods})
        )


def read(place: Path = FOLDER, known: Known | None = None) -> list[Claim]:
    """Read all entries of a file, or of a folder file by file.

    known: of another paper's claims; their queries read all of its studies where an entry names none (else: Table 1's).
    Raises UserError naming the file, the entry and the field.
    """
    claims: dict[str, Claim] = {}
    for path in sorted(place.glob("*.yaml")) if place.is_dir() else [place]:
        content = _content(path)
        if not isinstance(content, list):
            raise UserError(f"{path}: must be a list of entries, each with id, section, quote, paper, query and rule")
        for i, entry in enumerate(content, 1):
            if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
                raise UserError(f"{path}: entry {i}: id is missing; give it a name in small letters")
            where = f"{path}: entry '{entry['id']}'"
            if entry["id"] in claims:
                raise UserError(f"{where}: id is there twice; choose another")
            if known and entry.get("query"):
                entry = {"studies": list(known.study), **entry}
            claim: Claim = validate.read(Claim, products.with_studies(entry), where)
            _check_names(claim, where, known or Known())
            claims[claim.id] = claim
    return [*claims.values()]


def _content(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def _check_names(claim: Claim, where: str, known: Known) -> None:
    """Raise UserError for a query, a parameter, a study, task, scale or method that does not exist."""
    tasks = {*options("task"), *known.task}
    given: list[tuple[str, str, Sequence[str], set[str]]] = [
        ("studies", "study", claim.studies, {*options("study"), *known.study}),
        ("tasks", "task", claim.tasks, tasks),
        ("scales", "scale", claim.scales, {*options("scale"), *known.scale}),
    ]
    if isinstance(claim.paper, Mapping):
        given.append(("paper", "task", [key.partition("/")[0] for key in claim.paper], {*tasks, OVERALL}))
    if claim.query:
        given.append(("query.name", "query", [str(claim.query.get("name"))], set(QUERIES)))
        methods = {*options("method"), *known.method, BASE, CHANCE}
        plain = [(key, [name.partition("+")[0] for name in names(claim.query.get(key))]) for key in ("of", "over")]
        given += [(f"query.{key}", "method", listed, methods) for key, listed in plain]
    for key, what, listed, allowed in given:
        for name in listed:
            if name not in allowed:
                raise UserError(unknown(f"{where}: {key}", f"no such {what}", name, sorted(allowed)))
    if claim.query:
        claim.asked.check(claim.parameters, f"{where}: query")


# ------------------------------------------------------------------------------------------------ other papers


@dataclass(frozen=True)
class Paper:
    """claims: the file of the entries; name: of the ledger's files, without a suffix; title: "" where none is given."""

    claims: Path
    name: str
    title: str = ""


def find(name: str) -> Paper:
    """Return the claims that ``name`` stands for: CLAIMS.yaml, PAPER.yaml, or a paper of ``analysis/paper/``.

    Raises UserError where a paper's file names no claims.
    """
    path = paper.find(name)
    if not path.is_file() or not isinstance(_content(path), dict):
        return Paper(path, products.PAPERS_LEDGER.format(path.stem.removesuffix("_claims")))
    setup = audit.load(path).setup
    if not setup.claims or not (path.parent / setup.claims).is_file():
        raise UserError(f"{path}: claims={setup.claims}: no such file; name the YAML file of its claims beside it")
    return Paper(path.parent / setup.claims, products.PAPERS_LEDGER.format(path.stem), setup.title)


def check() -> None:
    """Read the entries that the workflow's ledger is made of, and its paper. Raises UserError for what is wrong."""
    about = project.about()
    if about is None or about.paper is None:
        read()
    elif audit.load(about.paper).setup.claims:
        read(find(str(about.paper)).claims, Known(tuple(places.own("study"))))
