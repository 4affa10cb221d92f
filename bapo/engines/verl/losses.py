"""The method's loss inside verl's workers, called with verl's micro-batches.

verl's own ``ppo_loss`` hands on neither the stored behaviour log-probabilities beside pi_k nor the origin of a row, so
:func:`policy_loss` takes its place (``set_loss_fn``, verl's interface for this).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import ORIGINS
from bapo.engines.verl.batches import LAYOUT, counts_of, recorded
from bapo.methods import Method
from bapo.store.files import Json


def policy_loss(
    model_output: Json, data: TensorDict, dp_group: object = None, *, method: Method
) -> tuple[Tensor, dict[str, Metric]]:
    """Return (loss, metrics) of one micro-batch; ``model_output`` holds log_probs and entropy, ``data`` the rows.

    The loss is multiplied by the number of ranks because FSDP averages gradients over them, while every denominator
    counts the whole mini-batch. The metrics are sums over the mini-batch (``*_sum``) and their weights, so that means
    stay exact however verl cuts it into micro-batches and ranks.
    """
    log_prob = no_padding_2_padding(model_output["log_probs"], data)
    entropy = None  # recorded also where the loss has no use for it
    if model_output.get("entropy", None) is not None:
        entropy = no_padding_2_padding(model_output["entropy"], data)
    fields = ["response_mask", "old_log_probs", "rollout_log_probs", "advantages", LAYOUT]
    rows = data.select(*fields, *(["ref_log_prob"] if method.needs_reference else [])).to_padded_tensor()
    layout, advantages, behaviour = rows[LAYOUT], rows["advantages"], rows["rollout_log_probs"]
    mask, counts, weights = rows["response_mask"].to(log_prob.dtype), counts_of(layout), layout[:, 1].to(log_prob.dtype)
    per_token = method.uses_critic or counts["token_advantages"]
    on_record = recorded(layout)
    loss, metrics = method.loss(
        LossInputs(
            logprobs=log_prob,
            behaviour_logprobs=behaviour,
            advantages=advantages if per_token else advantages[:, 0],
            mask=mask,
            replayed=layout[:, 2] != 0,
            reference_logprobs=rows.get("ref_log_prob", None),
            step_logprobs=rows["old_log_probs"] if method.needs_step_policy else None,
            entropy=entropy,
            weights=None if bool((weights == 1).all()) else weights,
            step=counts["step"],
            phase=counts["phase"],
            recorded=on_record,
            nominal_sequences=counts["nominal_sequences"],
            nominal_tokens=counts["fresh_tokens"] + counts["replayed_tokens"],
            part_sequences=(counts["fresh_sequences"], counts["replayed_sequences"]),
            part_tokens=(counts["fresh_tokens"], counts["replayed_tokens"]),
        )
    )
    loss = loss * data["dp_size"]
    shown = mask if on_record is None else mask * on_record[:, None].to(mask.dtype)
    tokens = shown.sum()
    sums = {"loss": loss.detach(), "tokens": tokens, **{f"{name}_sum": v * tokens for name, v in metrics.items()}}
    if entropy is not None:
        sums["entropy_sum"] = (entropy.detach() * shown).sum()
    sums |= divergence(log_prob.detach(), behaviour, mask, layout[:, 0], None if per_token else advantages)
    return loss, summed(sums)


def summed(sums: Mapping[str, Tensor]) -> dict[str, Metric]:
    """Return metrics that verl adds up over micro-batches and ranks."""
    return {f"bapo/{n}": Metric(value=float(v), aggregation=AggregationType.SUM) for n, v in sums.items()}


def divergence(
    logprobs: Tensor, behaviour: Tensor, mask: Tensor, origin: Tensor, advantages: Tensor | None
) -> dict[str, Tensor]:
    """Return 1/2 |pi/alpha - 1| of whole sequences, summed by origin, as in the torch engine's ``tv_x1`` to ``tv_x3``.

    advantages [N, T]: the same on every token of a response; with them pi/alpha A too (``surrogate_x1`` to ``_x3``).
    """
    ratio = torch.exp(((logprobs - behaviour) * mask).sum(1).clamp(-20, 20))
    values = {"tv": 0.5 * (ratio - 1).abs()}
    if advantages is not None:
        values["surrogate"] = ratio * (advantages * mask).sum(1) / mask.sum(1).clamp(min=1)
    sums = {}
    for name, value in values.items():
        for number in range(len(ORIGINS)):
            chosen = origin == number
            sums[f"{name}_x{number + 1}_sum"] = value[chosen].sum()
            sums[f"{name}_x{number + 1}_count"] = chosen.sum()
    return sums
