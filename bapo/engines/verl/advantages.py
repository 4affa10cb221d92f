"""The method's advantages inside verl: registered as the estimator ``bapo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from bapo.rollouts import Group, Prompt

if TYPE_CHECKING:
    from bapo.methods import Method

#: name in ``algorithm.adv_estimator``
NAME = "bapo"
_current: list[Method] = []


def use(method: Method) -> None:
    """The method whose advantages the estimator computes in this process: verl's configuration holds no objects."""
    _current[:] = [method]


@register_adv_est(NAME)
def estimate(
    token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, config: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """verl's signature. token_level_rewards, response_mask [N, T]; index [N]: the group of each row.

    Returns the advantages [N, T] (zero behind the end) twice: there are no other returns.
    """
    rewards = (token_level_rewards * response_mask).sum(-1).float().cpu().numpy()
    values = np.zeros(len(rewards), dtype=np.float32)
    for name in dict.fromkeys(index.tolist()):
        rows = np.flatnonzero(index == name)
        values[rows] = _current[0].advantages(Group(Prompt(str(name)), rewards[rows], step=0, version=0))
    advantages = torch.from_numpy(values).to(response_mask.device)[:, None] * response_mask
    return advantages, advantages
