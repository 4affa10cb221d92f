"""Slow imports of test files wait for the first test, so that a process that collects tests does not pay for them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

#: Statements under ``if LATE:`` at the top of a test file are run before the file's first test.
LATE = False

#: what is slow to import and was imported all the same while tests were collected
EARLY: set[str] = set()

_RUN: set[str] = set()


def note_imports() -> None:
    EARLY.update({"torch", "transformers", "scipy", "lm_eval", "datasets", "wandb"} & set(sys.modules))


def run(module: ModuleType) -> None:
    """Run what the file of ``module`` has under ``if LATE:``, once."""
    if module.__name__ in _RUN:
        return
    _RUN.add(module.__name__)
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    late = [s for part in tree.body if isinstance(part, ast.If) and ast.unparse(part.test) == "LATE" for s in part.body]
    exec(compile(ast.Module(late, []), module.__file__, "exec"), vars(module))
