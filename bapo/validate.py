"""Check what people write: a pydantic model says what a file may hold, and every mistake is told alike.

An error names the file, the field, the value and the cure: ``FILE: FIELD=VALUE: CURE``.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import types
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, TypeAdapter, ValidationError
from yaml import YAMLError

from bapo.errors import UserError, unknown


@dataclasses.dataclass(frozen=True)
class Only:
    """Mark a field that belongs to no other identities than these: bapo/experiments/identity.py."""

    identities: tuple[str, ...]

    def __init__(self, *identities: str) -> None:
        object.__setattr__(self, "identities", identities)


Kind = TypeVar("Kind")
#: a field that belongs to no identity: a name, a place, a way of doing the same work
Unidentified = Annotated[Kind, Only()]


def wrong(file: Path | str | None, field: str, value: object, cure: str) -> UserError:
    """Make the error for one field. file: None where it has no file; value: None where it is not shown."""
    place = field if value is None else f"{field}={value}"
    return UserError(": ".join([*([str(file)] if file else []), *([place] if place else []), cure]))


def plain(node: Any) -> Any:
    """Return a part of a configuration as mappings, lists, numbers and text; what verl's processes hold of it too."""
    if isinstance(node, BaseModel):
        return node.model_dump()
    return OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node


def read(schema: Callable[..., Kind], content: object, file: Path | str | None, field: str = "") -> Kind:
    """Return ``content`` as an object of a pydantic model or a dataclass. field: where in the file it stands.

    Raises UserError for a field that does not exist, is missing, or has another type or a value that is not allowed.
    """
    try:
        # JSON's strictness: text is no number, but a list may become a tuple, and text a path
        return _adapter(schema).validate_json(json.dumps(content, default=str), strict=True)
    except ValidationError as error:
        raise refused(error, schema, file, field) from None


@lru_cache(maxsize=64)
def _adapter(schema: type) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def refused(error: ValidationError, schema: object, file: Path | str | None, field: str = "") -> UserError:
    """Make the error for one value that a pydantic model refused, with the names that exist where it has none."""
    errors = error.errors()
    first = next((each for each in errors if each["type"] in _SURPLUS), errors[0])
    place = ".".join([*([field] if field else []), *map(str, first["loc"])])
    if first["type"] in _SURPLUS:
        *parents, last = first["loc"]
        return wrong(file, "", None, unknown(place, "no such key", str(last), _names(_part(schema, parents))))
    if first["type"] in ("missing", "missing_argument") or first["input"] == "???":
        return wrong(file, place, None, "has no value; add it")
    cure = first["msg"].removeprefix("Value error, ").replace("Input should", "must")
    return wrong(file, place, None if isinstance(first["input"], dict) else str(first["input"]), cure)


#: what pydantic calls a field that a model, or a dataclass, does not have
_SURPLUS = ("extra_forbidden", "unexpected_keyword_argument")


def _names(kind: object) -> list[str]:
    """Return the fields of a pydantic model or a dataclass; none for another type."""
    return list(getattr(kind, "model_fields", getattr(kind, "__dataclass_fields__", ())))


def _part(kind: object, names: Sequence[int | str]) -> object:
    """Return the type that ``names`` lead to below a pydantic model, through its lists and mappings."""
    for name in names:
        fields = getattr(kind, "model_fields", {})
        kind = fields[name].annotation if name in fields else next(iter(get_args(kind)[-1:]), None)
        while get_origin(kind) in (Annotated, Union, types.UnionType):
            kind = get_args(kind)[0]
    return kind


def parse_yaml(path: Path, text: str | None = None, resolve: bool = True) -> Any:
    """Return the content of a YAML file. text: what it holds, where that is read already; resolve: ``${...}``.

    Raises UserError naming the file where it is not valid.
    """
    try:
        return copy.deepcopy(_parsed(path.read_text(encoding="utf-8") if text is None else text, resolve))
    except (YAMLError, OmegaConfBaseException, OSError) as error:
        raise UserError(f"{path}: not valid YAML: {explained(error)}") from None


@lru_cache(maxsize=512)
def _parsed(text: str, resolve: bool) -> object:
    return OmegaConf.to_container(OmegaConf.create(text), resolve=resolve)


def explained(error: Exception) -> str:
    """Say an error of Hydra's, OmegaConf's or YAML's in one line that begins with the key, where it has one."""
    text = " ".join(f"{error} {error.__cause__ or ''}".split())  # Hydra hides the reason in the cause
    key = getattr(error, "full_key", None)
    text = text.split(" Config search path")[0].split(" full_key")[0]
    return f"{key}: {text}" if key else text
