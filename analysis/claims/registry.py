"""The queries by name, with the parameters that an entry may give them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.claims.measures import BASE, CHANCE, Measure, NotTestable
from bapo.errors import UserError, unknown

if TYPE_CHECKING:
    from analysis.claims.view import View


class Answer(dict[str, Measure]):
    """A query's answer: one measure, or one for each comparison it was asked for, by its title.

    unmeasured: the comparisons that the runs do not allow, with the reason.
    """

    unmeasured: dict[str, str]

    def __init__(self, measures: dict[str, Measure], unmeasured: dict[str, str] | None = None):
        super().__init__(measures)
        self.unmeasured = unmeasured or {}


@dataclass(frozen=True)
class Query:
    name: str
    answer: Callable[..., Answer]
    required: tuple[str, ...]
    allowed: tuple[str, ...]
    evaluated: bool  # whether it reads eval/ beside the training run
    choices: dict[str, tuple[str, ...]]  # parameter -> what it may be, where that is a list of words
    beside: tuple[str, ...]  # which of BASE and CHANCE `over` may name

    def check(self, where: str, parameters: dict[str, Any]) -> None:
        """Raises UserError for a parameter that is missing or that the query does not have."""
        for name in parameters:
            if name not in self.allowed:
                wrong = f"query '{self.name}' has no such parameter"
                raise UserError(unknown(f"{where}: query.{name}", wrong, name, sorted(self.allowed)))
        for name, choices in self.choices.items():
            if name in parameters and parameters[name] not in choices:
                raise UserError(
                    unknown(f"{where}: query.{name}", "no such choice", str(parameters[name]), list(choices))
                )
        for name in names(parameters.get("over")):
            if name in (BASE, CHANCE) and name not in self.beside:
                raise UserError(f"{where}: query.over: query '{self.name}' cannot be asked over {name}; name methods")
        for name in self.required:
            if name not in parameters:
                raise UserError(
                    f"{where}: query.{name} is missing; query '{self.name}' needs {', '.join(self.required)}"
                )


QUERIES: dict[str, Query] = {}


def query(
    evaluated: bool = False, beside: tuple[str, ...] = (), **choices: tuple[str, ...]
) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Register a function ``(view, *, of, over=..., ...) -> Answer`` under its name; the rest as in :class:`Query`."""

    def register(function: Callable[..., Answer]) -> Callable[..., Answer]:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        required = tuple(p.name for p in parameters if p.default is p.empty)
        allowed = tuple(p.name for p in parameters)
        QUERIES[function.__name__] = Query(function.__name__, function, required, allowed, evaluated, choices, beside)
        return function

    return register


def names(value: Any) -> list[str]:
    """Return a method or a list of methods."""
    return [] if value is None else [str(v) for v in value] if isinstance(value, list) else [str(value)]


def pairs(view: View, of: Any, over: Any) -> list[tuple[str, str, str]]:
    """(title, a, b) of every comparison whose methods have runs here."""
    methods = view.block.methods
    compared = [
        (a, b) for a in names(of) for b in names(over) if a in methods and (b in methods or b in (BASE, CHANCE))
    ]
    return [(f"{view.title(a)} against {view.title(b)}", a, b) for a, b in compared if a != b]


def methods_with_runs(view: View, of: Any) -> list[tuple[str, str]]:
    """(title, method) of every method that has runs here."""
    return [(view.title(m), m) for m in names(of) if m in view.block.methods]


def answers(asked: list[tuple[str, ...]], measure: Callable[..., Measure]) -> Answer:
    """measure(*methods) of every (title, *methods) asked for.

    Raises NotTestable where none of them can be measured.
    """
    measures, reasons = {}, {}
    for title, *methods in asked:
        try:
            measures[title] = measure(*methods)
        except NotTestable as reason:
            reasons[title] = str(reason)
    if reasons and not measures:
        raise NotTestable("; ".join(dict.fromkeys(reasons.values())))
    return Answer(measures, reasons)
