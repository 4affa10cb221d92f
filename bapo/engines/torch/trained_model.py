"""A model with its optimiser, and the means of what its updates report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from bapo.algorithm.rollouts import Group
from bapo.engines.shared.batch_tensors import Rows, micro_batches
from bapo.engines.shared.schedule import learning_rate
from bapo.errors import UserError
from bapo.experiments.schema import Config
from bapo.methods import Method


class MetricMeans:
    """Makes weighted means of the metrics of one step, by name."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = defaultdict(float)
        self.weights: dict[str, float] = defaultdict(float)

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        self.sums[name] += value * weight
        self.weights[name] += weight

    def means(self) -> dict[str, float]:
        return {name: total / self.weights[name] for name, total in self.sums.items() if self.weights[name]}


class TrainedModel:
    """Trains a model by its optimiser. Micro-batches, warm-up and clipping of the gradient are the configuration's.

    ``masters``: what the optimiser trains, by the names of the model's parameters: these, or float32 copies of narrower
    ones. A bfloat16 number has 8 bits of precision: a step of less than a 500th of a weight would be rounded away, and
    with a rate of 1e-6 nearly every step is. So the optimiser adds its steps to the copies (Micikevicius et al.
    1710.03740), which are rounded into the model after each; gradients are summed over micro-batches in float32, too.
    """

    def __init__(self, model: PreTrainedModel, config: Config, method: Method, rate_ratio: float = 1.0) -> None:
        self.model, self.method, self.train = model, method, config.train
        self.device = next(model.parameters()).device
        self.masters = masters_of(model)
        self.parameters = list(self.masters.values())
        self.copied = any(p.dtype != torch.float32 for p in model.parameters())
        t, self.rate = config.train, config.train.learning_rate * rate_ratio
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.rate, betas=(t.betas[0], t.betas[1]), weight_decay=t.weight_decay, fused=True
        )

    @property
    def updates(self) -> int:
        """Return the updates so far, as the optimiser counts them, so that they are in its checkpoint."""
        steps = [state["step"] for state in self.optimizer.state.values()]
        return int(torch.stack(steps).max()) if steps else 0

    def micro_batches(self, groups: Sequence[Group]) -> Iterator[Rows]:
        """Cut the responses of ``groups`` into what goes through the model at once."""
        return micro_batches(groups, self.train.micro_batch_size, self.device)

    def _step(self, what: str, cure: str) -> float:
        """Take the optimiser's step; returns the norm of the gradient. Raises UserError where that is not finite."""
        update, norm = self.updates + 1, torch.nn.utils.clip_grad_norm_(self.parameters, self.train.grad_clip)
        if not torch.isfinite(norm):
            raise UserError(f"{what} is not finite at update {update}; {cure}")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.rate, self.train.warmup_updates, update)
        self.optimizer.step()
        if self.copied:
            round_into(self.model, self.masters)
        return float(norm)


def masters_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return what an optimiser trains of ``model``, by the names of its parameters that want a gradient.

    A float32 parameter is its own; any other has a float32 copy, to which its gradients go as they arrive.
    """
    masters: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            masters[name] = parameter
            if parameter.dtype != torch.float32:
                masters[name] = parameter.detach().float()
                parameter.register_post_accumulate_grad_hook(partial(_hand_over, master=masters[name]))
    return masters


@torch.no_grad()
def round_into(model: PreTrainedModel, masters: dict[str, Tensor]) -> None:
    """Write the copies, rounded, into the parameters of ``model``."""
    for name, parameter in model.named_parameters():
        if name in masters and masters[name] is not parameter:
            parameter.copy_(masters[name])


def _hand_over(parameter: Tensor, master: Tensor) -> None:
    """Add the gradient of a micro-batch to the copy's, and forget it."""
    assert parameter.grad is not None
    gradient, parameter.grad = parameter.grad.float(), None
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
