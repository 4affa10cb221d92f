"""The entries of the ledger: reading ``analysis/claims/*.yaml``, and every mistake as one sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from analysis.claims import FOLDER
from analysis.claims.registry import QUERIES, load, words
from bapo.errors import UserError, unknown
from bapo.experiments.places import options

#: the rules; an entry gives exactly one, and with above or below perhaps a tolerance of the paper's size
RULES = ("above", "below", "within", "near", "always")
OVERALL = ("mean", "all", "none")


@dataclass(frozen=True)
class Rule:
    """What the interval must show. kind, value: one of RULES and its number(s).

    above, below: a number that the interval must lie beyond; within: a band that must hold it; near: the same band,
    the paper's number plus and minus this share of it; always: the estimate must be exactly 100%.
    tolerance: how far short of the paper's number, in its unit, the estimate may fall and still have its size.
    """

    kind: str
    value: Any
    tolerance: float | None = None

    def text(self) -> str:
        if self.kind == "always":
            return "always: 100%, without an exception"
        words = {"above": "above {}", "below": "below {}", "within": "within {0[0]} to {0[1]}"}
        if self.kind == "near":
            return f"within {100 * self.value:g}% of the paper's number"
        return words[self.kind].format(self.value)


@dataclass(frozen=True)
class Claim:
    """One entry. paper: a number; or one for each task, task/model and "overall"; or words where the paper gives none.

    scales: only judged at these, and elsewhere only measured (default: judged at all; at none, with not_testable).
    not_testable: why it is only measured, or why there is no query.
    tasks: only these (default: every task that the studies run the methods on).
    overall: how several tasks make one line: their mean, all of them at once, or none.
    """

    id: str
    section: str
    quote: str
    paper: float | str | Mapping[str, float]
    file: str = ""
    studies: tuple[str, ...] = ()
    query: str = ""
    parameters: Mapping[str, Any] | None = None
    rule: Rule | None = None
    tasks: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    overall: str = "mean"
    not_testable: str = ""
    note: str = ""

    def paper_value(self, task: str, model: str = "") -> float | None:
        """The paper's number for a model (a key `task/model`), else its task, None where it prints none."""
        if isinstance(self.paper, Mapping):
            return self.paper.get(f"{task}/{model}", self.paper.get(task))
        return None if isinstance(self.paper, str) else self.paper

    def methods(self) -> list[str]:
        parameters = self.parameters or {}
        return [*words(parameters.get("of")), *words(parameters.get("over"))]


def read(folder: Path = FOLDER) -> list[Claim]:
    """All entries, file by file. Raises UserError naming the file, the entry and the field."""
    load()
    claims: list[Claim] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
        if not isinstance(content, list):
            raise UserError(f"{path}: must be a list of entries, each with id, section, quote, paper, query and rule")
        claims += [_claim(entry, path, i) for i, entry in enumerate(content)]
    for claim in claims:
        if (first := next(c for c in claims if c.id == claim.id)) is not claim:
            raise UserError(f"{claim.file}: entry '{claim.id}': id is in {first.file} already; choose another")
    return claims


def studies_named(claims: list[Claim] | None = None) -> list[str]:
    """The studies that the entries ask for, each once: what the workflow has to run."""
    return list(dict.fromkeys(s for c in (read() if claims is None else claims) for s in c.studies))


def _claim(entry: Any, path: Path, index: int) -> Claim:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise UserError(f"{path}: entry {index + 1}: id is missing; give it a name in small letters")
    where = f"{path}: entry '{entry['id']}'"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", entry["id"]):
        raise UserError(f"{where}: id may have small letters, digits and _ only")
    allowed = [f.name for f in fields(Claim) if f.name not in ("file", "parameters")]
    for key in entry:
        if key not in allowed:
            raise UserError(unknown(f"{where}: {key}", "no such field", str(key), allowed))
    for key in ("section", "quote", "paper"):
        if key not in entry:
            raise UserError(f"{where}: {key} is missing; add it")
    for key in ("section", "quote", "not_testable", "note"):
        if not isinstance(entry.get(key, ""), str):
            raise UserError(f"{where}: {key} must be text")
    lists = {key: _words(entry.get(key, []), f"{where}: {key}") for key in ("studies", "tasks", "scales")}
    for key, group in (("studies", "study"), ("tasks", "task"), ("scales", "scale")):
        for name in lists[key]:
            if name not in options(group):
                raise UserError(unknown(f"{where}: {key}", f"no such {group}", name, options(group)))
    overall = entry.get("overall", "mean")
    if overall not in OVERALL:
        raise UserError(unknown(f"{where}: overall", "no such way", str(overall), list(OVERALL)))
    found: dict[str, Any] = {key: entry.get(key, "") for key in ("id", "section", "quote", "not_testable", "note")}
    found |= {**lists, "overall": overall, "file": path.name, "paper": _paper(entry["paper"], where)}
    if "query" in entry:
        found |= _query(entry["query"], where)
        found["rule"] = _rule(entry.get("rule"), where, found["paper"])
        if not lists["studies"]:
            raise UserError(f"{where}: studies is missing; name the studies whose runs the query reads")
    if lists["scales"] and not entry.get("not_testable"):
        raise UserError(
            f"{where}: not_testable is missing; say why the claim is not judged at other scales than scales"
        )
    if "query" not in entry and not entry.get("not_testable"):
        raise UserError(f"{where}: query is missing; give one, or say in not_testable why there can be none")
    return Claim(**found)


def _words(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise UserError(f"{where} must be a list of names")
    return tuple(value)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _paper(value: Any, where: str) -> Any:
    by_task = isinstance(value, dict) and value and all(isinstance(k, str) and _number(v) for k, v in value.items())
    if not (by_task or _number(value) or isinstance(value, str)):
        raise UserError(f"{where}: paper must be a number, a number for each task, or words")
    return value


def _query(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or "name" not in value:
        raise UserError(f"{where}: query must be a mapping with name and the query's parameters")
    parameters = {k: v for k, v in value.items() if k != "name"}
    if value["name"] not in QUERIES:
        raise UserError(unknown(f"{where}: query.name", "no such query", str(value["name"]), sorted(QUERIES)))
    QUERIES[value["name"]].check(where, parameters)
    return {"query": value["name"], "parameters": parameters}


def _rule(value: Any, where: str, paper: Any) -> Rule:
    if not isinstance(value, dict):
        raise UserError(f"{where}: rule is missing; give one of {', '.join(RULES)}")
    kinds = [k for k in value if k in RULES]
    for key in value:
        if key not in (*RULES, "tolerance"):
            raise UserError(unknown(f"{where}: rule.{key}", "no such rule", str(key), [*RULES, "tolerance"]))
    if len(kinds) != 1:
        raise UserError(f"{where}: rule must have exactly one of {', '.join(RULES)}")
    kind, number, tolerance = kinds[0], value[kinds[0]], value.get("tolerance")
    if kind == "within":
        good = isinstance(number, list) and len(number) == 2 and all(map(_number, number)) and number[0] < number[1]
        number, need = (tuple(number) if good else number), "two numbers, the lower first"
    elif kind == "always":
        good, need = number is True, "true"
    else:
        good, need = _number(number), "a number"
    if not good:
        raise UserError(f"{where}: rule.{kind} must be {need}")
    if kind == "near" and isinstance(paper, str):
        raise UserError(f"{where}: rule.near needs a number in paper")
    if tolerance is not None and (kind not in ("above", "below") or not _number(tolerance) or isinstance(paper, str)):
        raise UserError(f"{where}: rule.tolerance is a number, beside above or below, of a paper that gives a number")
    return Rule(kind, number, tolerance)
