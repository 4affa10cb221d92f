"""A training run by its names, and whether ``experiments/`` has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bapo.errors import UserError, unknown
from bapo.experiments.places import options

#: the groups whose choices may carry variants (``method=bapo+rollouts``), in the order in which these are laid
VARIED = ("model", "method")


@dataclass(frozen=True)
class Cell:
    """One training run."""

    task: str
    model: str
    method: str
    seed: int


def require_name(path: Path, where: str, group: str, value: str) -> None:
    """Raise UserError where ``experiments/`` has no such name, or not one of its variants."""
    if wrong := unknown_name(group, value):
        kind, name = wrong
        raise UserError(f"{path}: " + unknown(where, f"unknown {kind} '{name}'", name, options(kind)))


def unknown_name(group: str, value: str) -> tuple[str, str] | None:
    """Return (group, name) of the first part of ``name+variant`` that does not exist; None where all parts do."""
    name, *variants = value.split("+") if group in VARIED else [value]
    parts = [(group, name), *(("variant", v) for v in variants)]
    return next(((g, n) for g, n in parts if n not in options(g)), None)
