"""What the hooks of a method may return, checked between the method and either engine.

Without these checks an engine would train on an array of the wrong shape, or fail far from the hook that returned it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from numbers import Integral, Real
from types import UnionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bapo.algorithm.losses import LossInputs, ValueInputs
from bapo.algorithm.rollouts import Group, Prompt
from bapo.engines.shared.records import RESERVED
from bapo.errors import UserError
from bapo.methods import Batch, Method

#: whether a part of an answer is right, which part, its value, and what it must be; a rule may rely on earlier ones
Rules = Iterator[tuple[bool, str, object, str]]
#: what is wrong with a hook that changes rewards, and the cure
CHANGED_REWARDS = (
    "changes the rewards of a group, or another array that is read-only; the tables record rewards, so shape them in "
    "`advantages`, on a copy"
)
#: the metrics of a loss that have columns of their own
LOSS_COLUMNS = {"clipped", "clip_fraction", "kl", "value_clip_fraction"}


def checked(method: Method) -> Method:
    """Return the method with hooks that raise UserError where they return something that no engine can use."""
    for name, rules in RULES.items():
        setattr(method, name, _checked(method, name, getattr(method, name), rules))
    return method


def _checked(method: Method, name: str, hook: Callable[..., Any], rules: Callable[..., Rules]) -> Callable[..., Any]:
    @wraps(hook)
    def call(*arguments: Any, **keywords: Any) -> Any:
        given = [*arguments, *keywords.values()]
        parts = [part for each in given for part in (each if isinstance(each, list) else [each])]
        rewards = [(part, part.rewards.copy()) for part in parts if isinstance(part, Group)]
        try:
            answer = hook(*arguments, **keywords)
        except ValueError as error:
            if "read-only" in str(error):  # what numpy says of an array that cannot be changed
                raise UserError(f"{place(method, name)} {CHANGED_REWARDS}") from error
            raise
        if any(not np.array_equal(group.rewards, known) for group, known in rewards):
            raise UserError(f"{place(method, name)} {CHANGED_REWARDS}")
        for holds, part, value, must in rules(method, answer, *given):
            if not holds:
                raise UserError(f"{place(method, name)} returned {part}{_description(value)}, must be {must}")
        return answer

    return call


def place(method: Method, hook: str) -> str:
    """Return where a hook is defined, for errors: the method's file or name, its class and the hook."""
    return f"{method.config.algorithm.partition(':')[0]}: {type(method).__name__}.{hook}"


def not_finite(method: Method, hook: str, loss: float) -> str:
    """Return what is wrong where a gradient is not finite: the loss, or else its gradient alone.

    hook: whose loss it is, ``loss`` or ``value_loss``.
    """
    where = place(method, hook)
    return f"the gradient of {where} is not finite" if math.isfinite(loss) else f"{where} returned {loss}"


def _description(value: object) -> str:
    if isinstance(value, np.ndarray | Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value) if value is None or isinstance(value, Real | str) else f"a {type(value).__name__}"


def _is_array(answer: object, kind: type, shape: Sequence[int], of: str) -> tuple[bool, str, object, str]:
    """Return the rule that an answer is NumPy's or torch's, as its type and shape may be right in the other's."""
    names = {np.ndarray: "a NumPy array", Tensor: "a torch tensor"}
    found = names.get(type(answer))
    return isinstance(answer, kind), f"{found}, " if found else "", answer, f"{names[kind]} {list(shape)} of {of}"


def _one_of(kinds: type | UnionType, must: str) -> Callable[..., Rules]:
    def rules(method: Method, answer: object, *_: object) -> Rules:
        yield isinstance(answer.item() if isinstance(answer, np.generic) else answer, kinds), "", answer, must

    return rules


def _sync(method: Method, answer: object, *_: object) -> Rules:
    yield from _one_of(bool, "bool")(method, answer)
    # without the delay an engine holds no second set of weights
    yield bool(answer or method.delays_rollout_policy), "", bool(answer), "True where delays_rollout_policy is False"


def _prompts(method: Method, answer: Any, *_: object) -> Rules:
    yield _all(answer, Prompt) and len(answer) > 0, "", answer, "a list of one Prompt or more"


def _all(answer: object, kind: type) -> bool:
    return isinstance(answer, list) and all(isinstance(each, kind) for each in answer)


def _batch(method: Method, answer: Any, step: int, *_: object) -> Rules:
    yield isinstance(answer, Batch), "", answer, "a Batch"
    yield _all(answer.groups, Group), "groups=", answer.groups, "a list of Group"
    pairs = _all(answer.rejected, tuple) and all([Group, str] == [*map(type, pair)] for pair in answer.rejected)
    yield pairs, "rejected=", answer.rejected, "a list of (Group, reason)"
    yield isinstance(answer.phase, Integral), "phase=", answer.phase, "int"
    yield from _metrics(answer.metrics, RESERVED, Real)
    if step == 1:  # a state that no checkpoint can hold is reported now, not after hours
        for name in method.saved:
            yield hasattr(method, name), "no attribute ", name, "one, since `saved` names it"
        method.state()


def _metrics(metrics: Any, reserved: set[str], kind: type) -> Rules:
    yield isinstance(metrics, dict), "metrics=", metrics, "a dict"
    for name, value in metrics.items():
        free = name not in reserved
        yield free, "the metric ", name, "renamed: steps.parquet or the engine has a number of this name"
        number = isinstance(value, kind) and getattr(value, "ndim", 0) == 0
        yield number, f"the metric {name}=", value, f"one number{' in a tensor' * (kind is Tensor)}"


def _advantages(method: Method, answer: Any, group: Group) -> Rules:
    size, longest = group.size, int(group.samples.lengths.max())
    yield _is_array(answer, np.ndarray, [size], "numbers")
    yield answer.dtype.kind in "fiu", "", answer, f"numbers [{size}]"
    fits = answer.shape == (size,) or (answer.ndim == 2 and len(answer) == size and answer.shape[1] >= longest)
    yield fits, "", answer, f"[{size}], or [{size}, {longest}] with a number for each token"
    yield bool(np.isfinite(answer).all()), f"{answer.tolist()}, ", answer, f"finite, for prompt {group.prompt.id}"


def _second_part(method: Method, answer: Any, group: Group) -> Rules:
    yield _is_array(answer, np.ndarray, [group.size], "bool")
    yield answer.dtype == bool and answer.shape == (group.size,), "", answer, f"bool [{group.size}]"


def _loss(method: Method, answer: Any, inputs: LossInputs | ValueInputs, rows: tuple[str, ...] = ()) -> Rules:
    """rows: the metrics that have a number for each row."""
    yield isinstance(answer, tuple) and len(answer) == 2, "", answer, "a tuple (loss, metrics)"
    loss, metrics = answer
    yield isinstance(loss, Tensor) and not loss.ndim, "the loss ", loss, "a tensor [] with a gradient"
    yield loss.requires_grad or not torch.is_grad_enabled(), "a detached loss ", loss, "a tensor [] with a gradient"
    yield isinstance(metrics, dict), "metrics=", metrics, "a dict"
    shape = inputs.mask.shape[:1]
    for name in rows:
        value = metrics.get(name)
        yield (
            isinstance(value, Tensor) and value.shape == shape,
            f"the metric {name}=",
            value,
            f"a tensor {list(shape)}",
        )
    yield from _metrics({k: v for k, v in metrics.items() if k not in rows}, RESERVED - LOSS_COLUMNS, Tensor)


def _by_token(method: Method, answer: Any, *given: Any) -> Rules:
    [shape] = (each.mask.shape for each in given if isinstance(each, LossInputs))
    yield _is_array(answer, Tensor, shape, "numbers")
    yield answer.shape == shape, "", answer, f"{list(shape)}, a number for each token"


def _surrogate(method: Method, answer: Any, *given: Any) -> Rules:
    yield isinstance(answer, tuple) and len(answer) == 2, "", answer, "a tuple (losses, where a clip was active)"
    for part in answer:
        yield from _by_token(method, part, *given)


def _scalar(method: Method, answer: Any, *_: object) -> Rules:
    yield isinstance(answer, Tensor) and not answer.ndim, "", answer, "a tensor []"


def _state(method: Method, answer: Any) -> Rules:
    for name, value in answer[0].items():
        yield _is_json(value), f"{name}=", value, "plain data that JSON can hold"


def _is_json(value: object) -> bool:
    try:
        return bool(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return False


RULES: dict[str, Callable[..., Rules]] = {
    "draw_prompts": _prompts,
    "syncs_rollout_policy": _sync,
    "rollout_budget": _one_of(int | None, "int or None"),
    "build_batch": _batch,
    "advantages": _advantages,
    "second_part": _second_part,
    **dict.fromkeys(("separate", "passes"), _one_of(int, "int")),
    **dict.fromkeys(("resets_reference", "trains_policy"), _one_of(bool, "bool")),
    **dict.fromkeys(("ratio", "divergence"), _by_token),
    "surrogate": _surrogate,
    "reduce": _scalar,
    "loss": partial(_loss, rows=("clipped",)),
    "value_loss": _loss,
    "state": _state,
}
