"""A method laid over its model's configuration against Hydra's composition of the same names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from bapo.experiments import compose as configuration
from bapo.experiments import layers, places
from bapo.experiments.identity import train_identity
from bapo.experiments.places import options
from bapo.experiments.studies import load_study

#: what no command line changes; keys that no file of a method sets; one that variants with a budget set, too
ASKED = ((), ("tracking=none", "paths.results=elsewhere"), ("train.learning_rate=0.5",))
#: methods whose files read another group
HYDRAS = ("bapo_code", "bapo_corrected")


def names(scale: str) -> list[tuple[str, ...]]:
    """Every task, model and method of every study."""
    found = {}
    for study in options("study"):
        if scale in OmegaConf.load(places.EXPERIMENTS / "study" / f"{study}.yaml").scales:
            for cell in load_study(study, scale).cells:
                found[(f"task={cell.task}", f"model={cell.model}", f"method={cell.method}")] = None
    return [(f"scale={scale}", *cell) for cell in found]


@pytest.mark.parametrize("scale", options("scale"))
def test_what_hydra_composes(scale: str) -> None:
    for number, overrides in enumerate(names(scale)):
        asked = (*overrides, *ASKED[number % len(ASKED)])
        found, expected = configuration._laid(asked), configuration.compose_config(asked)
        method, *variants = overrides[-1].removeprefix("method=").split("+")
        if method in HYDRAS or ("train.learning_rate=0.5" in asked and _set_train(variants)):
            assert found is None, asked
            continue
        assert found is not None, asked
        for resolve in (False, True):
            contents = [OmegaConf.to_container(config, resolve=resolve) for config in (found, expected)]
            assert contents[0] == contents[1], asked
        assert train_identity(found) == train_identity(expected)


def _set_train(variants: list[str]) -> bool:
    return any("train" in OmegaConf.load(places.EXPERIMENTS / "variant" / f"{name}.yaml") for name in variants)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "experiments"
    shutil.copytree(places.EXPERIMENTS, folder)
    return folder


def lay(folder: Path, method: str = "bapo", variants: tuple[str, ...] = (), overrides: tuple[str, ...] = ()) -> object:
    start = configuration.compose_config(["scale=smoke", "task=countdown"])
    return layers.lay(start, folder, "countdown", method, variants, overrides)


def test_what_is_left_to_hydra(tree: Path) -> None:
    assert lay(tree) is not None
    for override in ("method.v=3", "fidelity=code", "variant=[hard]", "+train.new=1", "~probe"):
        assert lay(tree, overrides=(override,)) is None, override
    assert lay(tree, variants=("rollouts",), overrides=("train.steps=3",)) is None  # the variant sets train.budget
    assert lay(tree, variants=("rollouts",), overrides=("probe.samples=3",)) is not None
    assert lay(tree, "no_such_method") is None
    assert lay(tree, variants=("no_such_variant",)) is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("method/bapo.yaml", "# @package _global_\nmethod: {algorithm: bapo}\n"),
        ("method/bapo.yaml", "defaults: [_self_, grpo]\nalgorithm: bapo\n"),  # another's settings win over its own
        ("method/bapo.yaml", "algorithm: [\n"),
        ("variant/rollouts.yaml", "# @package train\nbudget: {unit: rollouts, like: grpo}\n"),
        ("variant/rollouts.yaml", "# @package _global_\ntracking: {kind: none}\n"),  # wins over an override
        ("adjustment/countdown_grpo.yaml", "# @package _global_\ntrain: {learning_rate: 1.0}\n"),
        ("fidelity/paper.yaml", "# @package method\nv: 7\n"),
        ("setting/smoke_geometry.yaml", "defaults:\n  - optional /exception: geometry_${method}\n"),
    ],
)
def test_files_that_do_more_than_it_knows(tree: Path, file: str, text: str) -> None:
    (tree / file).write_text(text, encoding="utf-8")
    assert lay(tree, variants=("rollouts",)) is None


def test_another_order_of_the_defaults(tree: Path) -> None:
    path = tree / "config.yaml"
    text = path.read_text(encoding="utf-8")
    assert "  - variant: []" in text
    path.write_text(text.replace("  - variant: []", "  - variant: [updates]"), encoding="utf-8")
    assert lay(tree) is None
