"""What the readers of studies and sweeps share: a mapping into a dataclass, and names that ``experiments/`` has."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bapo.errors import UserError, unknown
from bapo.experiments import compose as configuration
from bapo.experiments.places import options


def field_names(schema: type) -> list[str]:
    return [f.name for f in dataclasses.fields(schema)]


def checked(schema: type, content: Any, path: Path, where: str = "") -> Any:
    """``content`` as an object of the dataclass ``schema``.

    where: its place in the file with a dot behind it, "" for the whole file. Raises UserError naming file and field.
    """
    if not isinstance(content, Mapping):
        raise UserError(
            f"{path}: {where.rstrip('.') or 'the file'} must be a mapping with {', '.join(field_names(schema))}"
        )
    for key in content:
        if key not in field_names(schema):
            raise UserError(f"{path}: " + unknown(f"{where}{key}", "no such field", str(key), field_names(schema)))
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), content)
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise UserError(f"{path}: {where}{missing[0]} has no value; add it")
        return OmegaConf.to_object(merged)
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        key = getattr(error, "full_key", "") or ""
        raise UserError(f"{path}: {where}{key}: {str(error).splitlines()[0]}") from None


def require_name(path: Path, where: str, group: str, value: str) -> None:
    """Raises UserError where ``experiments/`` has no such name, or not one of its variants."""
    wrong = unknown_name(group, value)
    if wrong:
        group, value = wrong
        allowed = options(group)
        raise UserError(f"{path}: " + unknown(where, f"unknown {group} '{value}'", value, allowed))


def unknown_name(group: str, value: str) -> tuple[str, str] | None:
    """(group, name) of what does not exist in ``name+variant``; None where all of it does."""
    name, *variants = value.split("+") if group in configuration.VARIED else [value]
    parts = [(group, name), *(("variant", v) for v in variants)]
    return next(((g, n) for g, n in parts if n not in options(g)), None)
