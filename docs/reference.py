"""``docs/reference.md``, made from the code: every command with its arguments, and every key that a user may set.

``python docs/reference.py > docs/reference.md`` writes the page. Comments in the classes say what a key is.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydantic import BaseModel

from analysis import __main__ as analysis_commands
from bapo import __main__ as bapo_commands
from bapo import methods
from bapo.commands import EXAMPLES, GROUPS, OF_ANALYSIS, TEXTS
from bapo.experiments.schema import Config, Node
from bapo.experiments.settings import Settings
from bapo.methods.base import MethodConfig

HEAD = """\
# Commands and keys

Everything that a command takes, and every key of a run. [Running](running.md) shows how to use both.
`python docs/reference.py > docs/reference.md` makes this page from the code.

## Commands
"""
CONFIGURATION = """
## Keys of the configuration

The setting of the scale and task comes before a default. `bapo train method=bapo task=countdown --cfg job` shows what
holds. Jobs and `bapo run` take these keys as `KEY=VALUE`, for example `train.steps=50`.
"""
METHODS = """
## Keys of a method

All methods have the keys of the first table. The second has what each method adds, and the defaults that it changes.
A method that derives from another one, named beside it, has that one's keys too.
"""
TABLE = "| key | values | default | what it is |\n|---|---|---|---|"
#: names of a JSON schema -> words
KINDS = {"integer": "whole number", "array": "list", "object": "mapping", "string": "text", "boolean": "true, false"}
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


# ------------------------------------------------------------------------------------------------ commands


def commands() -> Iterator[str]:
    """Yield each command: what it does, its arguments and examples."""
    ours, theirs = parsers(bapo_commands._parser()), parsers(analysis_commands.parser("bapo"))
    for group, names in GROUPS.items():
        yield f"### {group}\n"
        for name in names:
            parser = (theirs if name in OF_ANALYSIS else ours)[name]
            yield f"**`bapo {name}`** {TEXTS[name]}\n"
            arguments = [action for action in parser._actions if action.dest != "help"]
            if arguments:
                yield "| argument | what it is |\n|---|---|"
                yield from map(argument, arguments)
                yield ""
            if examples := EXAMPLES.get(name):
                yield f"For example {' or '.join(f'`{example}`' for example in examples)}.\n"


def parsers(top: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's commands by their names."""
    return next(action.choices for action in top._actions if isinstance(action, argparse._SubParsersAction))


def argument(action: argparse.Action) -> str:
    """Return an argument's row."""
    value = action.metavar or ("|".join(action.choices) if action.choices else action.dest.upper())
    takes = action.nargs != 0
    call = ", ".join(f"{option} {value}" if takes else option for option in action.option_strings) or str(value)
    return row(f"`{call}`{', needed' if action.required and action.option_strings else ''}", action.help or "")


# ------------------------------------------------------------------------------------------------ keys


@cache
def comments(schema: type[BaseModel]) -> dict[str, str]:
    """Return what the source says of each field: the comment on its lines, and those above that begin with ``#:``."""
    texts = dict[str, str]()
    for parent in reversed(schema.__mro__):
        if issubclass(parent, BaseModel) and parent.__module__.startswith("bapo"):
            own = _comments_of(textwrap.dedent(inspect.getsource(parent)))
            texts |= {name: "; ".join(filter(None, (texts.get(name), text))) for name, text in own.items()}
    return texts


def _comments_of(source: str) -> dict[str, str]:
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    lines = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    texts, end = {}, body.lineno
    for node in body.body:
        first, last = node.lineno, node.end_lineno or node.lineno
        above = [lines[n] for n in range(end + 1, first) if lines.get(n, "").startswith("#:")]
        behind = [lines[n] for n in range(first, last + 1) if n in lines]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            texts[node.target.id] = _plain(" ".join(line.strip("#: ") for line in [*above, *behind]))
        end = last
    return texts


def _plain(comment: str) -> str:
    """Return a comment with YAML's words in the place of Python's."""
    comment = re.sub(r" ?\btype: ignore\S*( # ?)?", "", comment).replace("``", "`").lstrip("# ")
    return re.sub(r"\b(None|True|False)\b", lambda word: {"None": "null"}.get(word[0], word[0].lower()), comment)


def values(schema: Mapping[str, Any]) -> str:
    """Say which values a JSON schema allows."""
    if "anyOf" in schema:
        return " or ".join(values(each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "mapping")
    bounds = [f"{word} {schema[key]:g}" for key, word in BOUNDS.items() if abs(schema.get(key, 1e8)) < 1e8]
    return "`null`" if kind == "null" else " ".join([KINDS.get(kind, kind), *bounds])


def keys(schema: type[BaseModel], path: str = "", inherited: Iterable[type[BaseModel]] = ()) -> Iterator[str]:
    """Yield a row for each key of a part and of all below it, without those that ``inherited`` have with that default.

    The text of a key stands where it is a new one, or where its class says more.
    """
    properties = schema.model_json_schema()["properties"]
    for name, field in schema.model_fields.items():
        kind = field.annotation
        usual = [parent.model_fields[name].default for parent in inherited if name in parent.model_fields]
        if isinstance(kind, type) and issubclass(kind, Node):
            yield from keys(kind, f"{path}{name}.")
        elif (path, name) != ("", "method") and field.default not in usual:
            default = "" if field.is_required() else f"`{json.dumps(field.default)}`"
            yield row(f"`{path}{name}`", values(properties[name]), default, comments(schema).get(name, ""))


def page() -> str:
    """Return the page."""
    lines = [HEAD, *commands(), "## Settings of the workflow\n", TABLE, *keys(Settings)]
    lines += [CONFIGURATION, TABLE, *keys(Config)]
    lines += [METHODS, TABLE, *keys(MethodConfig, "method.")]
    lines += ["\n| method | key | values | default | what it is |\n|---|---|---|---|---|"]
    return "\n".join([*lines, *of_methods(), ""])


def of_methods() -> Iterator[str]:
    """Yield a row for each key of a method that the method which it derives from, or GRPO, does not have so."""
    classes = {methods.get(name): name for name in methods.names()}
    for cls, name in classes.items():
        parents = [parent for parent in cls.__mro__[1:] if parent in classes and classes[parent] != "grpo"]
        known = [parent.Config for parent in parents] or [MethodConfig]
        label = f"`{name}`" + (f" (derives from `{classes[parents[0]]}`)" if parents else "")
        for line in keys(cls.Config, "method.", known):
            yield f"| {label} {line}"
            label = ""


if __name__ == "__main__":
    print(page(), end="")
