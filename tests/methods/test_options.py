"""Every option of a method changes what it does, or is refused."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import yaml
from support.scripted import G, group
from test_methods_state import OPTIONS, B, World, correct, steps

from bapo import methods
from bapo.algorithm.rollouts import Group, Prompt
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.methods.base import MethodConfig

#: options that losses, critics and engines read, which no batch shows, and those for more steps than these
ELSEWHERE = {
    *("gamma", "gae_lambda", "whiten_advantages", "value_clip", "critic_rate_ratio", "critic_warmup", "ratio_cap"),
    *("expectations", "clip_low_least", "clip_high_most", "clip_step", "target", "on_policy_clip", "shape", "veto"),
    *("threshold", "share", "update_to_data", "kl_decay", "kl_floor", "off_policy_weight", "at_limit", "capacity"),
    "positive",  # a bound between the rewards 0 and 1
}
STEPS = 30
#: option -> options without which it is refused
NEEDS: dict[str, dict[str, Any]] = {
    "average_decay": {"average_reward": "moving-average"},
    "filter_mean": {"online_filter": "gaussian"},
    "filter_std": {"online_filter": "gaussian"},
    "filter_share": {"online_filter": "uniform"},
    "max_mean": {"max_std": 1.0},
    "c2_range": {"c3_range": [1.0, 1.0]},
    "c3_range": {"c2_range": [0.0, 0.0], "high_steps": 1},
    "failed_prompt": {"bad_capacity": 6},
    "store_promoted": {"c2_range": [0.0, 0.0], "c3_range": [1.0, 1.0]},
    "stored_first": {"high_capacity": 2},
}
#: what may be tried of a number, beside half and twice its default
NUMBERS = [1, 2, 3, 0.3, 0.5, 0.9, 0.01]


class Learning(World):
    """The current policy solves some hard prompts always, and an older policy solves fewer."""

    def regenerate(self, prompts: list[Prompt], origin: str, policy: str = "current") -> list[Group]:
        def right(prompt: Prompt) -> int:
            if policy == "current" and int(prompt.id[1:]) % 2:
                return G
            return correct(prompt.id, self.step)

        return [group(p.id, right(p), self.step, G).as_origin(origin) for p in prompts]


def done(options: dict[str, Any]) -> str:
    """What is sampled, trained on and refreshed, without the numbers for the log."""
    method = methods.build(options, B, seed=3)
    trained = [step[:-1] for step in steps(method, 1, STEPS, Learning())]
    schedule = [method.syncs_rollout_policy(step) for step in range(1, STEPS + 1)]
    return str((trained, schedule, method.most_generated))


def others(annotation: object, value: object) -> Iterator[object]:
    """Yield values that an option of this type may have in place of ``value``, and some that it may not."""
    literals = [x for part in (annotation, *typing.get_args(annotation)) for x in literal(part)]
    yield from (x for x in literals if x != value)
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, list):
        yield from ([x, x] for x in (0.0, 0.25, 0.375, 0.5, 1.0) if [x, x] != value)
    elif not literals:
        number = [value / 2, value * 2, value + 1] if isinstance(value, int | float) else []
        yield from (x for x in [*number, *NUMBERS] if x != value)


def literal(annotation: object) -> tuple[object, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()


def changes(algorithm: str, key: str) -> bool:
    """Whether a value of an option changes what the method does, with the options that make it do something."""
    field = methods.get(algorithm).Config.model_fields[key]
    often = {"m": 2} if reads(algorithm, "m") else {}
    needed = {k: v for k, v in NEEDS.get(key, {}).items() if reads(algorithm, k)}
    for small in ({}, often, needed, {**OPTIONS.get(algorithm, {}), **often, **needed}):
        given = {k: v for k, v in {"algorithm": algorithm, **small}.items() if k != key}
        before = done(given)
        for value in others(field.annotation, field.get_default()):
            try:
                if done({**given, key: value}) != before:
                    return True
            except UserError:
                continue  # a value that it may not have
    return False


def reads(algorithm: str, key: str) -> bool:
    config = methods.get(algorithm).Config
    return key in config.model_fields and key not in config.unread


@pytest.mark.parametrize("algorithm", methods.names())
def test_every_option_changes_what_a_method_does_or_is_refused(algorithm: str) -> None:
    config = methods.get(algorithm).Config
    of_batches = config.model_fields.keys() - MethodConfig.model_fields.keys() - ELSEWHERE
    assert [key for key in sorted(of_batches) if reads(algorithm, key) and not changes(algorithm, key)] == []
    assert set(config.unread) <= config.model_fields.keys()


@pytest.mark.parametrize(
    "options",
    [
        *("ba_ppo bad_capacity=0", "bapo filter_share=0.4", "bapo average_decay=0.5"),
        *("repo replays=4 strategy=full-scope", "partial_rollouts segments=current share=1"),
        *("remix kl_decay=0.2 kl_to=none", "remix kl_floor=0.2 kl_to=none"),
    ],
)
def test_an_option_without_effect_is_refused_by_its_name(options: str) -> None:
    """The first is the one without effect, where there are others."""
    algorithm, *words = options.split()
    values = {key: yaml.safe_load(value) for key, value in (word.split("=") for word in words)}
    with pytest.raises(UserError, match=rf"method\.{next(iter(values))}="):
        methods.build({"algorithm": algorithm, **values}, B, seed=3)


def test_a_buffer_that_never_holds_a_batch_is_refused() -> None:
    words = ["scale=smoke", "task=countdown", "method=freshper", "train.batch_size=16"]
    assert compose_config([*words, "method.capacity=16"]).method.capacity == 16
    with pytest.raises(UserError, match=r"method\.capacity=15: must be at least train\.batch_size=16"):
        compose_config([*words, "method.capacity=15"])
