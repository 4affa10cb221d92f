"""What every run means is written down: a changed identity is a decision, never an accident."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.configs import put
from support.paths import BENCHMARKS

from bapo import methods
from bapo.experiments.compose import compose_config, run_config
from bapo.experiments.identity import (
    base_identity,
    data_identity,
    digest,
    evaluation_identity,
    identity_of_seed,
    train_content,
    train_identity,
)
from bapo.experiments.places import options
from bapo.experiments.schema import Config
from bapo.experiments.settings import Settings
from bapo.experiments.studies import load_study, study_file

WRITTEN = Path(__file__).with_name("identities.json")


@pytest.mark.parametrize("scale", options("scale"))
def test_every_identity_is_the_one_written_down(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one must change: raise a revision, say so, and `python benchmarks/identities.py` writes the file anew."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("identities", None)
    import identities

    written = json.loads(WRITTEN.read_text(encoding="utf-8"))[scale]
    assert list(identities.differences(written, identities.meanings(scale))) == []


@pytest.mark.parametrize(
    "scale", [pytest.param(scale, marks=pytest.mark.slow) if scale == "laptop" else scale for scale in options("scale")]
)
def test_every_variant_of_a_study_has_an_effect_and_no_two_runs_are_one(scale: str) -> None:
    """Over all studies: a run with a variant is another run than the one without it, and no two cells are one run."""
    runs = json.loads(WRITTEN.read_text(encoding="utf-8"))[scale]["runs"]
    seen = [json.dumps(each["train"]) for each in runs.values()]
    assert len(set(seen)) == len(seen)
    settings = Settings(scale=scale)
    studies = [load_study(name, scale) for name in options("study") if scale in study_file(name).scales]
    cells = {(c.task, c.model, c.method): c for study in studies for c in study.cells}
    for cell in cells.values():
        name, *variants = cell.method.split("+")
        for left in variants:
            without = "+".join([name, *(v for v in variants if v != left)])
            other = run_config(scale, cell.task, cell.model, without, cell.seed)
            assert train_identity(settings.run(cell)) != train_identity(other), f"{cell.method} without {left}"


def composed(*overrides: str) -> Config:
    return compose_config(["scale=laptop", "task=countdown", "method=bapo", *overrides])


def changed(config: Config, **values: Any) -> set[str]:
    """Return which identities change when the values (a__b stands for a.b) are set."""
    other = config.copy()
    for key, value in values.items():
        put(other, key, value)
    kinds = {"data": data_identity, "base": base_identity, "train": train_identity, "evaluation": evaluation_identity}
    return {name for name, of in kinds.items() if of(config) != of(other)}


def another(value: Any) -> Any:
    """Return a different value of the same type."""
    if value is None:
        return 7
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 + 3
    return value + "x" if isinstance(value, str) else [*value, 0.5]


@pytest.mark.parametrize(
    "key",
    [
        *("method__name", "method__title", "scale__title", "scale__note", "task__title", "model__title", "model__name"),
        *("tracking__kind", "tracking__project", "paths__results", "paths__data_folder", "device", "threads"),
        *("base__threads", "train__kl_coef", "evaluation__batch_size", "evaluation__vllm__dtype"),
        *("checkpoint__keep_models", "model__parameters", "evaluation__curve_samples", "evaluation__validation"),
    ],
)
def test_names_places_and_hardware_belong_to_no_identity(key: str) -> None:
    assert changed(composed(), **{key: "x"}) == set()


@pytest.mark.parametrize("part", ["method", "train", "sampling"])
def test_every_other_value_of_method_train_and_sampling_changes_the_run(part: str) -> None:
    config = composed()
    silent = {"method": {"name", "title", "kind"}, "train": {"kl_coef", "entropy_coef"}}.get(part, set())
    for key, value in getattr(config, part).model_dump().items():
        if key not in ("algorithm", "budget", "micro_batch_size"):
            assert ("train" in changed(config, **{f"{part}__{key}": another(value)})) == (key not in silent), key
    assert "train" in changed(config, method__algorithm="bapo_without_x3", train__budget__unit="rollouts")


@pytest.mark.parametrize(("method", "counts"), [("grpo", False), ("bapo_xi", False), ("m2po", True)])
def test_the_size_of_a_micro_batch_belongs_to_methods_that_decide_on_it(method: str, counts: bool) -> None:
    config = composed(f"method={method}")
    assert ("train" in changed(config, train__micro_batch_size=3)) == counts


@pytest.mark.parametrize(
    ("identities", "values"),
    [
        ("train", {"seed": 2}),
        ("data base train evaluation", {"data__seed": 5, "data__prompt": "x", "data__split_sizes__train": 7}),
        ("data base train evaluation", {"data__generator__number_max": 9, "task__name": "other"}),
        ("base train", {"base__iterations": 7, "base__seed": 7, "model__architecture__hidden_size": 32}),
        # a hub model's checkpoint is known by its name alone, so the evaluation must know its arithmetic
        ("base train evaluation", {"model__dtype": "bfloat16", "sampling__max_response_tokens": 24}),
        ("train evaluation", {"sampling__temperature": 0.6}),  # not the base
        ("evaluation", {"evaluation__samples": 64, "evaluation__temperature": 0.6}),
        ("evaluation", {"evaluation__benchmarks": ["cd34"], "evaluation__backend": "vllm"}),
    ],
)
def test_a_value_changes_the_identities_of_what_reads_it(identities: str, values: dict[str, Any]) -> None:
    for key, value in values.items():
        assert changed(composed(), **{key: value}) == {*identities.split()}, key


def test_a_pretrained_model_does_not_depend_on_the_settings_of_base_training() -> None:
    paper = compose_config(["scale=paper", "method=bapo"])
    assert changed(paper, base__iterations=7) == set()
    assert changed(paper, model__revision="0" * 40) == {"base", "train"}
    assert changed(paper, data__system="x") == {"train", "evaluation"}


def test_code_that_changes_its_meaning_changes_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = composed()
    before = train_identity(config)
    monkeypatch.setattr(methods.get("bapo"), "revision", methods.get("bapo").revision + 1)
    assert train_identity(config) != before


def test_two_ways_to_say_the_same_are_the_same_run() -> None:
    assert identity_of_seed(train_content(composed("seed=0")), 7) == train_identity(composed("seed=7"))
    assert train_identity(composed()) == train_identity(composed("method.v=5", "train.learning_rate=0.0002"))
    assert train_identity(composed("method.kl_coef=0")) == train_identity(composed("method.kl_coef=0.0"))
    assert base_identity(composed("data.generator.noise=1")) == base_identity(composed("data.generator.noise=1.0"))
    for method, changes in (("bapo", True), ("grpo", True), ("dapo", False)):  # where the method takes the coefficient
        a, b = (compose_config([f"method={method}", f"train.kl_coef={k}"]) for k in (0.001, 0.01))
        assert (train_identity(a) != train_identity(b)) == changes


def test_digest_is_of_the_meaning_not_of_the_order() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1.0})
    assert len({digest(x) for x in ([1, 2], [2, 1], [1], [True], ["1"], [1.5], [None])}) == 7
    assert digest({}) == "44136fa355b3678a"  # SHA-256 of "{}"
