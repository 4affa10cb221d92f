"""What the hooks of a method may answer, checked between the method and either engine.

An engine would train on an array of another shape without a word, or fail far from the hook that returned it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial, wraps
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bapo.algorithm.losses import LossInputs, ValueInputs
from bapo.algorithm.rollouts import Group, Prompt
from bapo.engines.shared.records import BY_ORIGIN
from bapo.errors import UserError
from bapo.methods import Batch, Method
from bapo.store import columns

#: the metrics of a loss that are recorded, and the names that the engines and the record take for their own
OF_LOSSES = {"clipped", "clip_fraction", "kl", "value_clip_fraction"}
TAKEN = {name.replace("_xN", f"_x{i}") for name in columns.STEP.keys() - columns.OF_METHODS for i in (1, 2, 3)}
TAKEN |= {f"{name}_x{i}" for name in BY_ORIGIN for i in (1, 2, 3)}


def checked(method: Method) -> Method:
    """Return the method, whose hooks from now on raise UserError for an answer that no engine can use."""
    for name, fault_of in FAULTS.items():
        setattr(method, name, _checked(method, name, getattr(method, name), fault_of))
    return method


def _checked(method: Method, name: str, hook: Callable[..., Any], fault_of: Callable[..., str | None]) -> Any:
    @wraps(hook)
    def call(*arguments: Any) -> Any:
        answer = hook(*arguments)
        if fault := fault_of(method, answer, *arguments):
            file = method.config.algorithm.partition(":")[0]
            raise UserError(f"{file}: {type(method).__name__}.{name} returned {fault}")
        return answer

    return call


def _said(value: object) -> str:
    if isinstance(value, np.ndarray | Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value) if value is None or isinstance(value, Real | str) else f"a {type(value).__name__}"


def _one_of(*kinds: type) -> Callable[..., str | None]:
    def fault_of(method: Method, answer: object, *_: object) -> str | None:
        value = answer.item() if isinstance(answer, np.generic) else answer
        must = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        return None if isinstance(value, kinds) else f"{_said(answer)}, must be {must}"

    return fault_of


def _sync(method: Method, answer: object, step: int) -> str | None:
    if (
        answer is not None and not answer and not method.delays_rollout_policy
    ):  # no engine holds a second set of weights
        return f"{answer} at step {step}, must be True where delays_rollout_policy is False"
    return _one_of(bool)(method, answer)


def _prompts(method: Method, answer: object, *_: object) -> str | None:
    whole = isinstance(answer, list) and answer and all(isinstance(p, Prompt) for p in answer)
    return None if whole else f"{_said(answer)}, must be a list of one Prompt or more"


def _batch(method: Method, answer: object, step: int, *_: object) -> str | None:
    if not isinstance(answer, Batch):
        return f"{_said(answer)}, must be a Batch"
    if not (isinstance(answer.groups, list) and all(isinstance(g, Group) for g in answer.groups)):
        return f"groups={_said(answer.groups)}, must be a list of Group"
    for pair in answer.rejected:
        if not (isinstance(pair, tuple) and [Group, str] == [*map(type, pair)]):
            return f"rejected with {_said(pair)}, must hold tuples (Group, reason)"
    if step == 1:
        if missing := [name for name in method.saved if not hasattr(method, name)]:
            return f"without the attribute '{missing[0]}', which `saved` names"
        method.state()  # what a checkpoint could not hold is told now, not after hours
    if fault := _one_of(int)(method, answer.phase):
        return f"phase={fault}"
    return _metrics(answer.metrics, TAKEN, Real)


def _metrics(metrics: Mapping[str, object], taken: set[str], kind: type) -> str | None:
    for name, value in metrics.items():
        if name in taken:
            return f"the metric '{name}', which is a column of steps.parquet or a number of the engine's; rename it"
        if not isinstance(value, kind) or (isinstance(value, Tensor) and value.ndim):
            return f"the metric {name}={_said(value)}, must be one number{' in a tensor' * (kind is Tensor)}"
    return None


def _advantages(method: Method, answer: object, group: Group) -> str | None:
    size, longest = group.size, int(group.samples.lengths.max())
    if not isinstance(answer, np.ndarray) or answer.dtype.kind not in "fiu":
        return f"{_said(answer)}, must be an array of numbers [{size}]"
    if not (answer.shape == (size,) or (answer.ndim == 2 and len(answer) == size and answer.shape[1] >= longest)):
        return f"{_said(answer)}, must be [{size}], or [{size}, {longest}] with a number for each token"
    return None if np.isfinite(answer).all() else f"{answer.tolist()} for prompt {group.prompt.id}, must be finite"


def _second_part(method: Method, answer: object, group: Group) -> str | None:
    fits = isinstance(answer, np.ndarray) and answer.dtype == bool and answer.shape == (group.size,)
    return None if fits else f"{_said(answer)}, must be bool [{group.size}]"


def _loss(method: Method, answer: object, inputs: LossInputs | ValueInputs, rows: tuple[str, ...] = ()) -> str | None:
    """rows: the metrics that have a number for each row."""
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        return f"{_said(answer)}, must be a tuple (loss, metrics)"
    loss, metrics = answer
    if not isinstance(loss, Tensor) or loss.ndim or (torch.is_grad_enabled() and not loss.requires_grad):
        bare = isinstance(loss, Tensor) and not loss.ndim
        return f"the loss {_said(loss)}{' without a gradient' * bare}, must be a tensor [] with a gradient"
    shape = inputs.mask.shape[:1]
    for name in rows:
        if not isinstance(metrics.get(name), Tensor) or metrics[name].shape != shape:
            return f"the metric {name}={_said(metrics.get(name))}, must be a tensor {list(shape)}"
    return _metrics({k: v for k, v in metrics.items() if k not in rows}, TAKEN - OF_LOSSES, Tensor)


def _state(method: Method, answer: tuple[dict[str, object], object]) -> str | None:
    for name, value in answer[0].items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            return f"{name}={_said(value)}, must be plain data that JSON can hold ({error})"
    return None


FAULTS: dict[str, Callable[..., str | None]] = {
    "draw_prompts": _prompts,
    "syncs_rollout_policy": _sync,
    "rollout_budget": _one_of(int, type(None)),
    "build_batch": _batch,
    "advantages": _advantages,
    "second_part": _second_part,
    "separate": _one_of(int),
    "passes": _one_of(int),
    "resets_reference": _one_of(bool),
    "trains_policy": _one_of(bool),
    "loss": partial(_loss, rows=("clipped",)),
    "value_loss": _loss,
    "state": _state,
}
