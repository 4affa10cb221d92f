"""The inputs of a loss that come from the method rather than a model, and what is recorded of each response.

Each engine cuts a mini-batch into rows in its own way; this module says for both what the rows mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bapo.algorithm.losses import LOG_RATIO_LIMIT, LossInputs
from bapo.algorithm.rollouts import ORIGINS, Group
from bapo.experiments.schema import TrainConfig


@dataclass(frozen=True)
class Denominators:
    """Holds what the losses of a mini-batch divide by; the fields are those of ``LossInputs``.

    nominal_sequences, nominal_tokens: counts of all rows; a mini-batch that is not full may count as a full one
    part_sequences, part_tokens: counts of the (first, second) part of the rows
    """

    nominal_sequences: int
    nominal_tokens: int
    part_sequences: tuple[int, int]
    part_tokens: tuple[int, int]


def denominators(train: TrainConfig, groups: Sequence[Group], second_parts: Sequence[np.ndarray]) -> Denominators:
    """Count what the losses of a mini-batch divide by. second_parts: ``Method.second_part`` of each group."""
    lengths, second = np.concatenate([g.samples.lengths for g in groups]), np.concatenate(second_parts)
    nominal = train.mini_batch_size * train.group_size if train.underfilled == "fewer-updates" else len(lengths)
    return Denominators(
        nominal_sequences=nominal,
        nominal_tokens=int(lengths.sum()),
        part_sequences=(int((~second).sum()), int(second.sum())),
        part_tokens=(int(lengths[~second].sum()), int(lengths[second].sum())),
    )


def origin_numbers(group: Group) -> np.ndarray:
    """Return the index of each response's origin in ORIGINS, or len(ORIGINS); int64 [G].

    The latter stands for an expert's response, and for another policy's among fresh ones. These are not recorded.
    """
    number = ORIGINS.index(group.origin) if group.origin in ORIGINS else len(ORIGINS)
    numbers = np.full(group.size, number)
    if group.off_policy is not None:
        numbers[group.off_policy] = len(ORIGINS)
    return numbers


@dataclass(frozen=True)
class RowMarks:
    """Holds what a method says of N rows and of their mini-batch.

    origins: [N], as :func:`origin_numbers` gives them, or -1 for a row of padding
    weights: float32 [N], factors of each response's loss
    second_part: bool [N], ``Method.second_part``
    step, phase: the training step, and ``Batch.phase``
    denominators: of the whole mini-batch
    """

    origins: Tensor
    weights: Tensor
    second_part: Tensor
    step: int
    phase: int
    denominators: Denominators

    def inputs(self, mask: Tensor, **tensors: Any) -> LossInputs:
        """Return the inputs of the loss. mask, tensors: its fields [N] and [N, T] that an engine has computed."""
        return LossInputs(
            mask=mask,
            second_part=self.second_part,
            weights=self.weights,
            step=self.step,
            phase=self.phase,
            recorded=(self.origins != len(ORIGINS)).to(mask.device),
            **vars(self.denominators),
            **tensors,
        )


@torch.no_grad()
def terms_by_origin(inputs: LossInputs, origins: Tensor, clipped: Tensor) -> dict[str, Tensor]:
    """Return what is recorded of whole responses: for the n responses of each origin float32 [n] on the CPU.

    The names are NAME_x1 to NAME_x3, with these NAMEs:

    - tv: 1/2 |pi/alpha - 1|, whose mean estimates TV(pi_theta, alpha_i) (biased low for rare tails)
    - ratio, ratio_squared: pi/alpha and its square
    - clipped: the share of tokens at which a clip was active
    - surrogate: pi/alpha A of eq. 22; clipped_upper, clipped_lower: ``clipped`` of responses with a positive advantage,
      which a clip from above meets, and with a negative one, from below. No advantage of single tokens has these three.

    origins: [N], as in :class:`RowMarks`. clipped: float [N], of ``Method.loss``.
    """
    log_ratio = ((inputs.logprobs - inputs.behaviour_logprobs) * inputs.mask).sum(1)
    ratio = torch.exp(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    terms = {"tv": 0.5 * (ratio - 1).abs(), "clipped": clipped, "ratio": ratio, "ratio_squared": ratio.square()}
    if inputs.advantages.ndim == 1:
        positive, negative = inputs.advantages > 0, inputs.advantages < 0
        terms["surrogate"] = ratio * inputs.advantages
        terms |= {"clipped_upper": clipped * positive, "clipped_lower": clipped * negative}
    table, numbers = torch.stack([*terms.values()]).cpu(), origins.cpu()  # one wait for a GPU
    return {
        f"{name}_x{number + 1}": values[numbers == number]
        for name, values in zip(terms, table, strict=True)
        for number in range(len(ORIGINS))
    }
