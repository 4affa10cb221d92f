"""Answers of hooks that no engine can use are refused by the file, the class, the hook, the value and the cure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.late import LATE
from support.scripted import ScriptedSampler, fresh, loss_inputs

from bapo import methods
from bapo.algorithm.rollouts import Group
from bapo.errors import UserError
from bapo.methods import Batch, Method

if LATE:
    import torch

    from bapo.engines.shared.hooks import checked

HALF = [[0.5, 0.5], [0.5, 0.5]]
CLIPPED = {"clipped": [0.0, 0.0]}


def one_step(**own: Any) -> None:
    """Ask a method for all that a step asks for. own: a hook's answer, or an attribute of the class."""
    hooks = [n for n, v in own.items() if callable(getattr(Method, n, None)) and not callable(v)]
    answers = {n: partial(lambda value, *_: value, own[n]) for n in hooks}
    cls = type("Own", (Method,), own | answers)
    method = checked(cls(methods.MethodConfig(algorithm="methods/own.py:Own", kl_coef=0.1), batch_size=2, seed=1))
    sampler, groups = ScriptedSampler(stream=["a", "b"]), fresh(1, [2, 0])
    method.draw_prompts(1, sampler)
    method.syncs_rollout_policy(1)
    batch = method.build_batch(1, groups, sampler)
    for group in batch.groups:
        method.advantages(group), method.second_part(group), method.separate(group)
    method.passes(1), method.rollout_budget(1, 8), method.trains_policy(1), method.resets_reference(1)
    method.loss(loss_inputs(HALF, HALF, [1.0, -1.0], reference=HALF))


def lost(loss: Any = 0.0, **metrics: Any) -> Any:
    """What a loss returns: numbers as tensors."""
    loss = torch.tensor(loss, requires_grad=True) if isinstance(loss, float | list) else loss
    return loss, {name: torch.tensor(value) for name, value in metrics.items()}


def test_grpo_passes() -> None:
    one_step()
    one_step(delays_rollout_policy=True, rollout_budget=4, passes=np.int64(2), second_part=np.zeros(8, bool))
    one_step(advantages=np.zeros((8, 2)), loss=lost(kl=1.0, mine=2.0, **CLIPPED))


def refused(own: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"methods/own.py: Own.{fault}, must be")):
        one_step(**own)


#: hook -> answers, and how an error shows them; a loss is given as what ``lost`` takes
UNUSABLE: dict[str, list[tuple[Any, str]]] = {
    "draw_prompts": [(None, "None"), ([], "a list of 0"), (["a"], "a list of 1")],
    "syncs_rollout_policy": [(False, "False"), (np.False_, "False"), (None, "None")],
    "rollout_budget": [(2.5, "2.5")],
    "passes": [(None, "None")],
    "separate": [("first", "'first'")],
    "trains_policy": [(None, "None")],
    "resets_reference": [(1, "1")],
    "build_batch": [
        *((None, "None"), ([], "a list of 0"), (Batch(None), "groups=None"), (Batch(["a"]), "groups=a list of 1")),
        *((Batch([], groups), "rejected=a list of 1") for groups in (fresh(1, [1]), [(fresh(1, [1])[0],)])),
        (Batch([], phase=None), "phase=None"),
        *(
            (Batch([], metrics={name: 7}), f"the metric '{name}'")
            for name in ("step", "policy_version", "reward_mean", "loss", "tv_x2", "seconds_push", "forward_flops")
        ),
        *((Batch([], metrics={"mine": value}), f"the metric mine={value!r}") for value in ("7", None)),
    ],
    "advantages": [
        *((np.zeros(16), "float64 [16]"), ([0.0] * 8, "a list of 8"), (0.5, "0.5")),
        *((np.zeros(s, np.float32), f"float32 {list(s)}") for s in ((7,), (8, 1), (2, 8), (8, 8, 8), ())),
        *((np.zeros(8, object), "object [8]"), (np.full(8, np.nan), f"{[math.nan] * 8}, float64 [8]")),
    ],
    "ratio": [(None, "None"), (np.ones((2, 2)), "a NumPy array, float64 [2, 2]")],
    "surrogate": [(None, "None"), ((None, None), "None")],
    "divergence": [(0.5, "0.5")],
    "reduce": [(None, "None"), (0.5, "0.5")],
    "second_part": [(np.zeros(7, bool), "bool [7]"), (np.zeros(8, int), "int64 [8]")],
    "loss": [
        *((0.5, "0.5"), ((0.5, {}), "the loss 0.5"), (([1.0, 2.0], CLIPPED), "the loss float32 [2]")),
        (("bare", CLIPPED), "a detached loss float32 []"),
        *(((0.0, {}), "the metric clipped=None"), ((0.0, {"clipped": 0.0}), "the metric clipped=float32 []")),
        ((0.0, CLIPPED | {"mine": [1.0]}), "the metric mine=float32 [1]"),
        *(((0.0, CLIPPED | {name: 1.0}), f"the metric '{name}'") for name in ("gradient_norm", "ratio_x1")),
    ],
}


@pytest.mark.parametrize(("hook", "answer", "said"), [(hook, *each) for hook in UNUSABLE for each in UNUSABLE[hook]])
def test_an_answer_that_no_engine_can_use_is_refused(hook: str, answer: Any, said: str) -> None:
    if hook == "loss" and isinstance(answer, tuple) and answer[0] != 0.5:
        values, metrics = answer
        answer = lost(torch.tensor(1.0) if values == "bare" else values, **metrics)
    refused({hook: answer}, f"{hook} returned {said}")


@pytest.mark.parametrize("shape", [(), (2,), (2, 1), (1, 2), (2, 3), (2, 2, 1)])
@pytest.mark.parametrize("hook", ["ratio", "surrogate", "divergence"])
def test_what_a_loss_is_made_of_has_a_number_for_each_token(hook: str, shape: tuple[int, ...]) -> None:
    values, right = torch.ones(shape), torch.ones((2, 2))
    for answer in [(values, right), (right, values)] if hook == "surrogate" else [values]:
        refused({hook: answer}, f"{hook} returned float32 {list(shape)}")


def test_a_tensor_has_the_right_shape_and_is_no_array() -> None:
    for hook, answer in (("advantages", torch.zeros(8)), ("second_part", torch.zeros(8, dtype=torch.bool))):
        refused({hook: answer}, f"{hook} returned a torch tensor, {str(answer.dtype)[6:]} [8]")
    refused({"reduce": torch.ones(2)}, "reduce returned float32 [2]")


def in_place(group: Group) -> None:
    group.rewards -= 0.5


def as_a_part(group: Group) -> None:
    group.rewards[0] = 0.5


def reassigned(group: Group) -> None:
    group.rewards = group.rewards * 0.5


def graded(group: Group) -> None:
    group.grade(group.rewards * 0.5)


@pytest.mark.parametrize("change", [in_place, as_a_part, reassigned, graded])
@pytest.mark.parametrize("hook", ["build_batch", "advantages"])
def test_a_hook_that_changes_rewards_is_named(hook: str, change: Callable[[Group], None]) -> None:
    def changing(self: Method, *given: Any) -> Any:
        change(given[0] if hook == "advantages" else given[1][0])
        return getattr(Method, hook)(self, *given)

    with pytest.raises(UserError, match=rf"^methods/own.py: Own.{hook} changes the rewards .* in `advantages`"):
        one_step(**{hook: changing})


def test_an_error_of_a_hook_stays_what_it_is() -> None:
    def failing(*_: Any) -> Any:
        raise ValueError("another")

    with pytest.raises(ValueError, match=r"^another$"):
        one_step(build_batch=failing)


@pytest.mark.parametrize(
    ("memory", "fault"),
    [
        ({"memory": {1}}, "state returned memory=a set"),
        ({"memory": np.ones(2)}, "state returned memory=float64 [2]"),
        ({}, "build_batch returned no attribute 'memory'"),
    ],
)
def test_what_is_saved_must_be_there_and_plain(memory: dict[str, Any], fault: str) -> None:
    refused({"saved": ("memory",), **memory}, fault)
