"""The critic of the torch engine: values of prefixes, advantages of the batch, and its own updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from bapo.algorithm.advantages import explained_variance
from bapo.algorithm.losses import ValueInputs
from bapo.algorithm.rollouts import Group
from bapo.engines.shared import models
from bapo.engines.shared.rows import Rows, by_group, denominators
from bapo.engines.shared.shortcuts import shortcut
from bapo.engines.torch.learner import ByGroup, Note, Trained
from bapo.experiments.schema import Config
from bapo.methods import Method


def with_value_head(model: PreTrainedModel) -> PreTrainedModel:
    """Return the causal model with its vocabulary head replaced by one output, which is 0 until it is trained.

    Starting at 0 needs no random numbers, and the first advantages are the rewards' own.
    """
    weight = model.get_output_embeddings().weight
    head = torch.nn.Linear(weight.shape[1], 1, device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
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


@dataclass
class Judgement:
    """The critic's numbers for a batch before its update: [G, T] by id of the group."""

    values: ByGroup
    returns: ByGroup
    advantages: ByGroup


class Critic(Trained):
    """Value model and optimiser."""

    def __init__(self, model: PreTrainedModel, pad: int, config: Config, method: Method) -> None:
        super().__init__(with_value_head(model), pad, config, method, method.config.critic_rate_ratio)

    @property
    def updates(self) -> int:
        """Updates so far, as the optimiser counts them, so that they are in its checkpoint."""
        state = self.optimizer.state.get(self.parameters[0], {})
        return int(state["step"]) if state else 0

    def step(self, groups: list[Group], parts: list[list[Group]], note: Note) -> tuple[ByGroup, int]:
        """Judge the batch, then one update on each of its mini-batches (``parts``).

        Returns the advantages [G, T] by id of the group, and the tokens that went through the model in one pass.
        """
        judged = self.judge(groups, note)
        tokens = sum(self._one_update(part, judged, note) for part in parts)
        return judged.advantages, tokens

    def judge(self, groups: list[Group], note: Note) -> Judgement:
        lengths = np.concatenate([g.samples.lengths for g in groups])
        width = int(lengths.max())
        judged = by_group(groups, self.micro_batches(groups), lambda rows: values_of(self.model, rows))
        values = np.concatenate([np.pad(v[:, :width], ((0, 0), (0, max(0, width - v.shape[1])))) for v in judged])
        mask = (np.arange(width) < lengths[:, None]).astype(np.float32)
        rewards = np.zeros_like(values)
        rewards[np.arange(len(lengths)), lengths - 1] = np.concatenate([g.rewards for g in groups])
        advantages, returns = self.method.token_advantages(rewards, values, mask)
        note("explained_variance", explained_variance(values, returns, mask), 1.0)
        edges = np.cumsum([g.size for g in groups])[:-1]

        def split(array: np.ndarray) -> ByGroup:
            return {id(group): part for group, part in zip(groups, np.split(array, edges), strict=True)}

        return Judgement(split(values), split(returns), split(advantages))

    def _one_update(self, groups: list[Group], judged: Judgement, note: Note) -> int:
        counts = denominators(self.train, groups)
        old, returns = [judged.values[id(g)] for g in groups], [judged.returns[id(g)] for g in groups]
        self.optimizer.zero_grad(set_to_none=True)
        tokens, total = 0, 0.0
        for rows in self.micro_batches(groups):
            mask = rows.mask
            loss, metrics = self.method.value_loss(
                ValueInputs(
                    values=values_of(self.model, rows),
                    old_values=rows.gather(old),
                    returns=rows.gather(returns),
                    mask=mask,
                    nominal_sequences=counts["nominal_sequences"],
                    nominal_tokens=counts["nominal_tokens"],
                )
            )
            loss.backward()
            tokens += rows.tokens
            total += float(loss.detach())
            for name, value in metrics.items():
                note(name, float(value), float(mask.sum()))
        update, cure = self.updates + 1, "lower method.critic_rate_ratio"
        norm = self._step(update, f"the critic's gradient is not finite at its update {update}; {cure}")
        note("value_loss", total, 1.0)
        note("critic_gradient_norm", norm, 1.0)
        return tokens
