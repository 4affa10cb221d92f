"""Check what people write: a dataclass says what a file or a configuration may hold, and every mistake is told alike.

An error names the file, the field, the value and the cure: ``FILE: FIELD=VALUE: CURE``. A field's type and its rules
stand in the dataclass and nowhere else.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING as REQUIRED
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
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


@dataclasses.dataclass(frozen=True)
class Rule:
    """A condition on a field's value, and the cure to name where it does not hold."""

    holds: Callable[[Any], bool]
    cure: str


def one_of(*allowed: Any) -> Rule:
    return Rule(lambda value: value in allowed, f"must be one of {', '.join(map(str, allowed))}")


def at_least(low: float, note: str = "") -> Rule:
    """note: what to add to the cure."""
    return Rule(lambda value: value >= low, f"must be {'0 or more' if low == 0 else f'at least {low}'}{note}")


def within(low: float, high: float, interval: str, note: str = "") -> Rule:
    """Allow an interval, written down as for example "(0, 1]": its brackets say which ends belong to it."""
    first, last = interval[0] == "[", interval[-1] == "]"
    cure = f"must be in {interval}{note}"
    return Rule(lambda v: low < v < high or (first and v == low) or (last and v == high), cure)


ONE = at_least(1)
POSITIVE = Rule(lambda value: value > 0, "must be positive")
OFF_OR_POSITIVE = Rule(lambda value: value >= 0, "must be 0 (off) or positive")
NOT_EMPTY = Rule(bool, "must name at least one")
DISTINCT = Rule(lambda value: len(set(value)) == len(value), "must name each once")


def setting(default: Any = REQUIRED, *rules: Rule) -> Any:
    """Make a dataclass field with rules. A rule is not asked about None, which only an optional field can hold."""
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata={"rules": rules})
    return dataclasses.field(default=default, metadata={"rules": rules})


def wrong(file: Path | str | None, field: str, value: Any, cure: str) -> UserError:
    """Make the error for one value. file: None for a configuration. value: None is not shown."""
    place = field if value is None else f"{field}={value}"
    return UserError(": ".join([*([str(file)] if file else []), *([place] if place else []), cure]))


def plain(node: Any) -> Any:
    """Return a part of a configuration as mappings, lists, numbers and text; what verl's processes hold of it too."""
    if isinstance(node, BaseModel):
        return node.model_dump()
    return OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node


def refused(error: ValidationError, schema: type[BaseModel], file: Path | str | None, at: str = "") -> UserError:
    """Make the error for one value that a pydantic model refused, with the names that exist where it has none.

    at: where in the file the model stands, "" for all of it.
    """
    errors = error.errors()
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    *parents, last = first["loc"] or ("",)
    field, cure = ".".join([*([at] if at else []), *map(str, first["loc"])]), first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        names = list(getattr(_part(schema, parents), "model_fields", ()))
        return wrong(file, "", None, unknown(field, "no such key", str(last), names))
    if first["type"] == "missing" or first["input"] == "???":
        return wrong(file, field, None, "has no value; add it")
    return wrong(file, field, str(first["input"]), cure.replace("Input should", "must"))


def _part(kind: Any, names: Sequence[int | str]) -> Any:
    """Return the type that ``names`` lead to below a pydantic model, through its lists and mappings."""
    for name in names:
        fields = getattr(kind, "model_fields", {})
        kind = fields[name].annotation if name in fields else next(iter(get_args(kind)[-1:]), None)
        while get_origin(kind) in (Annotated, Union, types.UnionType):
            kind = get_args(kind)[0]
    return kind


def broken_rules(schema: type, get: Callable[[str], Any], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield (field, value, cure) for every rule of ``schema``, dataclasses below it included, that does not hold.

    get: the value of a dotted field.
    """
    for field in dataclasses.fields(schema):
        below = _dataclass_of(hints_of(schema)[field.name])
        name = f"{prefix}{field.name}"
        if below is not None:
            yield from broken_rules(below, get, f"{name}.")
        elif rules := rules_of(schema, field.name):
            value = get(name)
            yield from ((name, value, rule.cure) for rule in rules if value is not None and not rule.holds(value))


def read(schema: type, content: Any, file: Path | str | None, field: str = "") -> Any:
    """``content`` as an object of the dataclass ``schema``.

    field: where in the file it stands, "" for all of it. Raises UserError for a field that does not exist or is
    missing, for a value of another type, and for a rule that does not hold.
    """
    if issubclass(schema, BaseModel):
        try:
            return schema.model_validate(content)
        except ValidationError as error:
            raise refused(error, schema, file, field) from None
    names = [f.name for f in dataclasses.fields(schema)]
    if not isinstance(content, Mapping):
        raise wrong(file, field, None, f"must be a mapping with {', '.join(names)}")
    prefix = f"{field}." if field else ""
    values = {}
    for key, value in content.items():
        if key not in names:
            raise wrong(file, "", None, unknown(f"{prefix}{key}", "no such field", str(key), names))
        values[key] = _typed(hints_of(schema)[key], value, file, f"{prefix}{key}")
    for entry in dataclasses.fields(schema):
        required = entry.default is REQUIRED and entry.default_factory is REQUIRED
        if required and entry.name not in values:
            raise wrong(file, f"{prefix}{entry.name}", None, "has no value; add it")
        for rule in rules_of(schema, entry.name):
            value = values.get(entry.name)
            if value is not None and not rule.holds(value):
                raise wrong(file, f"{prefix}{entry.name}", value, rule.cure)
    return schema(**values)


def rules_of(schema: type, name: str) -> tuple[Rule, ...]:
    """Return the rules of a field; a subclass that only changes the default keeps those of the class above it."""
    fields = (vars(cls).get("__dataclass_fields__", {}).get(name) for cls in schema.__mro__)
    return next((f.metadata["rules"] for f in fields if f is not None and "rules" in f.metadata), ())


def parse_yaml(path: Path, text: str | None = None, resolve: bool = True) -> Any:
    """Return the content of a YAML file. text: what it holds, where that is read already; resolve: ``${...}``.

    Raises UserError naming the file where it is not valid.
    """
    try:
        return copy.deepcopy(_parsed(path.read_text(encoding="utf-8") if text is None else text, resolve))
    except (YAMLError, OmegaConfBaseException, OSError) as error:
        raise UserError(f"{path}: not valid YAML: {explained(error)}") from None


@lru_cache(maxsize=512)
def _parsed(text: str, resolve: bool) -> Any:
    return OmegaConf.to_container(OmegaConf.create(text), resolve=resolve)


def explained(error: Exception) -> str:
    """Say an error of Hydra's, OmegaConf's or YAML's in one line that begins with the key, where it has one."""
    text = " ".join(f"{error} {error.__cause__ or ''}".split())  # Hydra hides the reason in the cause
    key = getattr(error, "full_key", None)
    text = text.split(" Config search path")[0].split(" full_key")[0]
    return f"{key}: {text}" if key else text


@lru_cache(maxsize=64)
def hints_of(schema: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields."""
    return get_type_hints(schema)


def _dataclass_of(kind: Any) -> type | None:
    """Return the dataclass that a field holds, also an optional one; None for other types."""
    options = [k for k in (get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,))]
    return next((k for k in options if isinstance(k, type) and dataclasses.is_dataclass(k)), None)


def _typed(kind: Any, value: Any, file: Path | str | None, field: str) -> Any:
    """``value`` as ``kind``: a dataclass, a list, tuple or mapping of kinds, several kinds, or a plain type."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        kinds = [k for k in inner if k is not type(None)]
        matching = [k for k in kinds if k in (bool, int, float, str) and type(value) is k]
        matching += [k for k in kinds if isinstance(value, _structure(k))]
        if float in kinds and type(value) is int:
            matching.append(float)
        if len(kinds) > 1 and not matching:
            raise wrong(file, field, value, f"must be {' or '.join(map(_kind_in_words, kinds))}")
        return _typed((matching or kinds)[0], value, file, field)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return read(kind, value, file, field)
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            raise wrong(file, field, value, "must be a list")
        return origin(_typed(inner[0], v, file, f"{field}[{i}]") for i, v in enumerate(value))
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        if not isinstance(value, Mapping):
            raise wrong(file, field, value, "must be a mapping")
        return {k: _typed(inner[1], v, file, f"{field}.{k}") for k, v in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise wrong(file, field, value, f"must be {_kind_in_words(kind)}")
    return value


def _structure(kind: Any) -> tuple[type, ...]:
    """Return the types of what is read as ``kind``, where that is a list, a mapping or a dataclass; () else."""
    origin = get_origin(kind)
    if origin in (list, tuple):
        return (list, tuple)
    is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
    return (Mapping,) if is_mapping or dataclasses.is_dataclass(kind) else ()


def _kind_in_words(kind: Any) -> str:
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
    structures = {(list, tuple): "a list", (Mapping,): "a mapping"}
    return names.get(kind) or structures.get(_structure(kind)) or kind.__name__
