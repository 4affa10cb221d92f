"""Checks files and options by pydantic models, and reports all mistakes in one form.

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
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from yaml import YAMLError

from bapo.errors import UserError, unknown

#: the most aliases of a YAML file, as nested ones multiply its content
ALIASES = 30
#: numbers that YAML reads in base 2, 8, 16 or 60
_MISREAD = re.compile(r"[-+]?(?:0[\d_]+|0[bx][\da-fA-F_]+|\d[\d_]*(?::[0-5]?\d)+(?:\.[\d_]*)?)")


class Only(frozenset[str]):
    """Marks a field that only belongs to these identities: bapo/experiments/identity.py."""


class WhereSet:
    """Marks a field that only belongs to identities if its value is not the default."""


Kind = TypeVar("Kind")
#: a field that belongs to no identity, such as a name, a folder or a way to compute the same numbers
Unidentified = Annotated[Kind, Only()]


#: patterns of the name of a folder, and of a path. Both reach the rules of the workflow, where braces have a meaning
NAME, FOLDER = r"^[\w+=][\w.+=-]{0,79}$", r"^[^{}\pC~-][^{}\pC]*$"
#: the pattern of an override
OVERRIDE = r"^[A-Za-z_][\w.-]*="
Name = Annotated[str, Field(pattern=NAME)]
Folder = Annotated[str, Field(pattern=FOLDER)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def matching(pattern: str, expected: str) -> AfterValidator:
    """Return the mark of a text that matches a pattern. expected: what the error says that it must be."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {expected}")
        return text

    return AfterValidator(check)


def wrong(file: Path | str | None, field: str, value: object, cure: str) -> UserError:
    """Return the error for one field. file: None if it is in no file; value: None if it is not shown."""
    printable = str(value) if str(value).isprintable() else ascii(str(value))
    key = field if value is None or not field else f"{field}={printable}"
    return UserError(": ".join([*([str(file)] if file else []), *([key] if key else []), cure]))


def plain(node: Any) -> Any:
    """Return a part of a configuration, also of verl's, as mappings, lists, numbers and texts."""
    if isinstance(node, BaseModel):
        return node.model_dump()
    return OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node


class Part(BaseModel):
    """A model of a file or of a part of it, which refuses unknown keys, and texts in place of numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, content: object) -> object:
        for key in content if isinstance(content, Mapping) else ():
            if key not in cls.model_fields:
                sentence = unknown(str(key), "no such key", str(key), list(cls.model_fields))
                raise PydanticCustomError("surplus", "{said}", {"said": sentence, "key": key})
        return content


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, as ``object_pairs_hook`` of ``json.loads``. Raises ValueError for a name given twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is given twice; leave one out")
    return content


def read(schema: Callable[..., Kind], content: object, file: Path | str | None, field: str = "") -> Kind:
    """Return ``content`` as an object of a pydantic model or a dataclass. field: where the content is in the file.

    Raises UserError for a field that is unknown or missing, or has a wrong type or a value that is not allowed.
    """
    try:
        # strict validation of JSON refuses texts for numbers, but makes tuples of lists, and paths of texts
        return _adapter(schema).validate_json(json.dumps(content, default=str), strict=True)
    except ValidationError as error:
        raise refused(error, file, field) from None


_adapter = lru_cache(maxsize=64)(TypeAdapter[Any])


#: phrases of pydantic -> those for YAML
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
    """Return the error for one value that pydantic refused, or for an unknown key if there is one."""
    errors = error.errors()
    first = next((entry for entry in errors if entry["type"] in ("surplus", "unexpected_keyword_argument")), errors[0])
    key = ".".join([*([field] if field else []), *map(str, first["loc"])])
    if first["type"] == "surplus":
        return wrong(file, "", None, f"{key}.{first['msg']}" if key else first["msg"])
    if first["type"] in ("missing", "missing_argument") or first["input"] == "???":
        return wrong(file, key, None, "has no value; add it")
    cure = first["msg"].removeprefix("Value error, ")
    for phrase, replacement in _WORDS.items():
        cure = cure.replace(phrase, replacement)
    if first["type"] == "string_type":
        cure = "must be text; put it in quotes, or ./ before the name of a folder"
    return wrong(file, key, None if isinstance(first["input"], dict) else str(first["input"]), cure)


def parse_yaml(path: Path, text: str | None = None, kind: type = dict) -> Any:
    """Return the content of a YAML file, in which ``${...}`` is not resolved.

    text: of the file, if it has been read already; kind: dict or list. Raises UserError naming the file if it is not
    valid, is of another kind, or has too many aliases.
    """
    try:
        content = copy.deepcopy(_parse(path.read_text(encoding="utf-8") if text is None else text))
    except (YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError, AssertionError) as error:
        raise UserError(f"{path}: not valid YAML: {explained(error) or 'one value alone'}") from None
    if not isinstance(content, kind):
        raise UserError(f"{path}: must hold a {'mapping (KEY: VALUE)' if kind is dict else 'list'}")
    return content


def require_plain(text: str, override: str = "") -> str:
    """Return the text, which is YAML. Raises ValueError for a number that YAML misreads: 010 as 8, and 1:30 as 90.

    override: the override that has the text as its value, for the error.
    """
    if not re.search(r"(?<![\w.+-])[-+]?0[\d_bx]|\d:\d", text):  # saves parsing
        return text
    with contextlib.suppress(yaml.YAMLError):  # the text is read later, and then this is reported
        for event in yaml.parse(text):
            if isinstance(event, yaml.ScalarEvent) and event.style is None and _MISREAD.fullmatch(event.value):
                cure = "write a number without leading 0 or colons, or text in quotes"
                raise ValueError(f"{override or event.value}: {cure}")
    return text


@lru_cache(maxsize=512)
def _parse(text: str) -> object:
    if "*" in text and sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)) > ALIASES:
        raise ValueError(f"it has more than {ALIASES} aliases (*NAME); write some of them out")
    return OmegaConf.to_container(OmegaConf.create(require_plain(text)))


def explained(error: Exception) -> str:
    """Return the text of an error of Hydra, OmegaConf or YAML in one line, after the key if it names one."""
    text = " ".join(f"{error} {error.__cause__ or ''}".split())  # Hydra has the reason in the cause
    key = getattr(error, "full_key", None)
    text = text.split(" Config search path")[0].split(" full_key")[0]
    return f"{key}: {text}" if key else text
