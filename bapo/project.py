"""The user's own folder: a project is the working directory where it holds ``bapo.yaml``, and what its files define.

Its ``experiments/`` is laid beside the suite's, and configurations name its Python code as ``FILE.py:NAME``.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from bapo.errors import UserError
from bapo.validate import parse_yaml, wrong

#: Marks the folder of a project; what it holds beside ``title`` are defaults of the workflow's settings.
MARK = "bapo.yaml"


def folder() -> Path | None:
    """Return the working directory where it is a project."""
    here = Path.cwd()
    return here if (here / MARK).is_file() else None


def title() -> str | None:
    """Return the title of the project in the working directory; None outside one. Raises UserError."""
    home = folder()
    return None if home is None else content(home).get("title") or home.name


def content(home: Path) -> dict[str, Any]:
    """Return what a project's ``bapo.yaml`` says. Raises UserError where it is no mapping, or its title no text."""
    given: dict[str, Any] = parse_yaml(home / MARK)
    if not isinstance(given.get("title"), str | None):
        raise wrong(home / MARK, "title", given["title"], "must be text; put it in quotes")
    return given


def sources(home: Path) -> list[Path]:
    """Return what a project's runs are made from beside the suite: its code and configurations."""
    found = [home / MARK, home / "Snakefile", *home.glob("*.py")]
    found += [path for part in ("tasks", "methods", "figures", "models") for path in (home / part).rglob("*.py")]
    found += [path for kind in ("*.yaml", "*.json") for path in (home / "experiments").rglob(kind)]
    return sorted({path for path in found if path.is_file()})


def methods() -> list[str]:
    """List the methods of the project in the working directory: its files ``methods/NAME.py``."""
    home = folder()
    return [] if home is None else sorted(path.stem for path in (home / "methods").glob("[!_]*.py"))


def load(place: str, where: str) -> object:
    """Return what ``FILE.py:NAME`` names; the file is relative to the working directory. Raises UserError."""
    path, name = file_and_name(place, where)
    try:
        return getattr(module(path, where), name)
    except AttributeError:
        raise UserError(f"{where}={place}: {path} has no {name}") from None


def is_place(text: str) -> bool:
    """Return whether a text is ``FILE.py:NAME``."""
    return re.fullmatch(r"[^:]+\.py:\w+", text) is not None


def file_and_name(place: str, where: str) -> tuple[Path, str]:
    """Split ``FILE.py:NAME``; the file is relative to the working directory. Raises UserError naming ``where``."""
    file, _, name = place.rpartition(":")
    path = Path.cwd() / file
    if not is_place(place):
        raise UserError(f"{where}={place}: must be FILE.py:NAME, for example tasks/words.py:Words")
    if not path.is_file():
        raise UserError(f"{where}={place}: no file {path}")
    return path, name


def module(file: Path | str, where: str) -> ModuleType:
    """Import a file once. What it imports may lie beside it or in the project, after everything that is installed.

    where: what names the file, for errors. Raises UserError where the import fails.
    """
    path = Path.cwd() / file
    name = f"bapo_project_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.path += [str(place) for place in _searched(path) if str(place) not in sys.path]
    sys.modules[name] = loaded
    try:
        spec.loader.exec_module(loaded)  # type: ignore[union-attr]
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{where}: {path} cannot be imported ({type(error).__name__}: {error})") from error
    return loaded


def code_digest_of(place: str) -> str:
    """Return 16 hex digits of what the file of ``FILE.py:NAME`` computes, with the user's modules that it imports.

    Their syntax trees count, with docstrings, and not comments and layout. Raises UserError for a place of another
    form, a file that is missing, and one that is no Python.
    """
    path, _ = file_and_name(place, "code")
    trees: dict[Path, ast.Module] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file not in trees:
            try:
                trees[file] = ast.parse(file.read_text(encoding="utf-8"))
            except (SyntaxError, ValueError, RecursionError) as error:
                raise UserError(f"{file}: cannot be read as Python ({error})") from None
            waiting += _imported(_searched(path), file, trees[file])
    others = [f"{os.path.relpath(file, path.parent)} {ast.dump(trees[file])}" for file in sorted({*trees} - {path})]
    return hashlib.sha256("\n".join([ast.dump(trees[path]), *others]).encode()).hexdigest()[:16]


def _searched(path: Path) -> list[Path]:
    """Return the folders of a file's own modules: the one that it lies in, and the project's."""
    return list(dict.fromkeys([path.parent, folder() or path.parent]))


def _imported(folders: list[Path], file: Path, tree: ast.AST) -> list[Path]:
    """List the modules in ``folders`` that a file's imports may mean, with the packages that they lie in.

    Of ``from X import Y`` both X and X.Y may be meant; ``from .X import Y`` begins in the file's folder.
    """
    names: set[str] = set()
    places: set[Path] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.ImportFrom) and node.level <= len(file.parents):
            start = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            places |= {start, *(start / alias.name for alias in node.names)}
    for name in names:
        parts = name.split(".")
        places |= {folder.joinpath(*parts[:count]) for folder in folders for count in range(1, len(parts) + 1)}
    files = [path for place in sorted(places) for path in (place.with_suffix(".py"), place / "__init__.py")]
    return [path for path in files if path.is_file() and any(path.is_relative_to(folder) for folder in folders)]
