"""The search space of a sweep: named parameters, what they set in a run's configuration, and how Optuna draws them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Value = bool | int | float | str | None
KINDS = ("categorical", "int", "float", "interval")


@dataclass(frozen=True)
class Parameter:
    """One entry of ``space``. What the fields mean for each kind: docs/sweeps.md.

    choices: what can be chosen -> the overrides that it stands for. low, high: bounds of a number; of an interval, the
    bounds of its low end and (``width``) of high minus low. above: the interval whose ends this one's never go below.
    share_of: the key of the number that the value is multiplied with; the result is rounded, and at least 1. own: the
    value that stands for the method's own default, so nothing is set.
    """

    name: str
    kind: str
    key: str = ""
    title: str = ""
    choices: Mapping[Value, Mapping[str, Any]] | None = None
    low: float = 0.0
    high: float = 0.0
    width: tuple[float, float] = (0.0, 0.0)
    step: float | None = None
    log: bool = False
    share_of: str = ""
    own: float | None = None
    above: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What Optuna calls the numbers of this parameter."""
        return (f"{self.name}_low", f"{self.name}_width") if self.kind == "interval" else (self.name,)

    def titles(self) -> dict[str, str]:
        """Optuna's names -> what a reader is told."""
        words = self.title or self.name
        if self.kind != "interval":
            return {self.name: words + (f" (x {self.share_of.rpartition('.')[2]})" if self.share_of else "")}
        low = f"low end of {words}" + (f" minus that of {self.above}" if self.above else "")
        return dict(zip(self.names, (low, f"width of {words}"), strict=True))

    def distributions(self) -> dict[str, BaseDistribution]:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.kind == "categorical":
            return {self.name: CategoricalDistribution(list(self.choices or ()))}
        if self.kind == "int":
            step = 1 if self.step is None else int(self.step)
            return {self.name: IntDistribution(int(self.low), int(self.high), log=self.log, step=step)}
        if self.kind == "float":
            return {self.name: FloatDistribution(self.low, self.high, log=self.log, step=self.step)}
        ends = ((self.low, self.high), self.width)
        return {n: FloatDistribution(*e, step=self.step) for n, e in zip(self.names, ends, strict=True)}

    def content(self) -> dict[str, Any]:
        """All that makes the space another one; a title does not."""
        choices = None if self.choices is None else [[c, dict(v)] for c, v in self.choices.items()]
        return {k: v for k, v in vars(self).items() if k != "title"} | {"choices": choices}


def suggest(parameters: Sequence[Parameter], draw: Callable[[str, BaseDistribution], Value]) -> dict[str, Value]:
    """Every number of the space, drawn with ``draw`` in the order of the file."""
    return {name: draw(name, d) for p in parameters for name, d in p.distributions().items()}


def grid(parameters: Sequence[Parameter]) -> list[dict[str, Value]]:
    """Every combination of the choices, the last parameter changing fastest. Only categorical parameters have one."""
    choices = [list(p.choices or ()) for p in parameters]
    names = [p.name for p in parameters]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*choices)]


def values(
    parameters: Sequence[Parameter], drawn: Mapping[str, Value], whole: Callable[[str], float]
) -> dict[str, Any]:
    """What the numbers drawn set: key of the configuration -> value.

    whole: the number that a ``share_of`` names. An interval that stands ``above`` another one gives its low end as the
    distance to the other's; its ends are raised to the other's and never pass 1, so that every draw is a valid one.
    """
    found: dict[str, Any] = {}
    ends: dict[str, tuple[float, float]] = {}
    for p in parameters:
        if p.kind == "categorical":
            found |= (p.choices or {})[drawn[p.name]]
        elif p.kind == "interval":
            start, width = (float(drawn[n]) for n in p.names)  # type: ignore[arg-type]
            floor = ends[p.above] if p.above else (0.0, 0.0)
            low = min(1.0, floor[0] + start)
            ends[p.name] = low, min(1.0, max(low + width, floor[1]))
            found[p.key] = [round(e, 6) for e in ends[p.name]]
        elif p.own is not None and drawn[p.name] == p.own:
            continue
        elif p.share_of:
            found[p.key] = max(1, round(float(drawn[p.name]) * whole(p.share_of)))  # type: ignore[arg-type]
        else:
            found[p.key] = drawn[p.name]
    return found
