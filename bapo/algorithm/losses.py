"""Policy losses as pure functions of tensors; the torch engine calls them, the verl engine registers them with verl.

They use the tensors' own methods, so a method is read without torch, whose import takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

#: verl clamps the log-ratio before the exponential.
LOG_RATIO_LIMIT = 20.0


@dataclass
class LossInputs:
    """Holds one mini-batch of N sequences of T response tokens.

    logprobs: [N, T], of the current policy, with the gradient
    behaviour_logprobs: [N, T], of the policy that sampled the tokens: alpha for fresh groups, alpha_B for replayed ones
    advantages: [N], or [N, T] where each token has its own
    mask: [N, T], 1 on response tokens
    second_part: bool [N], ``Method.second_part``, True for sequences that the loss treats apart
    weights: [N], factors of each sequence's loss
    reference_logprobs: [N, T], of the reference policy, if the method needs them
    step_logprobs: [N, T], of the policy at the start of this step (pi_k), if the method needs them;
        ``Group.step_logprobs`` if it keeps them
    entropy: [N, T], the current policy's
    step: the training step, for terms that change with it
    phase: ``Batch.phase`` of the step
    recorded: bool [N], the sequences that metrics cover, None for all

    The following divide the means where the rows are only part of the mini-batch, or the mini-batch is not full:

    nominal_sequences, nominal_tokens: for all rows
    part_sequences, part_tokens: for (others, second part)
    """

    logprobs: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor
    mask: Tensor
    second_part: Tensor
    weights: Tensor
    reference_logprobs: Tensor | None = None
    step_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    step: int = 0
    phase: int = 0
    recorded: Tensor | None = None
    nominal_sequences: int | None = None
    nominal_tokens: int | None = None
    part_sequences: tuple[int, int] | None = None
    part_tokens: tuple[int, int] | None = None

    @property
    def recorded_mask(self) -> Tensor:
        """Return the mask [N, T] of the tokens that metrics cover."""
        return self.mask if self.recorded is None else self.mask * self.recorded[:, None].to(self.mask.dtype)


@dataclass
class ValueInputs:
    """Holds one mini-batch for the critic, all [N, T].

    values carry the gradient, old_values and returns date from the start of the step, mask is 1 on response tokens. The
    denominators are those of :class:`LossInputs`.
    """

    values: Tensor
    old_values: Tensor
    returns: Tensor
    mask: Tensor
    nominal_sequences: int | None = None
    nominal_tokens: int | None = None


def importance_ratio(logprobs: Tensor, behaviour_logprobs: Tensor) -> Tensor:
    """Return rho = pi_theta / alpha for each token (paper, below eq. 3), its log clamped to +-20 as in verl."""
    return (logprobs - behaviour_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def sequence_weights(step_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor, kind: str, cap: float) -> Tensor:
    """Return w(y) = pi_k(y) / alpha(y) of whole responses [N]: "truncate", min(w, cap); "mask", 0 where w > cap.

    Sequence-level truncated and masked importance sampling (Liu et al., richardli.xyz/rl-collapse; verl's
    ``rollout_corr_helper``), the log clamped at 20 as in verl.

    Args:
        step_logprobs: [N, T], of pi_k
        behaviour_logprobs: [N, T], of alpha
        mask: [N, T], 1 on response tokens
        kind: "truncate" or "mask"
        cap: the largest weight
    """
    log = ((step_logprobs - behaviour_logprobs) * mask).sum(1)
    weights = log.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return weights.clamp(max=cap) if kind == "truncate" else weights.masked_fill(weights > cap, 0.0)


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float = 0.0, centre: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return -min(rho A, clip(rho) A) for each token (eq. 1), and whether the clip was active.

    Without ``centre`` the interval is [1 - low, 1 + high]; with it, [max(centre - low, 0), centre + high] (Mroueh et
    al. 2505.22257; there centre = pi_k / alpha).

    Args:
        ratio: rho [N, T]
        advantages: A, [N, 1] or [N, T]
        low, high: the distances of the interval's ends from its centre
        dual: above 1 bounds the loss at -dual * A for negative advantages (dual-clip PPO, Ye et al. 2020; verl's
            c = 3); 0 is off
        centre: [N, T], of the interval
    """
    lower = ratio.new_full(ratio.shape, 1.0 - low) if centre is None else (centre - low).clamp(min=0.0)
    upper = ratio.new_full(ratio.shape, 1.0 + high) if centre is None else centre + high
    unclipped, clipped = -advantages * ratio, -advantages * ratio.maximum(lower).minimum(upper)
    loss = unclipped.maximum(clipped)
    active = (clipped > unclipped).float()
    if dual > 1.0:
        loss = loss.minimum(-advantages * dual).where(advantages < 0, loss)
    return loss, active


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return half the squared error of each value, and whether the clip was active; all [N, T].

    As in verl's ``compute_value_loss`` before its mean: the worse of the value and the value clipped to
    old_values +- clip, so that a step cannot profit from moving further.

    Args:
        values: [N, T], the critic's, with the gradient
        old_values: [N, T], the critic's at the start of the step
        returns: [N, T], what the values are trained towards
        clip: how far a value may move from the old one; 0 is off
    """
    error = (values - returns) ** 2
    if not clip:
        return 0.5 * error, error.new_zeros(error.shape)
    near = values.minimum(old_values + clip).maximum(old_values - clip)
    clipped = (near - returns) ** 2
    return 0.5 * error.maximum(clipped), (clipped > error).float()


def low_variance_kl(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """Estimate KL(pi_theta || other) per token by k3: exp(d) - d - 1, d = log other - log pi (verl "low_var_kl")."""
    d = (other_logprobs - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (d.exp() - d - 1.0).clamp(-10.0, 10.0)


def aggregate(
    values: Tensor, mask: Tensor, kind: str, nominal_sequences: int | None = None, nominal_tokens: int | None = None
) -> Tensor:
    """Reduce [N, T] values to one number.

    Args:
        values: [N, T]
        mask: [N, T], 1 where a value counts
        kind: "sequence-mean", the mean over sequences of their token means (eq. 1), or "token-mean", the mean over all
            tokens (DAPO)
        nominal_sequences: divides the sum over sequences, if set, so that a partial mini-batch weighs by its share
            (as in verl's seq-mean)
        nominal_tokens: divides the sum over tokens, if set
    """
    if kind == "token-mean":
        return (values * mask).sum() / (nominal_tokens or mask.sum().clamp(min=1.0))
    means = (values * mask).sum(1) / mask.sum(1).clamp(min=1.0)
    return means.sum() / (nominal_sequences or len(means))


def sum_of_parts(values: Tensor, inputs: LossInputs, kind: str, weights: tuple[float, float]) -> Tensor:
    """Reduce [N, T] to the weighted sum of two means, over the first and over the second part of the sequences.

    The denominators are ``part_sequences`` and ``part_tokens`` where set; a part without rows adds nothing.

    Args:
        values: [N, T], of each token
        inputs: have the second part, the mask and the denominators
        kind: as for :func:`aggregate`
        weights: of the first and of the second mean
    """
    parts = []
    for part, weight in enumerate(weights):
        rows = inputs.second_part if part else ~inputs.second_part
        if bool(rows.any()):
            sequences = inputs.part_sequences[part] if inputs.part_sequences else None
            tokens = inputs.part_tokens[part] if inputs.part_tokens else None
            parts.append(weight * aggregate(values[rows], inputs.mask[rows], kind, sequences, tokens))
    return sum(parts[1:], parts[0])
