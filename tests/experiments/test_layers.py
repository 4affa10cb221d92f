"""The layers of a method over a task and a model, and what their files must not do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from bapo import methods
from bapo.errors import UserError
from bapo.experiments import layers, places
from bapo.experiments.compose import compose_config, forget
from bapo.experiments.places import options


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "experiments"
    shutil.copytree(places.EXPERIMENTS, folder)
    monkeypatch.setattr(places, "EXPERIMENTS", folder)
    forget()
    return folder


def add(tree: Path, line: str) -> None:
    """Add a variant to a tree's."""
    path = tree / "variants.yaml"
    path.write_text(f"{path.read_text(encoding='utf-8')}{line}\n", encoding="utf-8")


def test_the_class_is_the_setting_and_the_file_says_the_difference() -> None:
    """A method's file repeats no default of its class, and what it leaves out is the class's."""
    for name in options("method"):
        content = OmegaConf.to_container(OmegaConf.load(places.EXPERIMENTS / "method" / f"{name}.yaml"))
        if "defaults" in content:
            continue
        defaults = OmegaConf.to_container(methods.defaults(content["algorithm"]))
        repeated = [k for k, v in content.items() if k not in ("algorithm", "name", "title") and v == defaults[k]]
        assert repeated == [], name
        node = compose_config(["task=geometry", f"method={name}"]).method  # no adjustments
        assert {k: v for k, v in node.model_dump().items() if k not in content} == {
            k: v for k, v in defaults.items() if k not in content
        }


def test_the_order_of_the_layers(tree: Path) -> None:
    """Class, file, adjustment, variant, override: each wins over those before it."""
    (tree / "method" / "mine.yaml").write_text("defaults: [bapo, _self_]\nname: mine\nv: 6\nm: 6\nhigh_steps: 6\n")
    (tree / "adjustment" / "countdown_mine.yaml").write_text("# @package _global_\nmethod: {m: 7, high_steps: 7}\n")
    add(tree, "nine: {title: nine, method: {high_capacity: 9, c1: 0.3}}")
    method = compose_config(["method=mine+nine", "method.c1=0.4"]).method
    assert (method.v, method.m, method.high_steps, method.high_capacity, method.c1) == (6, 7, 7, 9, 0.4)
    assert method.bad_capacity is None and method.name == "mine+nine" and method.title == "+BAPO, nine"


def test_a_layer_may_use_the_settings_values(tree: Path) -> None:
    add(tree, 'shared: {title: shared, method: {bad_capacity: "${share:2,${train.batch_size}}"}}')
    assert compose_config(["method=bapo+shared", "train.batch_size=16"]).method.bad_capacity == 32


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("method/bapo.yaml", "# @package _global_\nmethod: {algorithm: bapo}\n", "bapo.yaml: has a package"),
        ("method/bapo.yaml", "name: bapo\n", "bapo.yaml: algorithm has no value: name a class"),
        ("method/bapo.yaml", "algorithm: [\n", "bapo.yaml: not valid YAML"),
        ("method/bapo.yaml", "algorithm: bapo\ndefaults: [gripo]\n", r"unknown method 'gripo' \(did you mean 'grpo'"),
        ("method/bapo.yaml", "algorithm: bapo\ndefaults: [{'a@b': c}]\n", "bapo.yaml: defaults: .*: name a method"),
        ("method/bapo.yaml", "algorithm: bapo\nvv: 3\n", r"method.vv: bapo has no such parameter.*'v'"),
        ("variants.yaml", "rollouts: {train: {steps: 1}}", "variants.yaml: rollouts: needs a title"),
        ("variants.yaml", "rollouts: {title: x, trian: {steps: 1}}", "trian: no such key"),
        ("variants.yaml", "rollouts: {title: x, train: {steps: many}}", "train.steps=many: "),
    ],
)
def test_what_is_wrong_in_a_layer_is_said_with_its_file(tree: Path, file: str, text: str, message: str) -> None:
    (tree / file).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        compose_config(["method=bapo+rollouts"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.extra=1"], r"train.extra: no such key"),
        (["trian.extra=1"], r"trian: no such key \(did you mean 'train'"),
        (["~train.steps"], "~train.steps: write KEY=VALUE"),
        (["data.generator.more=1"], r"data.generator.more: no such key"),
    ],
)
def test_keys_that_the_schema_does_not_have_cannot_be_added(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose_config(overrides)


def test_a_mapping_takes_new_keys() -> None:
    assert compose_config(["verl.gpus_per_node=2"]).verl.gpus_per_node == 2


@pytest.mark.parametrize("scale", ["pocket", "laptop", "smoke", "single_gpu"])
def test_verls_keys_need_no_plus_sign(scale: str) -> None:
    place = [f"scale={scale}", "task=mathematics"]
    config = compose_config([*place, "verl.rollout=vllm", "verl.gpus_per_node=2", "verl.overrides.trainer.nnodes=1"])
    assert config.verl.rollout == "vllm" and config.verl.gpus_per_node == 2
    assert config.verl.overrides == {"trainer": {"nnodes": 1}}


def test_an_unknown_key_of_verl_is_named() -> None:
    with pytest.raises(UserError, match=r"verl.rolout: no such key 'rolout' \(did you mean 'rollout'"):
        compose_config(["verl.rolout=vllm"])


def test_a_choice_is_read_from_the_tree_that_is_named(tree: Path) -> None:
    assert layers.keys_of("rollouts") == {"train.budget.unit", "train.budget.like"}
    (tree / "variants.yaml").write_text("rollouts: {title: none}\n")
    assert layers.keys_of("rollouts") == {""}
