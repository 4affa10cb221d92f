"""The methods, a file each: ``bapo/methods/NAME.py`` defines the class behind the name that a user types.

A project's ``methods/NAME.py`` and a package's entry point ``bapo.methods`` define further ones. What several methods
share is in ``parts/``. Nothing here knows an engine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from bapo import project
from bapo.errors import UserError, unknown
from bapo.methods.base import Batch, Method, MethodConfig, Sampler
from bapo.validate import refused

if TYPE_CHECKING:
    from bapo.experiments.schema import Config

__all__ = ["Batch", "Method", "MethodConfig", "Sampler", "build", "config_of", "get", "names"]

#: two settings of one algorithm, whose name belongs to the identity of their runs
_ALGORITHMS = {"grpo_v5": "grpo_delayed", "grpo_v40": "grpo_delayed"}


@cache
def _built_in() -> frozenset[str]:
    return frozenset(module.name for module in iter_modules(__path__) if not module.ispkg) - {"base"}


@lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Return the entry points of the packages on ``path``, which is sys.path; reading all of them takes a while."""
    return {entry.name: entry for entry in entry_points(group="bapo.methods")}


def names() -> list[str]:
    """List the methods of the suite and of installed packages."""
    return sorted({*_built_in(), *_installed(tuple(sys.path))})


def table(linked: bool = False, own: Sequence[str] = ()) -> str:
    """Return the methods as a Markdown table.

    linked: with links to papers, as docs/methods.md shows it; own: the project's methods, which are listed, too.
    """
    lines = ["| name | type | what it does | cost | source |", "|---|---|---|---|---|"]
    for name in [*names(), *own]:
        cls = _of_project(name) if name in own else get(name)
        source = (
            re.sub(r"\b\d{4}\.\d{5}\b", r"[\g<0>](https://arxiv.org/abs/\g<0>)", cls.source) if linked else cls.source
        )
        lines.append(f"| `{name}` | {cls.kind} | {cls.summary} | {cls.cost} | {source} |")
    return "\n".join(lines)


def show() -> None:
    """Print the methods of the suite, of installed packages and of the project: ``bapo methods``."""
    print(table(own=project.methods()))


def _class_in(module: ModuleType) -> type[Method]:
    """Return the one method that a file defines. Raises UserError."""
    types = [value for value in vars(module).values() if isinstance(value, type)]
    classes = [cls for cls in types if cls.__module__ == module.__name__ and issubclass(cls, Method)]
    if len(classes) != 1:
        raise UserError(f"{module.__file__}: must define one class derived from Method, and has {len(classes)}")
    return classes[0]


def _of_project(name: str) -> type[Method]:
    """Return the class of the project's ``methods/NAME.py``. Raises UserError."""
    file = f"methods/{name}.py"
    return _sound(_class_in(project.module(file, f"method={name}")), file)


def get(algorithm: str) -> type[Method]:
    """Return the class of an algorithm. Raises UserError listing the names that exist."""
    name = next((name for name, value in _ALGORITHMS.items() if value == algorithm), algorithm)
    if name in _built_in():
        return _class_in(import_module(f"{__name__}.{name}"))
    if entry := _installed(tuple(sys.path)).get(name):
        return _sound(entry.load(), f"method={name}")
    if not project.is_place(algorithm):
        raise UserError(f"method.algorithm={algorithm}: unknown algorithm; allowed: {', '.join(names())}")
    cls = project.load(algorithm, "method.algorithm")
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise UserError(f"method.algorithm={algorithm}: must be a class derived from bapo.methods.base.Method")
    return _sound(cls, algorithm.partition(":")[0])


def _sound(cls: type[Method], file: str) -> type[Method]:
    """Return a class that is not of the suite.

    Raises UserError for a Config that is none or that no method names, and for a misspelt hook.
    """
    if not (isinstance(cls.Config, type) and issubclass(cls.Config, MethodConfig)):
        raise UserError(f"{file}: {cls.__name__}.Config={cls.Config!r}: must be a class derived from MethodConfig")
    try:
        cls.Config()
    except ValidationError as error:
        raise refused(error, file, f"{cls.__name__}.Config") from None
    types = [value for value in vars(sys.modules[cls.__module__]).values() if isinstance(value, type)]
    read = {config for method in types if issubclass(method, Method) for config in method.Config.__mro__}
    for config in types:
        if issubclass(config, MethodConfig) and config.__module__ == cls.__module__ and config not in read:
            raise UserError(f"{file}: no method reads {config.__name__}; write Config = {config.__name__} in its class")
    hooks = [name for name in dir(Method) if not name.startswith("_")]
    attributes = {name for each in cls.__mro__ if not each.__module__.startswith("bapo.") for name in vars(each)}
    for name in sorted(attributes.difference(dir(Method))):
        # functions have more names that make sense beside a hook's, such as `store` beside `restore`
        cutoff = 0.85 if callable(getattr(cls, name)) else 0.75
        if not name.startswith("_") and get_close_matches(name, hooks, 1, cutoff):
            raise UserError(unknown(f"{file}: {cls.__name__}.{name}", "no such hook", name, hooks))
    return cls


def node_of(name: str) -> dict[str, Any]:
    """Return what a configuration says of a method without a file in ``experiments/method/``. Raises UserError."""
    if name in project.methods():
        cls = _of_project(name)
        algorithm = f"methods/{name}.py:{cls.__name__}"
    else:
        cls, algorithm = get(name), _ALGORITHMS.get(name, name)
    defaults = get(algorithm).Config()
    values = {key: value for key, value in cls.Config() if value != getattr(defaults, key)}
    return {"algorithm": algorithm, "name": name, "title": cls.title or name} | values


def defaults(algorithm: str) -> dict[str, Any]:
    """Return the options of an algorithm where a configuration says nothing else. Raises UserError as get does."""
    cls = get(algorithm)
    names_and_kind = {"algorithm": algorithm, "name": algorithm, "title": cls.title, "kind": cls.kind}
    return cls.Config().model_dump() | names_and_kind


def revision(algorithm: str) -> list[object]:
    """Return the revision of an algorithm's class and, of a project's file, the code's digest. Raises UserError."""
    cls = get(algorithm)
    return [cls.revision, *([project.code_digest_of(algorithm)] if project.is_place(algorithm) else [])]


def config_of(content: Mapping[str, Any] | MethodConfig) -> MethodConfig:
    """Read a ``method`` node: the options of its algorithm, checked, with defaults where it names none.

    Raises UserError naming the key, the value and the cure.
    """
    if isinstance(content, MethodConfig):
        return content
    if not content.get("algorithm"):
        raise UserError("method.algorithm has no value: name one of " + ", ".join(names()))
    try:
        return get(content["algorithm"]).Config(**{**defaults(content["algorithm"]), **content})
    except ValidationError as error:
        raise UserError(f"method.{refused(error, None)}") from None


def build(node: Mapping[str, Any] | MethodConfig, batch_size: int, seed: int) -> Method:
    """Build a run's method for ``batch_size`` prompts per step. Raises UserError for a wrong ``method`` node."""
    config = config_of(node)
    return get(config.algorithm)(config, batch_size=batch_size, seed=seed)


def of_run(config: Config) -> Method:
    """Build the method of a run from its composed configuration. Raises UserError as :func:`build` does."""
    return build(config.method, batch_size=config.train.batch_size, seed=config.seed)
