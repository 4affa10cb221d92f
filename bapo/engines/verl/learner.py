"""The method's loss and learning rate inside verl's training workers, and what they record.

verl's ``ppo_loss`` passes on neither the stored behaviour log-probabilities beside pi_k nor the origin of a row, so
:func:`policy_loss` takes its place, by verl's ``set_loss_fn``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from bapo.engines.shared.loss_inputs import terms_by_origin
from bapo.engines.shared.schedule import learning_rate
from bapo.engines.verl.batch_layout import LAYOUT, has_token_advantages, marks_of
from bapo.methods import Method
from bapo.store.files import Json


def warm_up(optimizer: torch.optim.Optimizer, full: float, updates: int) -> None:
    """Raise the learning rate over the first updates, as the torch engine does; verl's schedule changes once a step.

    The optimiser itself counts the updates, so that its checkpoint holds their number.
    """

    def before_step(*_: object) -> None:
        state: Json = next(iter(optimizer.state.values()), {})
        previous_updates = int(state["step"]) if "step" in state else 0
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(full, updates, previous_updates + 1)

    optimizer.register_step_pre_hook(before_step)


def policy_loss(
    model_output: Json, data: TensorDict, dp_group: object = None, *, method: Method
) -> tuple[Tensor, dict[str, Metric]]:
    """Return (loss, metrics) of one micro-batch.

    The loss is multiplied by the number of ranks because FSDP averages gradients over them, while every denominator
    counts the whole mini-batch. The metrics are sums (``*_sum``) and numbers (``*_count``) over the mini-batch, so that
    means stay exact however verl cuts it into micro-batches and ranks.

    Args:
        model_output: holds ``log_probs``, and ``entropy`` where verl computes it
        data: the rows
        dp_group: of verl's interface, not read
        method: of the run
    """
    log_prob = no_padding_2_padding(model_output["log_probs"], data)
    entropy = None if model_output.get("entropy") is None else no_padding_2_padding(model_output["entropy"], data)
    fields = ["response_mask", "old_log_probs", "rollout_log_probs", "advantages", LAYOUT]
    rows = data.select(*fields, *(["ref_log_prob"] if method.needs_reference else [])).to_padded_tensor()
    marks, advantages = marks_of(rows[LAYOUT]), rows["advantages"]
    per_token = method.uses_critic or has_token_advantages(rows[LAYOUT])
    inputs = marks.inputs(
        logprobs=log_prob,
        behaviour_logprobs=rows["rollout_log_probs"],
        advantages=advantages if per_token else advantages[:, 0],
        mask=rows["response_mask"].to(log_prob.dtype),
        entropy=entropy,
        reference_logprobs=rows.get("ref_log_prob", None),
        step_logprobs=rows["old_log_probs"] if method.needs_step_policy or method.keeps_step_logprobs else None,
    )
    loss, metrics = method.loss(inputs)
    clipped = metrics.pop("clipped")
    loss = loss * data["dp_size"]
    mask = inputs.recorded_mask
    tokens = mask.sum()
    sums = {"loss": loss.detach(), **over_tokens(metrics, tokens)}
    if entropy is not None:
        sums |= {"entropy_sum": (entropy.detach() * mask).sum(), "entropy_count": tokens}
    return loss, summed(sums) | terms_of_responses(terms_by_origin(inputs, marks.origins, clipped))


def over_tokens(metrics: Mapping[str, Tensor], tokens: Tensor) -> dict[str, Tensor]:
    """Return NAME_sum and NAME_count of metrics that are means over ``tokens`` [] tokens; without a token both are 0.

    verl takes the extreme over mini-batches where a name contains "max" or "min", so every m is written "m~".
    """
    sums = dict[str, Tensor]()
    for name, mean in metrics.items():
        key = name.replace("m", "m~")
        sums |= {f"{key}_sum": mean * tokens if tokens else tokens, f"{key}_count": tokens}
    return sums


def summed(sums: Mapping[str, Tensor]) -> dict[str, Metric]:
    """Return metrics that verl adds up over micro-batches and ranks."""
    return {f"bapo/{n}": Metric(value=float(v), aggregation=AggregationType.SUM) for n, v in sums.items()}


def terms_of_responses(terms: Mapping[str, Tensor]) -> dict[str, Metric]:
    """Return the sum and the number of the terms of each origin, and its largest ratio, which is 0 without a response.

    verl takes the maximum over micro-batches and ranks because of the kind of metric, and over mini-batches because of
    "max" in its name. terms: as from ``terms_by_origin``.
    """
    sums = {f"{name}_sum": values.sum() for name, values in terms.items()}
    counts = {f"{name}_count": torch.tensor(len(values)) for name, values in terms.items()}
    largest = {
        name.replace("ratio_", "bapo/ratio_max_"): Metric(
            value=float(values.max()) if len(values) else 0.0, aggregation=AggregationType.MAX
        )
        for name, values in terms.items()
        if name.startswith("ratio_x")
    }
    return summed(sums | counts) | largest
