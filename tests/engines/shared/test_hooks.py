"""Answers of hooks that no engine can use are refused by the file, the class, the hook, the value and the cure."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.late import LATE
from support.scripted import ScriptedSampler, fresh, loss_inputs

from bapo import methods
from bapo.errors import UserError
from bapo.methods import Batch, Method

if LATE:
    import torch

    from bapo.engines.shared.hooks import checked

HALF = [[0.5, 0.5], [0.5, 0.5]]
CLIPPED = {"clipped": [0.0, 0.0]}


def one_step(**own: Any) -> None:
    """Ask a method for all that a step asks for. own: a hook's answer, or an attribute of the class."""
    answers = {n: partial(lambda value, *_: value, v) for n, v in own.items() if callable(getattr(Method, n, None))}
    cls = type("Own", (Method,), own | answers)
    method = checked(cls(methods.MethodConfig(algorithm="methods/own.py:Own"), batch_size=2, seed=1))
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


@pytest.mark.parametrize(
    "own, fault",
    [
        ({"draw_prompts": None}, "draw_prompts returned None, must be a list of one Prompt or more"),
        ({"draw_prompts": []}, "draw_prompts returned a list of 0, must be"),
        ({"draw_prompts": ["a"]}, "draw_prompts returned a list of 1, must be"),
        ({"syncs_rollout_policy": False}, "syncs_rollout_policy returned False, must be True where delays_"),
        ({"syncs_rollout_policy": np.False_}, "syncs_rollout_policy returned False, must be True where"),
        ({"syncs_rollout_policy": None}, "syncs_rollout_policy returned None, must be bool"),
        ({"rollout_budget": 2.5}, "rollout_budget returned 2.5, must be int or None"),
        ({"passes": None}, "passes returned None, must be int"),
        ({"separate": "first"}, "separate returned 'first', must be int"),
        ({"trains_policy": None}, "trains_policy returned None, must be bool"),
        ({"resets_reference": 1}, "resets_reference returned 1, must be bool"),
        ({"build_batch": None}, "build_batch returned None, must be a Batch"),
        ({"build_batch": []}, "build_batch returned a list of 0, must be a Batch"),
        ({"build_batch": Batch(None)}, "build_batch returned groups=None, must be a list of Group"),
        ({"build_batch": Batch(["a"])}, "build_batch returned groups=a list of 1, must be a list of Group"),
        (
            {"build_batch": Batch([], fresh(1, [1]))},
            "build_batch returned rejected=a list of 1, must be a list of (Group",
        ),
        ({"build_batch": Batch([], [(fresh(1, [1])[0],)])}, "build_batch returned rejected=a list of 1, must"),
        ({"build_batch": Batch([], phase=None)}, "build_batch returned phase=None, must be int"),
        *(
            (
                {"build_batch": Batch([], metrics={name: 7})},
                f"build_batch returned the metric '{name}', must be renamed",
            )
            for name in ("step", "policy_version", "reward_mean", "loss", "tv_x2", "seconds_push", "forward_flops")
        ),
        ({"build_batch": Batch([], metrics={"mine": "7"})}, "build_batch returned the metric mine='7', must be one"),
        ({"build_batch": Batch([], metrics={"mine": None})}, "build_batch returned the metric mine=None, must be one"),
        ({"advantages": np.zeros(16)}, "advantages returned float64 [16], must be [8], or [8, 2] with a number for"),
        *(
            ({"advantages": np.zeros(shape, np.float32)}, f"advantages returned float32 {list(shape)}, must be [8], or")
            for shape in ((7,), (8, 1), (2, 8), (8, 8, 8), ())
        ),
        ({"advantages": [0.0] * 8}, "advantages returned a list of 8, must be an array of numbers [8]"),
        ({"advantages": 0.5}, "advantages returned 0.5, must be an array of numbers [8]"),
        ({"advantages": np.zeros(8, object)}, "advantages returned object [8], must be an array of numbers [8]"),
        (
            {"advantages": np.full(8, np.nan)},
            "advantages returned [nan, nan, nan, nan, nan, nan, nan, nan], float64 [8], must be finite",
        ),
        ({"second_part": np.zeros(7, bool)}, "second_part returned bool [7], must be bool [8]"),
        ({"second_part": np.zeros(8, int)}, "second_part returned int64 [8], must be bool [8]"),
        ({"saved": ("memory",), "memory": {1}}, "state returned memory=a set, must be plain data that JSON can hold"),
        ({"saved": ("memory",), "memory": np.ones(2)}, "state returned memory=float64 [2], must be plain data"),
        ({"saved": ("memory",)}, "build_batch returned no attribute 'memory', must be one, since `saved` names it"),
        ({"loss": 0.5}, "loss returned 0.5, must be a tuple (loss, metrics)"),
        ({"loss": (0.5, {})}, "loss returned the loss 0.5, must be a tensor [] with a gradient"),
        *(
            ({"loss": (values, metrics)}, f"loss returned {fault}")
            for values, metrics, fault in (
                ([1.0, 2.0], CLIPPED, "the loss float32 [2], must be a tensor [] with a gradient"),
                ("bare", CLIPPED, "a detached loss float32 [], must be"),
                (0.0, {}, "the metric clipped=None, must be a tensor [2]"),
                (0.0, {"clipped": 0.0}, "the metric clipped=float32 [], must be a tensor [2]"),
                (0.0, CLIPPED | {"mine": [1.0]}, "the metric mine=float32 [1], must be one number in a tensor"),
                (0.0, CLIPPED | {"gradient_norm": 1.0}, "the metric 'gradient_norm', must be renamed"),
                (0.0, CLIPPED | {"ratio_x1": 1.0}, "the metric 'ratio_x1', must be renamed"),
            )
        ),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_an_answer_that_no_engine_can_use_is_refused(own: dict[str, Any], fault: str) -> None:
    if isinstance(own.get("loss"), tuple) and own["loss"][0] != 0.5:
        values, metrics = own["loss"]
        own = {"loss": lost(torch.tensor(1.0) if values == "bare" else values, **metrics)}
    with pytest.raises(UserError, match=re.escape(f"methods/own.py: Own.{fault}")):
        one_step(**own)
