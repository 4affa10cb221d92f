"""Policy updates on a batch of groups: advantages, mini-batches, loss, optimiser."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from bapo.algorithm.batch import mini_batches
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import ORIGINS, Group
from bapo.engines.shared import models
from bapo.engines.shared.images import Images
from bapo.errors import UserError
from bapo.methods import Method

if TYPE_CHECKING:
    from bapo.engines.torch.critic import Critic


@dataclass
class Rows:
    """N sequences as tensors. ids [N, L] prompt + response, right-padded; starts, lengths [N]; others [N, T] or [N].

    advantages: [N], or [N, T] where a critic gave one to each token; images: of each row's prompt, None where no prompt
    has any.
    """

    ids: Tensor
    starts: Tensor
    lengths: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor
    origins: list[str]
    images: list[Images | None] | None = None

    @property
    def width(self) -> int:
        return int(self.lengths.max())

    @property
    def mask(self) -> Tensor:
        return (torch.arange(self.width, device=self.ids.device) < self.lengths[:, None]).float()


def collate(
    groups: list[Group], advantages: list[np.ndarray], index: list[tuple[int, int]], pad: int, device: Any
) -> Rows:
    """The given (group, response) pairs as one padded block."""
    lengths = np.array([groups[g].samples.lengths[i] for g, i in index])
    starts = np.array([len(groups[g].prompt.row.tokens) for g, _ in index])
    width = int(lengths.max())
    ids = np.full((len(index), int((starts + lengths).max())), pad, dtype=np.int64)
    logprobs = np.zeros((len(index), width), dtype=np.float32)
    for row, (g, i) in enumerate(index):
        start, n, samples = starts[row], lengths[row], groups[g].samples
        ids[row, :start] = groups[g].prompt.row.tokens
        ids[row, start : start + n] = samples.tokens[i, :n]
        logprobs[row, :n] = samples.logprobs[i, :n]

    images = [groups[g].prompt.row.images for g, _ in index]
    chosen = np.zeros((len(index), width) if advantages[0].ndim == 2 else len(index), dtype=np.float32)
    for row, (g, i) in enumerate(index):
        if chosen.ndim == 2:
            chosen[row, : lengths[row]] = advantages[g][i, : lengths[row]]
        else:
            chosen[row] = advantages[g][i]

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Rows(
        tensor(ids),
        tensor(starts),
        tensor(lengths),
        tensor(logprobs),
        tensor(chosen),
        [_origin(groups[g], i) for g, i in index],
        images if any(i is not None for i in images) else None,
    )


def _origin(group: Group, response: int) -> str:
    """The group's origin; none for a response of another policy among fresh ones."""
    return "" if group.off_policy is not None and group.off_policy[response] else group.origin


def micro_batches(groups: list[Group], index: list[tuple[int, int]], size: int | None) -> list[list[tuple[int, int]]]:
    """Rows of similar length together, at most ``size`` of them, so that little of the work is padding."""
    order = sorted(
        index, key=lambda p: (len(groups[p[0]].prompt.row.tokens) + int(groups[p[0]].samples.lengths[p[1]]), p)
    )
    return [order[i : i + (size or len(order))] for i in range(0, len(order), size or len(order))]


def learning_rate(full: float, warmup_updates: int, update: int) -> float:
    """Of an update (1-based): it rises linearly over the first ones."""
    return full * min(1.0, update / max(1, warmup_updates))


class Learner:
    """The current policy pi_theta, its optimiser, the frozen reference and, where the method has one, the critic."""

    def __init__(
        self,
        model: Any,
        reference: Any | None,
        pad: int,
        config: DictConfig,
        method: Method,
        critic: Critic | None = None,
    ) -> None:
        self.model, self.reference, self.pad, self.method, self.critic = model, reference, pad, method, critic
        self.train, self.temperature, self.seed = config.train, config.sampling.temperature, config.seed
        self.device = next(model.parameters()).device
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        t = config.train
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=t.learning_rate, betas=tuple(t.betas), weight_decay=t.weight_decay, fused=True
        )
        self.updates = 0

    def update(self, step: int, groups: list[Group]) -> dict[str, float]:
        """Train on the batch. An empty one changes nothing. Returns the step's metrics."""
        sums: dict[str, float] = defaultdict(float)
        weights: dict[str, float] = defaultdict(float)

        def note(name: str, value: float, weight: float) -> None:
            sums[name] += value * weight
            weights[name] += weight

        parts = mini_batches(self.method, self.train, self.seed, step, groups)
        advantages, critic_tokens = None, 0
        if self.critic is not None and groups:
            advantages, critic_tokens = self.critic.step(groups, parts, note)
        trains = self.method.trains_policy(step)
        step_logprobs = self._step_logprobs(groups) if self.method.needs_step_policy and trains else None
        trained = forwards = 0
        for part in parts if trains else []:
            tokens = self._one_update(step, part, step_logprobs, note, advantages)
            trained += tokens
            forwards += tokens * (1 + self.method.needs_reference + self.method.needs_step_policy)
        return {
            **{name: sums[name] / weights[name] for name in sums if weights[name]},
            "updates": float(weights["updates"]),
            "trained_tokens": trained,
            "forward_tokens": forwards,
            "critic_tokens": critic_tokens,
            "learning_rate": self._rate(max(1, self.updates)),
        }

    def reset_reference(self) -> None:
        """pi_ref <- pi_theta."""
        with torch.no_grad():
            for own, new in zip(self.reference.parameters(), self.model.parameters(), strict=True):
                own.copy_(new)

    def _one_update(
        self,
        step: int,
        groups: list[Group],
        step_logprobs: dict[tuple[int, int], np.ndarray] | None,
        note: Any,
        judged: dict[int, np.ndarray] | None = None,
    ) -> int:
        """Forward, backward and one optimiser step on a mini-batch; returns the tokens that went through the model.

        judged: the critic's advantages [G, T] by id of the group; None: the method's own, relative to the group.
        """
        advantages = [self.method.advantages(g) if judged is None else judged[id(g)] for g in groups]
        index = [(g, i) for g, group in enumerate(groups) for i in range(group.size)]
        lengths = {(g, i): int(groups[g].samples.lengths[i]) for g, i in index}
        replayed = [bool(groups[g].replayed[i]) for g, i in index]
        nominal = self.train.mini_batch_size * self.train.group_size
        denominators = {
            "nominal_sequences": nominal if self.train.underfilled == "fewer-updates" else len(index),
            "nominal_tokens": sum(lengths.values()),
            "part_sequences": (len(index) - sum(replayed), sum(replayed)),
            "part_tokens": tuple(
                sum(lengths[p] for p, r in zip(index, replayed, strict=True) if r is part) for part in (False, True)
            ),
        }
        self.optimizer.zero_grad(set_to_none=True)
        trained, total_loss = 0, 0.0
        for micro in micro_batches(groups, index, self.train.micro_batch_size):
            rows = collate(groups, advantages, micro, self.pad, self.device)
            mask = rows.mask
            scored = self._score(self.model, rows, entropy=True)  # recorded also where the loss has no use for it
            own = [origin in ORIGINS for origin in rows.origins]  # not an expert's, nor replayed among fresh ones
            inputs = LossInputs(
                logprobs=scored.logprobs,
                behaviour_logprobs=rows.behaviour_logprobs,
                advantages=rows.advantages,
                mask=mask,
                replayed=torch.tensor([bool(groups[g].replayed[i]) for g, i in micro], device=self.device),
                reference_logprobs=self._reference_logprobs(rows),
                step_logprobs=self._lookup(step_logprobs, groups, micro, rows),
                entropy=scored.entropy,
                weights=self._weights(groups, micro),
                step=step,
                phase=self.method.phase,
                recorded=None if all(own) else torch.tensor(own, device=self.device),
                **denominators,
            )
            loss, metrics = self.method.loss(inputs)
            loss.backward()
            shown = inputs.recorded_mask
            count = float(shown.sum())
            trained += int((rows.starts + rows.lengths).sum())
            total_loss += float(loss.detach())
            if count:
                for name, value in metrics.items():
                    note(name, float(value), count)
                if scored.entropy is not None:
                    note("entropy", float((scored.entropy.detach() * shown).sum()) / count, count)
            self._note_divergence(scored.logprobs.detach(), rows, mask, note)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.train.grad_clip)
        if not torch.isfinite(norm):
            raise UserError(
                f"the gradient is not finite at update {self.updates + 1}; lower train.learning_rate, check the rewards"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(self.updates + 1)
        self.optimizer.step()
        self.updates += 1
        note("loss", total_loss, 1.0)
        note("gradient_norm", float(norm), 1.0)
        note("updates", 1.0, 1.0)
        return trained

    def _weights(self, groups: list[Group], index: list[tuple[int, int]]) -> Tensor | None:
        weights = [self.method.weight(groups[g]) for g, _ in index]
        return None if all(w == 1 for w in weights) else torch.tensor(weights, device=self.device)

    def _rate(self, update: int) -> float:
        """The learning rate of an update (1-based)."""
        return learning_rate(self.train.learning_rate, self.train.warmup_updates, update)

    @torch.no_grad()
    def _reference_logprobs(self, rows: Rows) -> Tensor | None:
        if not self.method.needs_reference:
            return None
        return self._score(self.reference, rows).logprobs

    def _score(self, model: Any, rows: Rows, entropy: bool = False) -> models.Scored:
        return models.score(
            model, rows.ids, rows.starts, rows.width, self.temperature, entropy, rows.lengths, rows.images
        )

    @torch.no_grad()
    def _step_logprobs(self, groups: list[Group]) -> dict[tuple[int, int], np.ndarray]:
        """Log-probabilities under pi_k, the policy before this step's first update, by (id of group, response)."""
        found = {}
        zeros = [np.zeros(g.size, dtype=np.float32) for g in groups]
        index = [(g, i) for g, group in enumerate(groups) for i in range(group.size)]
        for micro in micro_batches(groups, index, self.train.micro_batch_size):
            rows = collate(groups, zeros, micro, self.pad, self.device)
            logprobs = self._score(self.model, rows).logprobs.cpu().numpy()
            for row, (g, i) in enumerate(micro):
                found[id(groups[g]), i] = logprobs[row, : int(rows.lengths[row])]
        return found

    def _lookup(self, table: Any, groups: list[Group], micro: list[tuple[int, int]], rows: Rows) -> Tensor | None:
        if table is None:
            return None
        out = np.zeros((len(micro), rows.width), dtype=np.float32)
        for row, (g, i) in enumerate(micro):
            values = table[id(groups[g]), i]
            out[row, : len(values)] = values
        return torch.from_numpy(out).to(self.device)

    @staticmethod
    def _note_divergence(logprobs: Tensor, rows: Rows, mask: Tensor, note: Any) -> None:
        """TV(pi_theta, alpha_i) by origin, 1/2 E|pi/alpha - 1| over sampled sequences (biased low for rare tails).

        Beside it the surrogate E[pi/alpha A] of eq. 22, where the advantage is a response's (not a critic's).
        """
        ratio = torch.exp(((logprobs - rows.behaviour_logprobs) * mask).sum(1).clamp(-20, 20))
        values = {"tv": 0.5 * (ratio - 1).abs()}
        if rows.advantages.ndim == 1:
            values["surrogate"] = ratio * rows.advantages
        for name, value in values.items():
            listed = value.cpu().numpy()
            for number, origin in enumerate(ORIGINS, start=1):
                chosen = [v for v, o in zip(listed, rows.origins, strict=True) if o == origin]
                if chosen:
                    note(f"{name}_x{number}", float(np.mean(chosen)), len(chosen))
