"""The search space of a sweep: named parameters, the keys that they set in a run, and how Optuna draws them."""

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
    """One entry of ``space``. docs/sweeps.md explains the fields for each kind.

    choices: {choice: its overrides}. low, high: bounds of a number, or of an interval's low end, whose high minus low
    is bounded by ``width``. above: the interval below whose ends this one's never fall. share_of: the key of the number
    that multiplies the value; the result is rounded and at least 1. own: the value that leaves the method's default.
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
        """Return Optuna's names for the numbers of this parameter."""
        return (f"{self.name}_low", f"{self.name}_width") if self.kind == "interval" else (self.name,)

    def titles(self) -> dict[str, str]:
        """Return {Optuna's name: title for readers}."""
        title = self.title or self.name
        if self.kind != "interval":
            return {self.name: title + (f" (x {self.share_of.rpartition('.')[2]})" if self.share_of else "")}
        low = f"low end of {title}" + (f" minus that of {self.above}" if self.above else "")
        return dict(zip(self.names, (low, f"width of {title}"), strict=True))

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
        """Return everything that identifies the space: all but the title."""
        choices = None if self.choices is None else [[c, dict(v)] for c, v in self.choices.items()]
        return {k: v for k, v in vars(self).items() if k != "title"} | {"choices": choices}


def suggest(parameters: Sequence[Parameter], draw: Callable[[str, BaseDistribution], Value]) -> dict[str, Value]:
    """Draw every number of the space with ``draw``, in the order of the file."""
    return {name: draw(name, d) for p in parameters for name, d in p.distributions().items()}


def grid(parameters: Sequence[Parameter]) -> list[dict[str, Value]]:
    """Return every combination of the choices of categorical parameters, the last one changing fastest."""
    choices = [list(p.choices or ()) for p in parameters]
    names = [p.name for p in parameters]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*choices)]


def values(
    parameters: Sequence[Parameter], drawn: Mapping[str, Value], whole: Callable[[str], float]
) -> dict[str, Any]:
    """Return {key of the configuration: value} for the drawn numbers.

    whole: looks up the number that a ``share_of`` names. The low end of an interval ``above`` another is drawn as the
    distance to the other's; its ends are raised to the other's and capped at 1, so every draw is valid.
    """
    overrides: dict[str, Any] = {}
    ends: dict[str, tuple[float, float]] = {}
    for p in parameters:
        if p.kind == "categorical":
            overrides |= (p.choices or {})[drawn[p.name]]
        elif p.kind == "interval":
            start, width = (float(drawn[n]) for n in p.names)  # type: ignore[arg-type]
            floor = ends[p.above] if p.above else (0.0, 0.0)
            low = min(1.0, floor[0] + start)
            ends[p.name] = low, min(1.0, max(low + width, floor[1]))
            overrides[p.key] = [round(e, 6) for e in ends[p.name]]
        elif p.own is not None and drawn[p.name] == p.own:
            continue
        elif p.share_of:
            overrides[p.key] = max(1, round(float(drawn[p.name]) * whole(p.share_of)))  # type: ignore[arg-type]
        else:
            overrides[p.key] = drawn[p.name]
    return overrides
