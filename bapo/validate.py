"""Check what people write: a pydantic model says what a file may hold, and every mistake is told alike.

An error names the file, the field, the value and the cure: ``FILE: FIELD=VALUE: CURE``.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from yaml import YAMLError

from bapo.errors import UserError, unknown

#: the most aliases of a YAML file: nested ones multiply what they stand for
ALIASES = 30
#: what YAML reads in base 2, 8, 16 or 60
_MISREAD = re.compile(r"[-+]?(?:0[\d_]+|0[bx][\da-fA-F_]+|\d[\d_]*(?::[0-5]?\d)+(?:\.[\d_]*)?)")


class Only(frozenset[str]):
    """Mark a field that belongs to no other identities than these: bapo/experiments/identity.py."""


class WhereSet:
    """Mark a field that belongs to identities only where its value is not its default."""


Kind = TypeVar("Kind")
#: a field that belongs to no identity: a name, a place, a way of doing the same work
Unidentified = Annotated[Kind, Only()]


#: of what becomes the name of a folder, and of a path: both reach the rules of the workflow, where braces are patterns
NAME, FOLDER = r"^[\w+=][\w.+=-]{0,79}$", r"^[^{}\pC~-][^{}\pC]*$"
#: of an override
OVERRIDE = r"^[A-Za-z_][\w.-]*="
Name = Annotated[str, Field(pattern=NAME)]
Folder = Annotated[str, Field(pattern=FOLDER)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def wrong(file: Path | str | None, field: str, value: object, cure: str) -> UserError:
    """Make the error for one field. file: None where it has no file; value: None where it is not shown."""
    printable = str(value) if str(value).isprintable() else ascii(str(value))
    place = field if value is None or not field else f"{field}={printable}"
    return UserError(": ".join([*([str(file)] if file else []), *([place] if place else []), cure]))


def plain(node: Any) -> Any:
    """Return a part of a configuration as mappings, lists, numbers and text; what verl's processes hold of it too."""
    if isinstance(node, BaseModel):
        return node.model_dump()
    return OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node


class Part(BaseModel):
    """Holds a part of what people write: other names are refused, and text is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, content: object) -> object:
        for key in content if isinstance(content, Mapping) else ():
            if key not in cls.model_fields:
                sentence = unknown(str(key), "no such key", str(key), list(cls.model_fields))
                raise PydanticCustomError("surplus", "{said}", {"said": sentence, "key": key})
        return content


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, for ``json.loads(..., object_pairs_hook=each_once)``. Raises ValueError for doubles."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is given twice; leave one out")
    return content


def read(schema: Callable[..., Kind], content: object, file: Path | str | None, field: str = "") -> Kind:
    """Return ``content`` as an object of a pydantic model or a dataclass. field: where in the file it stands.

    Raises UserError for a field that does not exist, is missing, or has another type or a value that is not allowed.
    """
    try:
        # JSON is strict in its own way: text is no number, but a list may become a tuple, and text a path
        return _adapter(schema).validate_json(json.dumps(content, default=str), strict=True)
    except ValidationError as error:
        raise refused(error, file, field) from None


@lru_cache(maxsize=64)
def _adapter(schema: type) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


#: what pydantic says of a wrong value, and what people write in YAML
_WORDS = {
    "Input should": "must",
    "List should": "must",
    "Tuple should": "must",
    " after validation": "",
    "Unexpected keyword argument": "no such key",
    "an object": "a mapping",
    "a valid array": "a list",
    "a valid tuple": "a list",
    f"String should match pattern '{NAME}'": "must be the name of one folder: up to 80 letters, digits and . _ + = -",
    f"String should match pattern '{FOLDER}'": "must be a path without braces, control characters, a first dash or ~",
    f"String should match pattern '{OVERRIDE}'": "write KEY=VALUE",
}


def refused(error: ValidationError, file: Path | str | None, field: str = "") -> UserError:
    """Make the error for one value that pydantic refused; a name that does not exist comes before a wrong value."""
    errors = error.errors()
    first = next((each for each in errors if each["type"] in ("surplus", "unexpected_keyword_argument")), errors[0])
    place = ".".join([*([field] if field else []), *map(str, first["loc"])])
    if first["type"] == "surplus":
        return wrong(file, "", None, f"{place}.{first['msg']}" if place else first["msg"])
    if first["type"] in ("missing", "missing_argument") or first["input"] == "???":
        return wrong(file, place, None, "has no value; add it")
    cure = first["msg"].removeprefix("Value error, ")
    for theirs, ours in _WORDS.items():
        cure = cure.replace(theirs, ours)
    if first["type"] == "string_type":
        cure = "must be text; put it in quotes, or ./ before the name of a folder"
    return wrong(file, place, None if isinstance(first["input"], dict) else str(first["input"]), cure)


def parse_yaml(path: Path, text: str | None = None, kind: type = dict) -> Any:
    """Return the content of a YAML file, with ``${...}`` as it is written.

    text: what the file holds, where that is read already; kind: dict or list. Raises UserError naming the file where it
    is not valid, is of another kind, or has too many aliases.
    """
    try:
        content = copy.deepcopy(_parsed(path.read_text(encoding="utf-8") if text is None else text))
    except (YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError, AssertionError) as error:
        raise UserError(f"{path}: not valid YAML: {explained(error) or 'one value alone'}") from None
    if not isinstance(content, kind):
        raise UserError(f"{path}: must hold a {'mapping (KEY: VALUE)' if kind is dict else 'list'}")
    return content


def require_plain(text: str, named: str = "") -> str:
    """Return YAML as it is. Raises ValueError for a number that is another one there: 010 is 8, and 1:30 is 90.

    named: the override that it stands in.
    """
    if not re.search(r"(?<![\w.+-])[-+]?0[\d_bx]|\d:\d", text):  # parsing takes as long as reading
        return text
    with contextlib.suppress(yaml.YAMLError):  # whoever reads the text says what is wrong
        for event in yaml.parse(text):
            if isinstance(event, yaml.ScalarEvent) and event.style is None and _MISREAD.fullmatch(event.value):
                cure = "write a number without a first 0 and colons, or text in quotes"
                raise ValueError(f"{named or event.value}: {cure}")
    return text


@lru_cache(maxsize=512)
def _parsed(text: str) -> object:
    if "*" in text and sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)) > ALIASES:
        raise ValueError(f"it has more than {ALIASES} aliases (*NAME); write some of them out")
    return OmegaConf.to_container(OmegaConf.create(require_plain(text)))


def explained(error: Exception) -> str:
    """Say an error of Hydra's, OmegaConf's or YAML's in one line that begins with the key, where it has one."""
    text = " ".join(f"{error} {error.__cause__ or ''}".split())  # Hydra hides the reason in the cause
    key = getattr(error, "full_key", None)
    text = text.split(" Config search path")[0].split(" full_key")[0]
    return f"{key}: {text}" if key else text
