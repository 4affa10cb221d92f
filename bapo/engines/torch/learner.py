"""Policy updates on a batch of groups: advantages, mini-batches, loss, optimiser."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from bapo.algorithm.batch import mini_batches
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import ORIGINS, Group
from bapo.engines.shared import models
from bapo.engines.shared.rows import Rows, by_group, denominators, learning_rate, micro_batches
from bapo.engines.torch import masters, micro
from bapo.errors import UserError
from bapo.methods import Method

if TYPE_CHECKING:
    from bapo.engines.torch.critic import Critic


class Trained:
    """A model and its optimiser. Micro-batches, warm-up and clipping of the gradient are the configuration's.

    ``masters``: what the optimiser trains, by the names of the model's parameters. These are the parameters, or of a
    model that is narrower than float32 the copies of ``bapo.engines.torch.masters``.
    """

    def __init__(self, model: Any, pad: int, config: DictConfig, method: Method, rate_ratio: float = 1.0) -> None:
        self.model, self.pad, self.method, self.train = model, pad, method, config.train
        self.device = next(model.parameters()).device
        self.by_memory = config.model.kind == "pretrained" and config.train.micro_batch_size is None
        if config.train.gradient_checkpointing:
            micro.recompute_layers(model)
        self.masters = masters.of(model)
        self.parameters = list(self.masters.values())
        t, self.rate = config.train, config.train.learning_rate * rate_ratio
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.rate, betas=tuple(t.betas), weight_decay=t.weight_decay, fused=True
        )

    def micro_batches(self, groups: list[Group], gradient: bool = True) -> Iterator[Rows]:
        """Cut the responses of ``groups`` into what goes through the model at once, for its gradient or without."""
        if self.by_memory:
            return micro.fitting(self.model, groups, self.train.micro_batch_memory, self.pad, self.device, gradient)
        return micro_batches(groups, self.train.micro_batch_size, self.pad, self.device)

    @property
    def cuts(self) -> bool:
        """Return whether :meth:`micro_batches` divide a mini-batch: their size is bounded."""
        return self.by_memory or self.train.micro_batch_size is not None

    def _rate(self, update: int) -> float:
        """Return the learning rate of an update (1-based)."""
        return learning_rate(self.rate, self.train.warmup_updates, update)

    def _step(self, update: int, not_finite: str) -> float:
        """Take the optimiser's step; returns the norm of the gradient. Raises UserError where that is not finite."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.train.grad_clip)
        if not torch.isfinite(norm):
            raise UserError(not_finite)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(update)
        self.optimizer.step()
        masters.round_into(self.model, self.masters)
        return float(norm)


class Learner(Trained):
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
        super().__init__(model, pad, config, method)
        self.reference, self.critic, self.updates = reference, critic, 0
        self.temperature, self.seed = config.sampling.temperature, config.seed

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
        step_logprobs = self._logprobs(self.model, groups) if self.method.needs_step_policy and trains else None
        # what all prompts begin with goes once through the reference, and not once for each mini-batch
        ahead = self.method.needs_reference and trains and self.by_memory
        reference_logprobs = self._logprobs(self.reference, groups) if ahead else None
        trained = forwards = 0
        for part in parts if trains else []:
            tokens = self._one_update(step, part, step_logprobs, note, advantages, reference_logprobs)
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
        self.reference.load_state_dict(self.model.state_dict())

    def _one_update(
        self,
        step: int,
        groups: list[Group],
        step_logprobs: dict[int, np.ndarray] | None,
        note: Any,
        judged: dict[int, np.ndarray] | None = None,
        reference_logprobs: dict[int, np.ndarray] | None = None,
    ) -> int:
        """Make one optimiser step on a mini-batch; returns the tokens that went through the model.

        step_logprobs: under pi_k, judged: the critic's advantages, reference_logprobs: under the reference, all [G, T]
        by id of the group. Without ``judged`` the advantages are the method's own, relative to the group; without
        ``reference_logprobs`` they are computed here where the method needs them.
        """
        advantages = [self.method.advantages(g) if judged is None else judged[id(g)] for g in groups]
        historical = [self.method.historical(g) for g in groups]
        counts = denominators(self.train, groups, historical)

        def known(values: dict[int, np.ndarray] | None) -> list[np.ndarray] | None:
            return None if values is None else [values[id(g)] for g in groups]

        of_step, of_reference = known(step_logprobs), known(reference_logprobs)
        self.optimizer.zero_grad(set_to_none=True)
        trained, total_loss = 0, 0.0
        for rows in self.micro_batches(groups):
            mask, row_advantages = rows.mask, rows.gather(advantages)
            scored = self._score(self.model, rows, entropy=True)  # recorded also where the loss has no use for it
            on_record = [origin in ORIGINS for origin in rows.origins]  # no expert's, none replayed among fresh ones
            inputs = LossInputs(
                logprobs=scored.logprobs,
                behaviour_logprobs=rows.behaviour_logprobs,
                advantages=row_advantages,
                mask=mask,
                replayed=torch.tensor([bool(historical[g][i]) for g, i in rows.index], device=self.device),
                reference_logprobs=self._reference_logprobs(rows)
                if of_reference is None
                else rows.gather(of_reference),
                step_logprobs=None if of_step is None else rows.gather(of_step),
                entropy=scored.entropy,
                weights=self._weights(groups, rows),
                step=step,
                phase=self.method.phase,
                recorded=None if all(on_record) else torch.tensor(on_record, device=self.device),
                **counts,
            )
            loss, metrics = self.method.loss(inputs)
            loss.backward()
            shown = inputs.recorded_mask
            count = float(shown.sum())
            trained += rows.tokens
            total_loss += float(loss.detach())
            if count:
                for name, value in metrics.items():
                    note(name, float(value), count)
                if scored.entropy is not None:
                    note("entropy", float((scored.entropy.detach() * shown).sum()) / count, count)
            self._note_divergence(scored.logprobs.detach(), rows, row_advantages, mask, note)
        update = self.updates + 1
        cure = "lower train.learning_rate, check the rewards"
        norm = self._step(update, f"the gradient is not finite at update {update}; {cure}")
        self.updates = update
        note("loss", total_loss, 1.0)
        note("gradient_norm", norm, 1.0)
        note("updates", 1.0, 1.0)
        return trained

    def _weights(self, groups: list[Group], rows: Rows) -> Tensor | None:
        weights = [self.method.weight(groups[g]) for g, _ in rows.index]
        return None if all(w == 1 for w in weights) else torch.tensor(weights, device=self.device)

    @torch.no_grad()
    def _reference_logprobs(self, rows: Rows) -> Tensor | None:
        if not self.method.needs_reference:
            return None
        return self._score(self.reference, rows).logprobs

    def _score(self, model: Any, rows: Rows, entropy: bool = False) -> models.Scored:
        return models.score(
            model, rows.ids, rows.starts, rows.width, self.temperature, entropy, rows.lengths, rows.images
        )

    def _logprobs(self, model: Any, groups: list[Group]) -> dict[int, np.ndarray]:
        """Return log-probabilities [G, T] by id of the group, of the reference or of pi_k before the first update."""
        rows = self.micro_batches(groups, gradient=False)
        scored = by_group(groups, rows, lambda rows: self._score(model, rows).logprobs)
        return {id(group): logprobs for group, logprobs in zip(groups, scored, strict=True)}

    @staticmethod
    def _note_divergence(logprobs: Tensor, rows: Rows, advantages: Tensor, mask: Tensor, note: Any) -> None:
        """Note TV(pi_theta, alpha_i) by origin, 1/2 E|pi/alpha - 1| over sampled sequences (biased low for rare tails).

        Beside it the surrogate E[pi/alpha A] of eq. 22, where the advantage is a response's (not a critic's).
        """
        ratio = torch.exp(((logprobs - rows.behaviour_logprobs) * mask).sum(1).clamp(-20, 20))
        values = {"tv": 0.5 * (ratio - 1).abs()}
        if advantages.ndim == 1:
            values["surrogate"] = ratio * advantages
        for name, value in values.items():
            listed = value.cpu().numpy()
            for number, origin in enumerate(ORIGINS, start=1):
                chosen = [v for v, o in zip(listed, rows.origins, strict=True) if o == origin]
                if chosen:
                    note(f"{name}_x{number}", float(np.mean(chosen)), len(chosen))
