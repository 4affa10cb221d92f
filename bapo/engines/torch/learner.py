"""Updates of the policy on a batch of groups: advantages, mini-batches, loss, optimiser."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from bapo.algorithm.batch import mini_batches
from bapo.algorithm.rollouts import Group
from bapo.engines.shared import models
from bapo.engines.shared.batch_tensors import Rows, by_group
from bapo.engines.shared.loss_inputs import RowMarks, denominators, origin_numbers, terms_by_origin
from bapo.engines.shared.schedule import learning_rate
from bapo.engines.torch.critic import Critic
from bapo.engines.torch.trained_model import MetricMeans, TrainedModel
from bapo.experiments.schema import Config
from bapo.methods import Method


class Learner(TrainedModel):
    """Trains pi_theta; holds its optimiser, the frozen reference and, where the method has one, the critic."""

    def __init__(
        self,
        model: PreTrainedModel,
        reference: PreTrainedModel | None,
        config: Config,
        method: Method,
        critic: Critic | None = None,
    ) -> None:
        """Make the optimiser.

        Args:
            model: pi_theta
            reference: pi_ref, where the loss reads it
            config: of the run
            method: that of the run, with its state
            critic: trained before the policy in each step
        """
        super().__init__(model, config, method)
        self.reference, self.critic = reference, critic
        self.temperature, self.seed = config.sampling.temperature, config.seed

    def update(self, step: int, groups: list[Group], phase: int = 0) -> dict[str, float]:
        """Train on the groups of a batch and its phase. No group changes nothing. Returns the step's metrics.

        Raises UserError where a gradient is not finite.
        """
        metrics, ratios = MetricMeans(), defaultdict[str, list[np.ndarray]](list)
        method, critic = self.method, self.critic
        trains = method.trains_policy(step)
        if critic is not None and groups:
            groups = critic.estimated(groups, metrics)
        if trains:
            groups = self._with_step_logprobs(groups)
        parts = mini_batches(method, self.train, self.seed, step, groups)
        critic_tokens = 0 if critic is None else sum(critic.update(step, part, metrics) for part in parts)
        tokens = sum(self._one_update(step, part, phase, metrics, ratios) for part in parts if trains)
        return {
            **metrics.means(),
            **tails(ratios),
            "updates": float(metrics.weights["updates"]),
            "trained_tokens": tokens,
            "critic_tokens": critic_tokens,
            "learning_rate": learning_rate(self.rate, self.train.warmup_updates, max(1, self.updates)),
        }

    def reset_reference(self) -> None:
        """Set pi_ref to pi_theta."""
        assert self.reference is not None
        self.reference.load_state_dict(self.model.state_dict())

    def _one_update(
        self, step: int, groups: list[Group], phase: int, metrics: MetricMeans, ratios: dict[str, list[np.ndarray]]
    ) -> int:
        """Make one optimiser step on a mini-batch; returns the tokens that went through the model.

        Args:
            step: the training step
            groups: those of the mini-batch, as :meth:`_with_step_logprobs` and :meth:`Critic.estimated` return them
            phase: the batch's
            metrics: gets the metrics of this update
            ratios: gets pi/alpha of each response, by origin
        """
        method = self.method
        advantages = [method.advantages(g) if g.estimates is None else g.estimates.advantages for g in groups]
        second_parts = [method.second_part(g) for g in groups]
        origins, counts = [origin_numbers(g) for g in groups], denominators(self.train, groups, second_parts)
        step_logprobs = None
        if method.keeps_step_logprobs or method.needs_step_policy:
            step_logprobs = [values for g in groups if (values := g.step_logprobs) is not None]
        self.optimizer.zero_grad(set_to_none=True)
        tokens, total_loss = 0, 0.0
        for rows in self.micro_batches(groups):
            marks = RowMarks(
                origins=torch.tensor([origins[g][i] for g, i in rows.index]),
                weights=torch.tensor([groups[g].weight for g, _ in rows.index], device=self.device),
                second_part=torch.tensor([bool(second_parts[g][i]) for g, i in rows.index], device=self.device),
                step=step,
                phase=phase,
                denominators=counts,
            )
            scored = self._score(self.model, rows, entropy=True)  # recorded also where the loss has no use for it
            inputs = marks.inputs(
                logprobs=scored.logprobs,
                behaviour_logprobs=rows.behaviour_logprobs,
                advantages=rows.gather(advantages),
                mask=rows.mask,
                entropy=scored.entropy,
                reference_logprobs=self._reference_logprobs(rows),
                step_logprobs=None if step_logprobs is None else rows.gather(step_logprobs),
            )
            loss, loss_metrics = method.loss(inputs)
            clipped = loss_metrics.pop("clipped")
            loss.backward()
            mask, entropy = inputs.recorded_mask, scored.entropy
            assert entropy is not None
            sums = [loss.detach(), mask.sum(), (entropy.detach() * mask).sum(), *loss_metrics.values()]
            part_loss, count, total_entropy, *means = torch.stack(sums).tolist()  # one wait for a GPU
            tokens += rows.tokens
            total_loss += part_loss
            if count:
                for name, mean in zip(loss_metrics, means, strict=True):
                    metrics.add(name, mean, count)
                metrics.add("entropy", total_entropy / count, count)
            for name, terms in terms_by_origin(inputs, marks.origins, clipped).items():
                if len(terms):
                    metrics.add(name, float(np.mean(terms.numpy())), len(terms))
                    if name.startswith("ratio_x"):
                        ratios[name].append(terms.numpy())
        norm = self._step(f"step {step}: the gradient", "lower train.learning_rate, check the rewards")
        metrics.add("loss", total_loss)
        metrics.add("gradient_norm", norm)
        metrics.add("updates", 1.0)
        return tokens

    @torch.no_grad()
    def _reference_logprobs(self, rows: Rows) -> Tensor | None:
        if not self.method.needs_reference:
            return None
        assert self.reference is not None
        return self._score(self.reference, rows).logprobs

    def _score(self, model: PreTrainedModel, rows: Rows, entropy: bool = False) -> models.Scored:
        return models.score(
            model, rows.ids, rows.starts, rows.width, self.temperature, entropy, rows.lengths, rows.images
        )

    def _with_step_logprobs(self, groups: list[Group]) -> list[Group]:
        """Return the groups with ``step_logprobs`` under pi_k, the policy before the first update of the step.

        They are scored only if the loss reads them and the method does not keep its own.
        """
        if self.method.keeps_step_logprobs or not self.method.needs_step_policy:
            return groups
        scored = by_group(groups, self.micro_batches(groups), lambda rows: self._score(self.model, rows).logprobs)
        return [replace(group, step_logprobs=values) for group, values in zip(groups, scored, strict=True)]


def tails(ratios: Mapping[str, Sequence[np.ndarray]]) -> dict[str, float]:
    """Return the 99th percentile and the maximum of pi/alpha over a step's responses of each origin.

    ratios: by ``ratio_x1`` to ``ratio_x3``. The results are ``ratio_p99_x1``, ``ratio_max_x1`` and so on.
    """
    values = {name.removeprefix("ratio_"): np.concatenate(parts) for name, parts in ratios.items()}
    p99 = {f"ratio_p99_{origin}": float(np.quantile(each, 0.99)) for origin, each in values.items()}
    return p99 | {f"ratio_max_{origin}": float(each.max()) for origin, each in values.items()}
