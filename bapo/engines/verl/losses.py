"""The method's loss inside verl: registered as the policy loss ``bapo``, called with verl's mini-batches.

verl's own ``ppo_loss`` hands a policy loss neither the stored behaviour log-probabilities beside pi_k nor the origin of
a row, so :func:`loss_function` takes its place (``set_loss_fn``, verl's interface for this) and hands over both.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn, register_policy_loss
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import ORIGINS

if TYPE_CHECKING:
    from collections.abc import Callable

    from bapo.methods import Method

#: name in ``actor_rollout_ref.actor.policy_loss.loss_mode``
NAME = "bapo"
#: field of a row in TransferQueue: what it is (see ``batches.Layout``) and the denominators of its mini-batch
LAYOUT = "bapo_layout"
#: its columns; origin as in ``batches.numbers_of``, or -1 for a padding row; weight and replayed (0 or 1) are the row's
#: own, the rest the same for all rows of a mini-batch
_COLUMNS = (
    "origin weight replayed step nominal_sequences fresh_sequences replayed_sequences fresh_tokens replayed_tokens "
    "token_advantages phase"
)
COLUMNS = _COLUMNS.split()
#: 1 where each token has an advantage of its own
TOKEN_ADVANTAGES = COLUMNS.index("token_advantages")


def recorded(layout: Tensor) -> Tensor | None:
    """Return [N]: the rows that the metrics are about, no expert's and none replayed among fresh ones; None: all."""
    rows = layout[:, 0] != len(ORIGINS)
    return None if bool(rows.all()) else rows


def counts_of(layout: Tensor) -> dict[str, int]:
    """Return what the rows [N, 11] share: the step, the denominators of their mini-batch, the method's phase."""
    return {name: int(value) for name, value in zip(COLUMNS[3:], layout[0, 3:].tolist(), strict=True)}


@register_policy_loss(NAME)
def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    *,
    method: Method,
    layout: Tensor,
    behaviour_log_prob: Tensor,
    reference_log_prob: Tensor | None = None,
    entropy: Tensor | None = None,
    dp_size: int = 1,
) -> tuple[Tensor, dict[str, Tensor]]:
    """``method.loss`` in verl's signature; all [N, T], ``layout`` [N, 11].

    The method's own aggregation applies, not ``loss_agg_mode``. The result is multiplied by ``dp_size`` because FSDP
    averages gradients over the ranks while every denominator counts the whole mini-batch.
    """
    mask = response_mask.to(log_prob.dtype)
    counts = counts_of(layout)
    weights = layout[:, 1].to(log_prob.dtype)
    loss, metrics = method.loss(
        LossInputs(
            logprobs=log_prob,
            behaviour_logprobs=behaviour_log_prob,
            advantages=advantages if method.uses_critic or counts["token_advantages"] else advantages[:, 0],
            mask=mask,
            replayed=layout[:, 2] != 0,
            reference_logprobs=reference_log_prob,
            step_logprobs=old_log_prob if method.needs_step_policy else None,
            entropy=entropy,
            weights=None if bool((weights == 1).all()) else weights,
            step=counts["step"],
            phase=counts["phase"],
            recorded=recorded(layout),
            nominal_sequences=counts["nominal_sequences"],
            nominal_tokens=counts["fresh_tokens"] + counts["replayed_tokens"],
            part_sequences=(counts["fresh_sequences"], counts["replayed_sequences"]),
            part_tokens=(counts["fresh_tokens"], counts["replayed_tokens"]),
        )
    )
    return loss * dp_size, metrics


def loss_function(
    model_output: Any, data: Any, dp_group: Any = None, *, method: Method, recomputes: bool = False
) -> tuple[Tensor, dict[str, Any]]:
    """verl's loss function of one micro-batch: ``model_output`` holds log_probs and entropy, ``data`` the rows.

    recomputes: fresh rows are compared with verl's own log-probabilities, not with the rollout engine's.

    The metrics are sums over the mini-batch (``*_sum``) and their weights, so that means stay exact however verl cuts
    it into micro-batches and ranks.
    """
    log_prob = no_padding_2_padding(model_output["log_probs"], data)
    entropy = None  # recorded also where the loss has no use for it
    if model_output.get("entropy", None) is not None:
        entropy = no_padding_2_padding(model_output["entropy"], data)
    fields = ["response_mask", "old_log_probs", "rollout_log_probs", "advantages", LAYOUT]
    fields += ["ref_log_prob"] if method.needs_reference else []
    rows = data.select(*fields).to_padded_tensor()
    behaviour = rows["rollout_log_probs"]
    if recomputes:
        behaviour = torch.where(rows[LAYOUT][:, 2:3] != 0, behaviour, rows["old_log_probs"])
    loss, metrics = get_policy_loss_fn(NAME)(
        old_log_prob=rows["old_log_probs"],
        log_prob=log_prob,
        advantages=rows["advantages"],
        response_mask=rows["response_mask"],
        method=method,
        layout=rows[LAYOUT],
        behaviour_log_prob=behaviour,
        reference_log_prob=rows.get("ref_log_prob", None),
        entropy=entropy,
        dp_size=data["dp_size"],
    )
    mask = rows["response_mask"].to(log_prob.dtype)
    on_record = recorded(rows[LAYOUT])
    shown = mask if on_record is None else mask * on_record[:, None].to(mask.dtype)
    tokens = shown.sum()
    sums = {"loss": loss.detach(), "tokens": tokens, **{f"{name}_sum": v * tokens for name, v in metrics.items()}}
    if entropy is not None:
        sums["entropy_sum"] = (entropy.detach() * shown).sum()
    of_tokens = method.uses_critic or bool(rows[LAYOUT][0, TOKEN_ADVANTAGES])
    judged = None if of_tokens else rows["advantages"]
    sums |= _divergence(log_prob.detach(), behaviour, mask, rows[LAYOUT][:, 0], judged)
    return loss, {f"bapo/{n}": Metric(value=float(v), aggregation=AggregationType.SUM) for n, v in sums.items()}


def _divergence(
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


def for_method(method: Method, recomputes: bool = False) -> Callable[..., tuple[Tensor, dict[str, Any]]]:
    return partial(loss_function, method=method, recomputes=recomputes)
