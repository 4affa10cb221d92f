"""The critic: a value model with its optimiser, its estimates of a batch and its updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from bapo.algorithm.advantages import explained_variance
from bapo.algorithm.losses import ValueInputs
from bapo.algorithm.rollouts import Estimates, Group
from bapo.engines.shared import models, shortcut
from bapo.engines.shared.batch_tensors import Rows, by_group
from bapo.engines.shared.loss_inputs import denominators
from bapo.engines.torch.trained_model import MetricMeans, TrainedModel
from bapo.experiments.schema import Config
from bapo.methods import Method
from bapo.methods.ppo import PPOConfig


def with_value_head(model: PreTrainedModel) -> PreTrainedModel:
    """Return the causal model with its vocabulary head replaced by one output, which is 0 until it is trained.

    Starting at 0 needs no random numbers, and the first advantages are the rewards' own.
    """
    weight = model.get_output_embeddings().weight
    head = torch.nn.Linear(weight.shape[1], 1, device=weight.device, dtype=weight.dtype)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    model.config.tie_word_embeddings = False  # the new head is nobody's twin
    model.set_output_embeddings(head)
    return model


def values_of(model: PreTrainedModel, rows: Rows) -> Tensor:
    """Return the value [N, T] of the state before each response token; float32."""
    fast = shortcut("scoring", model)
    if fast is not None:
        return fast.values(model, rows.ids, rows.starts, rows.lengths, rows.width, rows.images)
    inputs = models.inputs(model, rows.ids[:, :-1], rows.starts, rows.images)
    outputs = model(**inputs, use_cache=False).logits[..., 0].float()
    positions = rows.starts[:, None] - 1 + torch.arange(rows.width, device=rows.ids.device)
    return outputs.gather(1, positions.clamp(max=outputs.shape[1] - 1))


class Critic(TrainedModel):
    """Trains the value model, and estimates with it."""

    def __init__(self, model: PreTrainedModel, config: Config, method: Method) -> None:
        assert isinstance(method.config, PPOConfig)
        super().__init__(with_value_head(model), config, method, method.config.critic_rate_ratio)

    def estimated(self, groups: list[Group], metrics: MetricMeans) -> list[Group]:
        """Return copies of the groups of a whole batch with the critic's ``estimates`` of every token."""
        lengths = np.concatenate([g.samples.lengths for g in groups])
        width = int(lengths.max())
        blocks = by_group(groups, self.micro_batches(groups), lambda rows: values_of(self.model, rows))
        values = np.concatenate([np.pad(v[:, :width], ((0, 0), (0, max(0, width - v.shape[1])))) for v in blocks])
        mask = (np.arange(width) < lengths[:, None]).astype(np.float32)
        rewards = np.zeros_like(values)
        rewards[np.arange(len(lengths)), lengths - 1] = np.concatenate([g.rewards for g in groups])
        advantages, returns = self.method.token_advantages(rewards, values, mask)
        metrics.add("explained_variance", explained_variance(values, returns, mask))
        edges = np.cumsum([g.size for g in groups])[:-1]
        parts = zip(*(np.split(array, edges) for array in (values, returns, advantages)), strict=True)
        return [replace(group, estimates=Estimates(*part)) for group, part in zip(groups, parts, strict=True)]

    def update(self, step: int, groups: Sequence[Group], metrics: MetricMeans) -> int:
        """Take one update on a mini-batch of groups with ``estimates``. Returns the tokens that it was trained on."""
        estimates = [e for g in groups if (e := g.estimates) is not None]
        counts = denominators(self.train, groups, [g.replayed for g in groups])
        self.optimizer.zero_grad(set_to_none=True)
        tokens, total = 0, 0.0
        for rows in self.micro_batches(groups):
            mask = rows.mask
            loss, parts = self.method.value_loss(
                ValueInputs(
                    values=values_of(self.model, rows),
                    old_values=rows.gather([e.values for e in estimates]),
                    returns=rows.gather([e.returns for e in estimates]),
                    mask=mask,
                    nominal_sequences=counts.nominal_sequences,
                    nominal_tokens=counts.nominal_tokens,
                )
            )
            loss.backward()
            tokens += rows.tokens
            total += float(loss.detach())
            for name, value in parts.items():
                metrics.add(name, float(value), float(mask.sum()))
        norm = self._step(f"step {step}: the critic's gradient", "lower method.critic_rate_ratio")
        metrics.add("value_loss", total)
        metrics.add("critic_gradient_norm", norm)
        return tokens
