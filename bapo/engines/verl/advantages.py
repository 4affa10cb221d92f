"""The method's advantages inside verl: registered as the estimator ``bapo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from bapo.engines.verl.losses import TOKEN_ADVANTAGES

if TYPE_CHECKING:
    from bapo.algorithm.rollouts import Group
    from bapo.engines.verl.batches import Layout
    from bapo.methods import Method

#: name in ``algorithm.adv_estimator``
NAME = "bapo"
_current: list[np.ndarray] = []


def of_rows(method: Method, parts: list[list[Group]], layout: Layout) -> np.ndarray:
    """Return the rows' advantages in verl's order, 0 for padding and behind the end.

    float32 [places], or [places, T] if the method has one for each token; the layout is told which.
    """
    by_group = [method.advantages(group) for part in parts for group in part]
    if by_group[0].ndim == 2:
        width = max(values.shape[1] for values in by_group)
        by_group = [np.pad(values, ((0, 0), (0, width - values.shape[1]))) for values in by_group]
    values = np.concatenate(by_group).astype(np.float32)
    padded = np.zeros((len(layout.order), *values.shape[1:]), dtype=np.float32)
    padded[: layout.rows] = values
    layout.columns[:, TOKEN_ADVANTAGES] = values.ndim == 2
    return padded[layout.order]


def use(values: np.ndarray) -> None:
    """Set the estimator's answer for the coming batch: a method knows more of its groups than verl's rows."""
    _current[:] = [values]


@register_adv_est(NAME)
def estimate(token_level_rewards: Tensor, response_mask: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    """verl's signature; both [N, T].

    Returns the advantages [N, T] (zero behind the end) twice: there are no other returns.
    """
    values = torch.from_numpy(_current[0]).to(response_mask.device)
    if len(values) != len(response_mask):
        raise ValueError(f"advantages of {len(values)} rows for a batch of {len(response_mask)}")
    if values.dim() == 1:
        values = values[:, None]
    else:
        length = response_mask.shape[1]
        values = torch.nn.functional.pad(values[:, :length], (0, max(0, length - values.shape[1])))
    advantages = values * response_mask
    return advantages, advantages
