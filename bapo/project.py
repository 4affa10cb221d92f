"""A project: the working directory, if it holds ``bapo.yaml``, and what its files define.

Its ``experiments/`` adds to that of the suite, and configurations name its Python code as ``FILE.py:NAME``, a place.
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

#: the file that makes a folder a project, with its title and defaults of the workflow's settings
MARK = "bapo.yaml"


def folder() -> Path | None:
    """Return the working directory if it is a project, else None."""
    directory = Path.cwd()
    return directory if (directory / MARK).is_file() else None


def title() -> str | None:
    """Return the title of the project in the working directory, or None outside one. Raises UserError."""
    home = folder()
    return None if home is None else content(home).get("title") or home.name


def content(home: Path) -> dict[str, Any]:
    """Return the content of a project's ``bapo.yaml``. Raises UserError for another than a mapping with a title."""
    values: dict[str, Any] = parse_yaml(home / MARK)
    if not isinstance(values.get("title"), str | None):
        raise wrong(home / MARK, "title", values["title"], "must be text; put it in quotes")
    return values


def sources(home: Path) -> list[Path]:
    """Return a project's files of code and configurations."""
    paths = [home / MARK, home / "Snakefile", *home.glob("*.py")]
    paths += [path for name in ("tasks", "methods", "figures", "models") for path in (home / name).rglob("*.py")]
    paths += [path for pattern in ("*.yaml", "*.json") for path in (home / "experiments").rglob(pattern)]
    return sorted({path for path in paths if path.is_file()})


def methods() -> list[str]:
    """Return the names of the methods of the project in the working directory, its files ``methods/NAME.py``."""
    home = folder()
    return [] if home is None else sorted(path.stem for path in (home / "methods").glob("[!_]*.py"))


def load(place: str, where: str) -> object:
    """Return the object that a place ``FILE.py:NAME`` names. Raises UserError naming ``where``, the key with it."""
    path, name = file_and_name(place, where)
    try:
        return getattr(module(path, where), name)
    except AttributeError:
        raise UserError(f"{where}={place}: {path} has no {name}") from None


def is_place(text: str) -> bool:
    """Return whether a text has the form ``FILE.py:NAME``."""
    return re.fullmatch(r"[^:]+\.py:\w+", text) is not None


def file_and_name(place: str, where: str) -> tuple[Path, str]:
    """Split ``FILE.py:NAME``, whose file is relative to the working directory. Raises UserError naming ``where``."""
    file, _, name = place.rpartition(":")
    path = Path.cwd() / file
    if not is_place(place):
        raise UserError(f"{where}={place}: must be FILE.py:NAME, for example tasks/words.py:Words")
    if not path.is_file():
        raise UserError(f"{where}={place}: no file {path}")
    return path, name


def module(file: Path | str, where: str) -> ModuleType:
    """Import a file, once in a process. Its imports may lie beside it or in the project, after installed packages.

    where: the key that names the file, for errors. Raises UserError where the import fails.
    """
    path = Path.cwd() / file
    name = f"bapo_project_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    imported_module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.path += [str(folder) for folder in _search_path(path) if str(folder) not in sys.path]
    sys.modules[name] = imported_module
    try:
        spec.loader.exec_module(imported_module)  # type: ignore[union-attr]
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{where}: {path} cannot be imported ({type(error).__name__}: {error})") from error
    return imported_module


def code_digest_of(place: str) -> str:
    """Return 16 hex digits of a digest of the file of ``FILE.py:NAME`` and the project's modules that it imports.

    The digest is of their syntax trees, which hold docstrings, but neither comments nor layout. Raises UserError for a
    place of another form, a missing file, and one that is not Python.
    """
    path, _ = file_and_name(place, "code")
    texts: dict[Path, str] = {}
    queue = [path]
    while queue:
        file = queue.pop()
        if file not in texts:
            try:
                tree = ast.parse(file.read_text(encoding="utf-8"))
                texts[file] = _dumped(tree)
            except (SyntaxError, ValueError, RecursionError) as error:
                raise UserError(f"{file}: cannot be read as Python ({error})") from None
            queue += _imports(_search_path(path), file, tree)
    imports = [f"{os.path.relpath(file, path.parent)} {texts[file]}" for file in sorted({*texts} - {path})]
    return hashlib.sha256("\n".join([texts[path], *imports]).encode()).hexdigest()[:16]


def _dumped(tree: ast.AST) -> str:
    """Return a syntax tree as text that is the same on every version of Python: without what holds nothing.

    ``ast.dump`` writes empty fields or not, a new version gives old nodes more of them, and 3.12 ends formats with "".
    """
    texts: list[str] = []
    stack: list[object] = [tree]  # not recursive: a long sum is a deep tree
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, list):
            stack += ["]", *(_part(value) for value in reversed(part)), "["]
        elif isinstance(part, ast.AST):
            fields = [(name, value) for name, value in ast.iter_fields(part) if value is not None and value != []]
            if isinstance(part, ast.JoinedStr):
                fields = [("values", [v for v in part.values if getattr(v, "value", None) != ""])]
            stack += [")", *(piece for name, value in reversed(fields) for piece in (_part(value), f" {name}="))]
            stack.append(f"{type(part).__name__}(")
    return "".join(texts)


def _part(value: object) -> object:
    """Return a node or list as it is, and any other value as text."""
    return value if isinstance(value, ast.AST | list) else f" {value!r}"


def _search_path(path: Path) -> list[Path]:
    """Return the folders in which a file's modules are searched: its own and that of the project."""
    return list(dict.fromkeys([path.parent, folder() or path.parent]))


def _imports(folders: list[Path], file: Path, tree: ast.AST) -> list[Path]:
    """Return the modules in ``folders`` that a file's imports may mean, and the packages that contain them.

    ``from X import Y`` may mean X and X.Y, and ``from .X import Y`` starts in the file's folder.
    """
    names: set[str] = set()
    stems: set[Path] = set()  # paths of modules without their suffix
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.ImportFrom) and node.level <= len(file.parents):
            start = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            stems |= {start, *(start / alias.name for alias in node.names)}
    for name in names:
        parts = name.split(".")
        stems |= {folder.joinpath(*parts[:count]) for folder in folders for count in range(1, len(parts) + 1)}
    files = [path for stem in sorted(stems) for path in (stem.with_suffix(".py"), stem / "__init__.py")]
    return [path for path in files if path.is_file() and any(path.is_relative_to(folder) for folder in folders)]
