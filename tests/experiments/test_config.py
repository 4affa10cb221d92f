"""Composing, checking and identifying a run's configuration. The tree is the product's own experiments/."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from omegaconf import DictConfig
from support.configs import put

from bapo import methods
from bapo.errors import UserError
from bapo.experiments import places
from bapo.experiments.compose import compose_config, run_config
from bapo.experiments.identity import base_identity, data_identity, digest, evaluation_identity, train_identity
from bapo.experiments.places import base_directory, data_directory, options, run_directory


def composed(*overrides: str) -> DictConfig:
    return compose_config(["scale=laptop", "task=countdown", "method=bapo", *overrides])


def identities(config: DictConfig) -> dict[str, str]:
    return {
        "data": data_identity(config),
        "base": base_identity(config),
        "train": train_identity(config),
        "evaluation": evaluation_identity(config),
    }


def changed(config: DictConfig, **values) -> set[str]:
    """Which identities change when the values (a__b stands for a.b) are set."""
    other = config.copy()
    for key, value in values.items():
        put(other, key, value)
    before, after = identities(config), identities(other)
    return {name for name in before if before[name] != after[name]}


def another(value):
    """A different value of the same type."""
    if value is None:
        return 7
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 + 3
    if isinstance(value, str):
        return value + "x"
    return [*value, 0.5]


# ---------------------------------------------------------------- composing


def test_the_default_is_the_laptop_and_complete():
    config = compose_config()
    assert (config.scale.name, config.task.name, config.model.kind, config.engine) == (
        "laptop",
        "countdown",
        "scratch",
        "torch",
    )


@pytest.mark.parametrize("scale", ["laptop", "smoke", "paper"])
def test_every_method_file_composes_at_every_scale(scale):
    names = set()
    for method in options("method"):
        config = run_config(scale, "countdown", "", method, 3)
        built = methods.of_run(config)
        assert type(built) is methods.get(config.method.algorithm) and built.seed == 3
        assert built.batch_size == config.train.batch_size
        names.add(config.method.name)
    assert len(names) == len(options("method"))  # one folder each


def test_method_files_say_what_the_classes_default_to():
    for method in ("grpo", "dapo", "repo", "bapo", "bapo_without_x2", "bapo_without_x3"):
        node = compose_config([f"method={method}"]).method
        default = methods.checked({"algorithm": node.algorithm})
        assert node.model_dump(exclude={"title"}) == {k: v for k, v in default.items() if k != "title"}


def test_paper_scale_has_table_3():
    c = compose_config(["scale=paper", "method=bapo"])
    assert (c.train.batch_size, c.train.mini_batch_size, c.train.group_size, c.train.epochs) == (256, 64, 8, 3)
    assert (c.train.learning_rate, c.method.kl_coef, c.method.entropy_coef) == (1e-6, 0.001, 0.001)
    assert (c.sampling.temperature, c.sampling.top_p, c.sampling.top_k) == (1.0, 1.0, -1)


def test_a_seed_of_one_cell_does_not_leak_into_another():
    first = run_config("laptop", "countdown", "", "grpo", 1)
    second = run_config("laptop", "countdown", "", "grpo", 2)
    assert (first.seed, second.seed) == (1, 2)
    first.train.steps = 999
    assert run_config("laptop", "countdown", "", "grpo", 1).train.steps != 999


def test_composing_does_not_import_torch():
    code = (
        "import sys; from bapo.experiments.compose import compose_config; compose_config(); "
        "print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method=bpo"], r"method=bpo: unknown method 'bpo' \(did you mean 'bapo'\?\); allowed: .*bapo, .*grpo"),
        (["scale=laptpo"], r"unknown scale 'laptpo' \(did you mean 'laptop'\?\); allowed: gpu, laptop, paper, pocket"),
        (["task=cuntdown"], "unknown task 'cuntdown'.*allowed: .*countdown"),
        (["train.stesp=3"], r"train.stesp: no such key \(did you mean 'steps'\?\); allowed: steps, epochs, .*"),
        (["trian.steps=3"], r"trian: no such key \(did you mean 'train'\?\); allowed: seed, engine, .*"),
        (["method=bapo", "method.bad_capacty=3"], r"bapo has no such parameter \(did you mean 'bad_capacity'\?\)"),
        (["method=bapo", "method.w=3"], "method.w: bapo has no such parameter; allowed: .*bad_capacity"),
        (["method=bapo", "method.v=0"], "method.v=0: must be"),
        (["method=bapo", "method.c2_range=[0.3,0.5]"], "c2 must not exceed c3"),
        (["method=bapo", "method.v=often"], "method.v=often: must be"),
        (["train.batch_size=big"], "train.batch_size=big: "),
        (["train.mini_batch_size=64"], "train.mini_batch_size=64: must be at most train.batch_size=32"),
        (["train.group_size=1"], "train.group_size=1: "),
        (["train.epochs=1"], "set exactly one of train.steps and train.epochs"),
        (["train.steps=null"], "set exactly one of train.steps and train.epochs"),
        (["train.steps=0"], "train.steps=0: "),
        (["train.steps=null", "train.epochs=0"], "train.epochs=0: "),
        (["train.learning_rate=0"], "train.learning_rate=0: "),
        (["train.underfilled=drop"], "train.underfilled=drop: "),
        (["engine=jax"], "engine=jax: "),
        (["device=tpu"], "device=tpu: "),
        (["model.kind=borrowed"], "model.kind=borrowed: "),
        (["data.source=web"], "data.source=web: "),
        (["tracking.kind=paper"], "tracking.kind=paper: "),
        (["tracking.mode=on"], "tracking.mode=True: "),
        (["seed=-1"], "seed=-1: "),
        (["sampling.temperature=0"], "sampling.temperature=0: "),
        (["sampling.top_p=1.5"], r"sampling.top_p=1.5: "),
        (["sampling.top_k=0"], r"sampling.top_k=0: "),
        (["sampling.max_response_tokens=0"], "sampling.max_response_tokens=0: "),
        (["evaluation.temperature=0"], "evaluation.temperature=0: "),
        (["evaluation.samples=0"], "evaluation.samples=0: "),
        (["checkpoint.every=0"], "checkpoint.every=0: "),
        (["scale=pocket", "model.path=owner/name"], r"model.revision=\w{64}: the SHA-256 .*; add model.revision=null"),
    ],
)
def test_wrong_input_gives_one_sentence(overrides, message):
    with pytest.raises(UserError, match=message) as error:
        compose_config(overrides)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("setting/laptop_countdown.yaml", "  steps:", "  stesp:", r"laptop_countdown.yaml: train.stesp: no .*steps"),
        ("setting/laptop_countdown.yaml", "  steps: 150", "  steps: many", "laptop_countdown.*train.steps=many: "),
        ("setting/laptop_countdown.yaml", "  steps: 150", "  steps: [100", r"laptop_countdown.yaml.*line \d+"),
        ("method/grpo.yaml", "algorithm: grpo", "algorithm: gpro", "method.algorithm=gpro: unknown algorithm; allowed"),
        ("method/grpo.yaml", "title:", "clip_lo: 0.1\ntitle:", "method.clip_lo: grpo has no .*; allowed: .*clip_low"),
        ("method/grpo.yaml", "train.kl_coef", "train.kl_cof", "method.kl_coef: Interpolation key 'train.kl_cof'"),
        ("config.yaml", "scale: laptop", "scale: laptpo", "Could not find 'scale/laptpo'.*laptop paper pocket"),
    ],
)
def test_a_fault_in_a_file_of_the_tree_gives_one_sentence(file, old, new, message, tmp_path, monkeypatch):
    tree = tmp_path / "experiments"
    shutil.copytree(places.EXPERIMENTS, tree)
    text = (tree / file).read_text()
    assert old in text
    (tree / file).write_text(text.replace(old, new, 1))
    monkeypatch.setattr(places, "EXPERIMENTS", tree)
    with pytest.raises(UserError, match=message) as error:
        compose_config()
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- identity


def test_labels_do_not_change_the_identity():
    config = composed()
    for values in (
        {"method__name": "other"},
        {"method__title": "Other"},
        {"method__kind": "on"},
        {"scale__title": "x"},
        {"scale__note": "x"},
        {"task__title": "x"},
        {"model__title": "x"},
        {"model__name": "x"},
        {"tracking__kind": "none"},
        {"tracking__mode": "online"},
        {"tracking__project": "x"},
        {"paths__results": "/elsewhere"},
        {"paths__data_folder": "/elsewhere"},
        {"device": "cpu"},
        {"threads": 2},
        {"base__threads": 2},
        {"train__micro_batch_size": 4},
        {"train__micro_batch_memory": 0.5},
        {"train__gradient_checkpointing": True},
        {"evaluation__batch_size": 7},
        {"checkpoint__keep_models": False},
        {"model__parameters": 1.0},
    ):
        assert changed(config, **values) == set(), values


@pytest.mark.parametrize("part", ["method", "train", "sampling"])
def test_every_value_of_method_train_and_sampling_changes_the_run(part):
    config = composed()
    silent = {
        "method": {"name", "title", "kind", "algorithm"},
        "train": {
            *("micro_batch_size", "micro_batch_memory", "gradient_checkpointing"),
            *("kl_coef", "entropy_coef", "budget"),  # tests/experiments/test_budgets.py
        },
    }
    for key, value in getattr(config, part).model_dump().items():
        if key not in silent.get(part, set()):
            assert "train" in changed(config, **{f"{part}__{key}": another(value)}), key
    assert "train" in changed(config, method__algorithm="bapo_without_x3")


def test_coefficients_count_where_the_method_takes_them():
    for method, changes in (("bapo", True), ("grpo", True), ("dapo", False)):
        a, b = (compose_config([f"method={method}", f"train.kl_coef={k}"]) for k in (0.001, 0.01))
        assert (train_identity(a) != train_identity(b)) == changes


def test_the_seed_is_the_runs_alone():
    assert changed(composed(), seed=2) == {"train"}


def test_evaluation_changes_only_the_evaluation():
    config = composed()
    for key, value in (("samples", 64), ("temperature", 0.6), ("top_p", 0.9), ("seed", 1), ("benchmarks", ["cd34"])):
        assert changed(config, **{f"evaluation__{key}": value}) == {"evaluation"}, key


@pytest.mark.parametrize(
    "values",
    [
        {"data__seed": 5},
        {"data__prompt": "x"},
        {"data__split_sizes__train": 7},
        {"data__generator__number_max": 9},
        {"task__name": "other"},
        {"data__source": "hub"},
    ],
)
def test_data_changes_everything(values):
    assert changed(composed(), **values) == {"data", "base", "train", "evaluation"}


def test_the_base_model_changes_the_run_but_not_the_data():
    config = composed()
    for values in (
        {"base__iterations": 7},
        {"base__seed": 7},
        {"base__learning_rate": 1.0},
        {"model__architecture__hidden_size": 32},
    ):
        assert changed(config, **values) == {"base", "train"}, values
    # a hub model's checkpoint is known by its name alone, so the evaluation must know its arithmetic
    assert changed(config, model__dtype="bfloat16") == {"base", "train", "evaluation"}


def test_sampling_of_the_run_does_not_train_the_base_anew():
    for values in ({"sampling__temperature": 0.6}, {"sampling__top_p": 0.9}, {"sampling__top_k": 5}):
        assert "base" not in changed(composed(), **values), values


def test_a_pretrained_model_does_not_depend_on_the_settings_of_base_training():
    paper = compose_config(["scale=paper", "method=bapo"])
    assert changed(paper, base__iterations=7) == set()
    assert changed(paper, model__revision="0" * 40) == {"base", "train"}


def test_code_that_changes_its_meaning_changes_the_run(monkeypatch):
    config = composed()
    before = train_identity(config)
    monkeypatch.setattr(methods.get("bapo"), "revision", methods.get("bapo").revision + 1)
    assert train_identity(config) != before


def test_two_ways_to_say_the_same_are_the_same_run():
    assert train_identity(composed()) == train_identity(composed("method.v=5", "train.learning_rate=0.0002"))
    assert train_identity(composed("method.v=3")) != train_identity(composed())


def test_methods_and_seeds_all_differ():
    seen = [
        train_identity(run_config("laptop", "countdown", "", method, seed))
        for method in options("method")
        for seed in (1, 2, 3)
    ]
    assert len(set(seen)) == len(seen)


def test_digest_is_of_the_meaning_not_of_the_order():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})
    assert len(digest({})) == 16 and digest({}) == "44136fa355b3678a"  # SHA-256 of "{}"


def test_places():
    config = composed("seed=3")
    assert str(run_directory(config)) == "results/laptop/countdown/qwen2-112k/bapo/seed3"
    assert str(base_directory(config)) == "results/laptop/countdown/qwen2-112k/base"
    assert str(data_directory(config)) == "results/laptop/countdown/data"
