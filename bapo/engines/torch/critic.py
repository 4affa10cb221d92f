"""The critic of the torch engine: values of prefixes, advantages of the batch, and its own updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from bapo.algorithm.advantages import explained_variance
from bapo.algorithm.losses import ValueInputs
from bapo.algorithm.rollouts import Group
from bapo.engines.fast import scoring as scoring_qwen2
from bapo.engines.shared import models
from bapo.engines.torch.learner import Rows, collate, learning_rate, micro_batches
from bapo.errors import UserError
from bapo.methods import Method


def with_value_head(model: Any) -> Any:
    """A causal model whose vocabulary head is replaced by one output, which is 0 until it is trained.

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


def values_of(model: Any, rows: Rows) -> Tensor:
    """The value [N, T] of the state before each response token; float32."""
    if scoring_qwen2.supports(model):
        return scoring_qwen2.values(model, rows.ids, rows.starts, rows.lengths, rows.width, rows.images)
    inputs = models.inputs(model, rows.ids[:, :-1], rows.starts, rows.images)
    outputs = model(**inputs, use_cache=False).logits[..., 0].float()
    positions = rows.starts[:, None] - 1 + torch.arange(rows.width, device=rows.ids.device)
    return outputs.gather(1, positions.clamp(max=outputs.shape[1] - 1))


@dataclass
class Judgement:
    """What the critic says of a batch before its update: [G, T] by id of the group."""

    values: dict[int, np.ndarray]
    returns: dict[int, np.ndarray]
    advantages: dict[int, np.ndarray]


class Critic:
    """Value model and optimiser. Micro-batches, warm-up and clipping of the gradient are the policy's."""

    def __init__(self, model: Any, pad: int, config: DictConfig, method: Method) -> None:
        self.model, self.pad, self.method, self.train = with_value_head(model), pad, method, config.train
        self.device = next(model.parameters()).device
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.rate = config.train.learning_rate * method.config.critic_rate_ratio
        t = config.train
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.rate, betas=tuple(t.betas), weight_decay=t.weight_decay, fused=True
        )

    @property
    def updates(self) -> int:
        """So far; the optimiser's own count, so that it is in its checkpoint."""
        state = self.optimizer.state.get(self.parameters[0], {})
        return int(state["step"]) if state else 0

    def step(self, groups: list[Group], parts: list[list[Group]], note: Any) -> tuple[dict[int, np.ndarray], int]:
        """Judge the batch, then one update on each of its mini-batches (``parts``).

        Returns the advantages [G, T] by id of the group, and the tokens that went through the model in one pass.
        """
        judged = self.judge(groups, note)
        tokens = sum(self._one_update(part, judged, note) for part in parts)
        return judged.advantages, tokens

    @torch.no_grad()
    def judge(self, groups: list[Group], note: Any) -> Judgement:
        index = [(g, i) for g, group in enumerate(groups) for i in range(group.size)]
        place = {pair: row for row, pair in enumerate(index)}
        lengths = np.concatenate([g.samples.lengths for g in groups])
        values = np.zeros((len(index), int(lengths.max())), dtype=np.float32)
        zeros = [np.zeros(g.size, dtype=np.float32) for g in groups]
        for micro in micro_batches(groups, index, self.train.micro_batch_size):
            rows = collate(groups, zeros, micro, self.pad, self.device)
            found = (values_of(self.model, rows) * rows.mask).cpu().numpy()
            values[[place[pair] for pair in micro], : rows.width] = found
        mask = (np.arange(values.shape[1]) < lengths[:, None]).astype(np.float32)
        rewards = np.zeros_like(values)
        rewards[np.arange(len(index)), lengths - 1] = np.concatenate([g.rewards for g in groups])
        advantages, returns = self.method.token_advantages(rewards, values, mask)
        note("explained_variance", explained_variance(values, returns, mask), 1.0)
        edges = np.cumsum([0, *(g.size for g in groups)])

        def by_group(array: np.ndarray) -> dict[int, np.ndarray]:
            return {id(g): array[edges[n] : edges[n + 1]] for n, g in enumerate(groups)}

        return Judgement(by_group(values), by_group(returns), by_group(advantages))

    def _one_update(self, groups: list[Group], judged: Judgement, note: Any) -> int:
        index = [(g, i) for g, group in enumerate(groups) for i in range(group.size)]
        nominal = self.train.mini_batch_size * self.train.group_size
        denominators = {
            "nominal_sequences": nominal if self.train.underfilled == "fewer-updates" else len(index),
            "nominal_tokens": int(sum(g.samples.lengths.sum() for g in groups)),
        }
        old, returns = [judged.values[id(g)] for g in groups], [judged.returns[id(g)] for g in groups]
        self.optimizer.zero_grad(set_to_none=True)
        tokens, total = 0, 0.0
        for micro in micro_batches(groups, index, self.train.micro_batch_size):
            rows = collate(groups, old, micro, self.pad, self.device)
            goals = collate(groups, returns, micro, self.pad, self.device).advantages
            mask = rows.mask
            loss, metrics = self.method.value_loss(
                ValueInputs(values_of(self.model, rows), rows.advantages, goals, mask, **denominators)
            )
            loss.backward()
            tokens += int((rows.starts + rows.lengths).sum())
            total += float(loss.detach())
            for name, value in metrics.items():
                note(name, float(value), float(mask.sum()))
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.train.grad_clip)
        update = self.updates + 1
        if not torch.isfinite(norm):
            raise UserError(
                f"the critic's gradient is not finite at its update {update}; lower method.critic_rate_ratio"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.rate, self.train.warmup_updates, update)
        self.optimizer.step()
        note("value_loss", total, 1.0)
        note("critic_gradient_norm", float(norm), 1.0)
        return tokens
