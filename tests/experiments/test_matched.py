"""Conditions matched to the paper's: a variant of the model that sets the base, the learning rate and the steps."""

from __future__ import annotations

import pytest

from bapo.errors import UserError
from bapo.experiments.compose import compose_config, run_config
from bapo.experiments.identity import base_identity, data_identity, train_identity
from bapo.experiments.places import run_directory
from bapo.experiments.settings import Settings
from bapo.experiments.studies import study_of

MATCHED = "qwen2-112k+matched"


@pytest.mark.parametrize(
    ("scale", "task"), [("laptop", "countdown"), ("laptop", "mathematics"), ("smoke", "countdown")]
)
def test_the_setting_says_what_is_matched(scale: str, task: str) -> None:
    plain, matched = (run_config(scale, task, model, "bapo", 1) for model in ("qwen2-112k", MATCHED))
    base, train, sampling = matched.base, matched.train, matched.sampling
    assert plain.matched == {
        "iterations": base.iterations,
        "temperature": sampling.temperature,
        "learning_rate": train.learning_rate,
        "steps": train.steps,
    }
    assert matched.evaluation.temperature == sampling.temperature
    assert data_identity(matched) == data_identity(plain)  # one folder of problems for both
    assert train_identity(matched) != train_identity(plain)
    assert str(run_directory(matched)).endswith(f"{scale}/{task}/{MATCHED}/bapo/seed1")
    assert matched.model.title.endswith(", matched to the paper")


def test_a_methods_variant_wins_over_the_models() -> None:
    config = run_config("laptop", "countdown", MATCHED, "grpo+rate_5e-5", 1)
    plain = run_config("laptop", "countdown", MATCHED, "grpo", 1)
    assert config.train.learning_rate == 5e-5 != plain.train.learning_rate
    assert config.train.steps == plain.train.steps  # what the variant leaves alone stays matched
    assert base_identity(config) == base_identity(plain) and train_identity(config) != train_identity(plain)


def test_two_bases_at_once_are_refused() -> None:
    with pytest.raises(UserError, match=r"the variants 'matched' and 'hard' both set base\.iterations"):
        compose_config([f"model={MATCHED}+hard"])


def test_a_task_without_matched_conditions_says_what_to_add() -> None:
    with pytest.raises(UserError, match=r"base.iterations: .*matched.iterations"):
        compose_config(["scale=paper", "task=countdown", "model=qwen2.5-math-1.5b+matched"])


def test_the_study_starts_every_run_from_a_matched_base_and_has_eight_seeds() -> None:
    study = study_of("matched", Settings())
    assert study.models == [("countdown", MATCHED), ("mathematics", MATCHED)]
    for start in study.models:
        mine = [c for c in study.cells if (c.task, c.model) == start]
        methods = {c.method for c in mine}
        assert {"grpo", "bapo", "bapo+rollouts", "dapo+rollouts"} <= methods
        assert all(len([c for c in mine if c.method == m]) >= 8 for m in methods)
