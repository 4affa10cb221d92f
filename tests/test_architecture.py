"""Which folder of the code may import which, what collecting tests imports, and how clean the types are."""

from __future__ import annotations

import ast
import importlib.util
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from mypy import api
from support import late
from support.late import LATE
from support.paths import ROOT

#: what every folder may import
GROUND = {"bapo", "bapo.errors", "bapo.processes", "bapo.project", "bapo.seeds", "bapo.validate"}
READ_A_RUN = {"bapo.store", "bapo.experiments.order", "bapo.experiments.places", "bapo.evaluation.scores"}
TRAIN = {"bapo.algorithm", "bapo.methods", "bapo.experiments", "bapo.store", "bapo.tasks", "bapo.gpu"}
TRAIN |= {"bapo.engines.shared", "bapo.graders"}
#: folder -> the folders and modules that it may import beside itself and GROUND; the longest name that fits is taken
ARROWS = {
    "bapo": set(),
    "bapo.__main__": {"bapo"},  # whatever a command needs
    "bapo.init": {"bapo.experiments"},
    "bapo.run": {"bapo.experiments"},
    "bapo.describe": {"bapo.experiments", "bapo.store", "bapo.tasks"},
    "bapo.algorithm": set(),
    "bapo.methods": {"bapo.algorithm"},
    "bapo.graders": set(),
    "bapo.tasks": {"bapo.graders", "bapo.store", "bapo.experiments"},
    "bapo.store": set(),
    "bapo.gpu": set(),
    "bapo.experiments": {"bapo.methods", "bapo.store"},
    "bapo.engines": {"bapo.engines"},  # chooses one of them
    "bapo.engines.shared": TRAIN - {"bapo.engines.shared"},
    "bapo.engines.fast": {"bapo.engines.shared"},
    "bapo.engines.torch": TRAIN,
    "bapo.engines.verl": TRAIN,
    # and the variables that vLLM has in training
    "bapo.evaluation": TRAIN - {"bapo.methods"} | {"bapo.engines.verl.verl_config"},
    "bapo.sweeps": {"bapo.methods", "bapo.experiments", "bapo.store", "bapo.engines"},
    "bapo.warm": {"bapo.engines.shared", "bapo.tasks"},  # and by name what jobs need
    "bapo.plan": {"bapo.methods", "bapo.experiments", "bapo.store", "bapo.sweeps"}
    | {"bapo.engines.verl.memory", "bapo.run"},
    "bapo.gpucheck": {"bapo.methods", "bapo.gpu", "bapo.experiments", "bapo.store", "bapo.engines"},
    "analysis": READ_A_RUN,
    "analysis.__main__": READ_A_RUN | {"analysis", "bapo.commands"},
    "analysis.audit": READ_A_RUN | {"bapo.algorithm"},
    "analysis.exchange": READ_A_RUN | {"bapo.experiments.identity", "bapo.experiments.studies"},
    "analysis.products": READ_A_RUN | {"bapo.experiments.studies"},  # which tables a study file names
    "analysis.beyond": READ_A_RUN | {"bapo.algorithm"},
    # the angles that a problem's name holds
    "analysis.beyond.specifications": READ_A_RUN | {"bapo.tasks.geometry.generator"},
    "analysis.figures.batch": READ_A_RUN | {"bapo.algorithm"},  # the names of origins
}
#: packages that only engines, evaluation and tasks may load
HEAVY = {"torch", "transformers", "verl", "ray", "vllm", "lm_eval"}


class Import(NamedTuple):
    """One import. typing: under TYPE_CHECKING, so never executed."""

    importer: str
    imported: str
    typing: bool


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    _module(path): path
    for package in ("bapo", "analysis")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "templates" not in path.parts  # a project of the user's, which may import what it likes
}


def _imports(node: ast.AST, typing: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield (dotted name, typing) of everything that a tree imports, also inside functions."""
    for child in ast.iter_child_nodes(node):
        below = typing or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test))
        if isinstance(child, ast.Import):
            yield from ((alias.name, below) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            names = [f"{child.module}.{alias.name}" for alias in child.names]
            yield from ((name if name in MODULES else child.module, below) for name in names)
        yield from _imports(child, below)


if LATE:
    IMPORTS = [
        Import(name, imported, typing)
        for name, path in MODULES.items()
        for imported, typing in _imports(ast.parse(path.read_text(encoding="utf-8")))
    ]
    OURS = [i for i in IMPORTS if i.imported in MODULES and i.imported != i.importer and not i.typing]


def folder_of(module: str) -> str:
    """Return the longest name of ARROWS that a module lies in."""
    return max((r for r in ARROWS if f"{module}.".startswith(f"{r}.")), key=len)


def allowed(entry: Import) -> bool:
    """Return whether an import follows the arrows; the folders of the analysis may import each other."""
    home = folder_of(entry.importer)
    own = "analysis" if home.startswith("analysis") else home
    targets = ARROWS[home] | ({own} - {"bapo"})
    return entry.imported in GROUND or any(f"{entry.imported}.".startswith(f"{t}.") for t in targets)


def test_every_import_follows_the_arrows() -> None:
    against = {(i.importer, i.imported) for i in OURS if not allowed(i)}
    assert against == set(), "imports against the arrows"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count too: they only hide a circle."""
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for entry in OURS:
        graph[entry.importer].add(entry.imported)
    TopologicalSorter(graph).prepare()  # raises CycleError naming the circle


@pytest.mark.parametrize("light", ["analysis", "bapo.store", "bapo.experiments", "bapo.graders", "bapo.plan"])
def test_rooms_without_a_model_import_no_engine(light: str) -> None:
    heavy = [i for i in IMPORTS if f"{i.importer}.".startswith(f"{light}.") and i.imported.partition(".")[0] in HEAVY]
    assert [i for i in heavy if not i.typing] == []


def test_collecting_tests_imports_nothing_slow() -> None:
    if importlib.util.find_spec("verl"):
        pytest.skip("files of the verl engine import verl, and that torch, where verl is installed")
    assert set() == late.EARLY


@pytest.mark.slow
def test_types_are_clean() -> None:
    output, errors, status = api.run(["bapo", "analysis", "examples", "--cache-dir", "/dev/null"])
    assert not errors and status == 0, output


def test_no_two_public_classes_share_a_name() -> None:
    """A reader who sees a class's name knows which one it is."""
    files = [path for folder in ("bapo", "analysis") for path in (ROOT / folder).rglob("*.py")]
    names = Counter(
        node.name
        for path in files
        if "templates" not in path.parts
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
