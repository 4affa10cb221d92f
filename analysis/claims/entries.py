"""The entries of the ledger, ``analysis/claims/*.yaml``, as pydantic models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from analysis import products
from analysis.claims import BASE, CHANCE, training
from analysis.claims.queries import QUERIES, Query, names
from bapo import validate
from bapo.errors import UserError, unknown
from bapo.experiments.places import options

#: the key in ``paper`` of the number over all tasks, and the task of the line over all tasks
OVERALL = "overall"
Number = int | float


class Rule(BaseModel):
    """What the interval must show: exactly one of the rules, and for above and below perhaps the paper's size.

    above, below: a number that the interval must lie beyond; within: a band that must hold it; near: the same band,
    the paper's number plus and minus this share of it; equal: the margin of equivalence on either side of 0, for
    accuracies (analysis.results.margin); always: the estimate must be exactly 100%.
    tolerance: how far short of the paper's number, in its unit, the estimate may fall and still have its size.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    above: Number | None = None
    below: Number | None = None
    within: tuple[Number, Number] | None = None
    near: Number | None = None
    equal: Literal[True] | None = None
    always: Literal[True] | None = None
    tolerance: Number | None = None

    @model_validator(mode="after")
    def _one(self) -> Rule:
        given = self.model_dump(exclude_none=True, exclude={"tolerance"})
        if len(given) != 1:
            raise ValueError("must have exactly one of above, below, within, near, equal, always")
        if self.tolerance is not None and not given.keys() & {"above", "below"}:
            raise ValueError("tolerance goes with above or below")
        if self.within and self.within[0] >= self.within[1]:
            raise ValueError("within must be two numbers, the lower first")
        return self

    def text(self) -> str:
        """Return the rule in words."""
        ((kind, value),) = self.model_dump(exclude_none=True, exclude={"tolerance"}).items()
        words = {
            "always": "always: 100%, without an exception",
            "equal": "equal: within half of the paper's effect, as a share of GRPO's gain",
            "near": f"within {100 * (self.near or 0):g}% of the paper's number",
            "within": "within {} to {}".format(*(self.within or ("", ""))),
        }
        return words.get(kind, f"{kind} {value}")


class Claim(BaseModel):
    """One entry. paper: a number; or one for each task, task/model and "overall"; or words where the paper gives none.

    studies: whose runs the query reads (default: Table 1's, also with further seeds); query: its name and parameters.
    scales: only judged at these, and elsewhere only measured (default: judged at all; at none, with not_testable).
    not_testable: why it is only measured, or why there is no query.
    by_definition: why it follows from how the methods are defined, whatever they learn: counted apart.
    tasks: only these (default: every task that the studies run the methods on).
    overall: how several tasks make one line: their mean, or all of them at once.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
    section: str
    quote: str
    paper: Number | str | dict[str, Number]
    studies: tuple[str, ...] = products.CLAIMED
    query: dict[str, Any] = {}
    rule: Rule | None = None
    tasks: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    overall: Literal["mean", "all"] = "mean"
    not_testable: str = ""
    by_definition: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Claim:
        """Raise ValueError for what no single field shows."""
        if self.query and self.rule is None:
            raise ValueError("rule is missing")
        for key in ("of", "over"):
            methods = self.query.get(key) or []
            if not all(isinstance(method, str) for method in (methods if isinstance(methods, list) else [methods])):
                raise ValueError(f"query.{key} must be a method or a list of methods")
        if self.rule and isinstance(self.paper, str) and (self.rule.near or self.rule.tolerance is not None):
            raise ValueError("rule.near and rule.tolerance need a number in paper")
        if not self.not_testable and (self.scales or not self.query):
            raise ValueError("not_testable is missing; say why there is no query, or why only some scales are judged")
        if self.query.get("quantity") == training.SECONDS and (self.scales or not self.not_testable):
            raise ValueError("query.quantity=seconds depends on the machine: take flops, or say so in not_testable")
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the query's parameters as they are written."""
        return {key: value for key, value in self.query.items() if key != "name"}

    @property
    def question(self) -> Query:
        """Return the query of an entry that names one."""
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
        """Return the methods that the query compares, BASE and CHANCE among them."""
        return [*names(self.query.get("of")), *names(self.query.get("over"))]


def read(place: Path = products.CLAIMS) -> list[Claim]:
    """Read all entries of a folder, file by file. Raises UserError naming the file, the entry and the field."""
    claims: dict[str, Claim] = {}
    for path, entry in products.claims_of(place):
        where = f"{path}: entry '{entry.get('id')}'"
        claim: Claim = validate.read(Claim, entry, where)
        if claim.id in claims:
            raise UserError(f"{where}: id occurs twice; choose another")
        claims[claim.id] = claim
        _check_names(claim, where)
    return [*claims.values()]


def _check_names(claim: Claim, where: str) -> None:
    """Raise UserError for a query, a parameter, a study, task, scale or method that does not exist."""
    papers = [key.partition("/")[0] for key in claim.paper] if isinstance(claim.paper, Mapping) else []
    of, over = ([m.partition("+")[0] for m in names(claim.query.get(key))] for key in ("of", "over"))
    given: dict[str, tuple[str, Sequence[str]]] = {"studies": ("study", claim.studies), "paper": ("task", papers)}
    given |= {"tasks": ("task", claim.tasks), "scales": ("scale", claim.scales)}
    given |= {"query.of": ("method", of), "query.over": ("method", over)}
    beside = {"paper": [OVERALL], "query.of": [BASE], "query.over": [BASE, CHANCE]}
    for key, (what, listed) in given.items():
        allowed = sorted({*options(what), *beside.get(key, ())})
        for name in listed:
            if name not in allowed:
                raise UserError(unknown(f"{where}: {key}", f"no such {what}", name, allowed))
    if claim.query:
        if (name := str(claim.query.get("name"))) not in QUERIES:
            raise UserError(unknown(f"{where}: query.name", "no such query", name, sorted(QUERIES)))
        claim.question.check(claim.parameters, f"{where}: query")
