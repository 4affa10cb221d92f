"""Updates of a policy and its critic on a batch of groups: advantages, mini-batches, losses, optimisers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from bapo.algorithm.advantages import explained_variance
from bapo.algorithm.batch import mini_batches
from bapo.algorithm.losses import ValueInputs
from bapo.algorithm.rollouts import Estimates, Group
from bapo.engines.shared import hooks, models, shortcut
from bapo.engines.shared.batch_tensors import Rows, by_group, micro_batches, score_rows
from bapo.engines.shared.loss_inputs import RowMarks, denominators, origin_numbers, terms_by_origin
from bapo.engines.shared.schedule import learning_rate
from bapo.errors import UserError
from bapo.experiments.schema import Config
from bapo.methods import Method
from bapo.methods.ppo import PPOConfig


class MetricMeans:
    """Averages the metrics of one step, by name and with weights."""

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

    ``masters`` holds what the optimiser trains, by parameter name: the parameter, or a float32 copy of a narrower one.
    A bfloat16 number has 8 bits of precision: a step of less than a 500th of a weight would be rounded away, as nearly
    every step is with a rate of 1e-6. So the optimiser updates the copies (Micikevicius et al. 1710.03740), which are
    rounded into the model after each step. Gradients are summed over micro-batches in float32, too.
    """

    def __init__(self, model: PreTrainedModel, config: Config, method: Method, rate_ratio: float = 1.0) -> None:
        self.model, self.method, self.train = model, method, config.train
        self.device = next(model.parameters()).device
        self.masters = masters_of(model)
        self.parameters = list(self.masters.values())
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

    def _step(self, step: int, hook: str, loss: float, cure: str) -> float:
        """Take the optimiser's step; returns the norm of the gradient. Raises UserError where that is not finite.

        Args:
            step: the training step
            hook: the method's loss
            loss: what it returned
            cure: what a user may change
        """
        update, norm = self.updates + 1, torch.nn.utils.clip_grad_norm_(self.parameters, self.train.grad_clip)
        if not torch.isfinite(norm):
            fault = hooks.not_finite(self.method, hook, loss)
            raise UserError(f"{fault} at step {step}, update {update}; check for a division by 0, or {cure}")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.rate, self.train.warmup_updates, update)
        self.optimizer.step()
        round_into(self.model, self.masters)
        return float(norm)


def masters_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return what an optimiser trains of ``model``, by the names of its parameters that want a gradient.

    A float32 parameter is trained itself; any other has a float32 copy, to which its gradients go as they arrive.
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
    """Write the float32 copies, rounded, into the parameters of ``model``."""
    for name, parameter in model.named_parameters():
        if name in masters and masters[name] is not parameter:
            parameter.copy_(masters[name])


def _hand_over(parameter: Tensor, master: Tensor) -> None:
    """Move the gradient of a micro-batch from the parameter to its copy."""
    assert parameter.grad is not None
    gradient, parameter.grad = parameter.grad.float(), None
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)


# ------------------------------------------------------------------------------------------------ the critic


def with_value_head(model: PreTrainedModel) -> PreTrainedModel:
    """Return the causal model with its vocabulary head replaced by one output, which is 0 until it is trained.

    Starting at 0 needs no random numbers, and the first advantages are the rewards' own.
    """
    weight = model.get_output_embeddings().weight
    head = torch.nn.Linear(weight.shape[1], 1, device=weight.device, dtype=weight.dtype)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    model.config.tie_word_embeddings = False  # the new head shares no weights with the embedding
    model.set_output_embeddings(head)
    return model


def values_of(model: PreTrainedModel, rows: Rows) -> Tensor:
    """Return the value [N, T] of the state before each response token; float32."""
    fast = shortcut("scoring", model)
    if fast is not None:
        return fast.values(model, rows.ids, rows.starts, rows.lengths, rows.images)
    inputs = models.inputs(model, rows.ids[:, :-1], rows.starts, rows.images)
    outputs = model(**inputs, use_cache=False).logits[..., 0].float()
    positions = rows.starts[:, None] - 1 + torch.arange(rows.width, device=rows.ids.device)
    return outputs.gather(1, positions.clamp(max=outputs.shape[1] - 1))


class Critic(TrainedModel):
    """Trains the value model, and estimates values, returns and advantages with it."""

    def __init__(self, model: PreTrainedModel, config: Config, method: Method) -> None:
        assert isinstance(method.config, PPOConfig)
        super().__init__(with_value_head(model), config, method, method.config.critic_rate_ratio)

    def with_estimates(self, groups: list[Group], metrics: MetricMeans) -> list[Group]:
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
            loss, loss_metrics = self.method.value_loss(
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
            for name, value in loss_metrics.items():
                metrics.add(name, float(value), float(mask.sum()))
        norm = self._step(step, "value_loss", total, "lower method.critic_rate_ratio")
        metrics.add("value_loss", total)
        metrics.add("critic_gradient_norm", norm)
        return tokens


# ------------------------------------------------------------------------------------------------ the policy


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
            groups = critic.with_estimates(groups, metrics)
        scored_tokens = 0
        if trains:
            groups, scored_tokens = self._with_step_logprobs(groups)
        batches = mini_batches(method, self.train, self.seed, step, groups)
        critic_tokens = 0 if critic is None else sum(critic.update(step, batch, metrics) for batch in batches)
        tokens = sum(self._one_update(step, batch, phase, metrics, ratios) for batch in batches if trains)
        return {
            **metrics.means(),
            **tails(ratios),
            "updates": float(metrics.weights["updates"]),
            "trained_tokens": tokens,
            "scored_tokens": scored_tokens,
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
            groups: those of the mini-batch, from :meth:`_with_step_logprobs` and :meth:`Critic.with_estimates`
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
            # the entropy is recorded also where the loss has no use for it
            scored = score_rows(self.model, rows, self.temperature, entropy=True)
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
        norm = self._step(step, "loss", total_loss, "lower train.learning_rate")
        metrics.add("loss", total_loss)
        metrics.add("gradient_norm", norm)
        metrics.add("updates", 1.0)
        return tokens

    @torch.no_grad()
    def _reference_logprobs(self, rows: Rows) -> Tensor | None:
        if not self.method.needs_reference:
            return None
        assert self.reference is not None
        return score_rows(self.reference, rows, self.temperature).logprobs

    def _with_step_logprobs(self, groups: list[Group]) -> tuple[list[Group], int]:
        """Return the groups with ``step_logprobs`` under pi_k, the policy before the step's first update.

        They are scored only if the loss reads them and the method does not keep its own. Also returns how many tokens
        went forward.
        """
        if self.method.keeps_step_logprobs or not self.method.needs_step_policy:
            return groups, 0
        blocks = list(self.micro_batches(groups))
        scored = by_group(groups, blocks, lambda rows: score_rows(self.model, rows, self.temperature).logprobs)
        groups = [replace(group, step_logprobs=values) for group, values in zip(groups, scored, strict=True)]
        return groups, sum(rows.tokens for rows in blocks)


def tails(ratios: Mapping[str, Sequence[np.ndarray]]) -> dict[str, float]:
    """Return the 99th percentile and the maximum of pi/alpha over a step's responses of each origin.

    ratios: by ``ratio_x1`` to ``ratio_x3``. The results are ``ratio_p99_x1``, ``ratio_max_x1`` and so on.
    """
    values = {name.removeprefix("ratio_"): np.concatenate(parts) for name, parts in ratios.items()}
    p99 = {f"ratio_p99_{origin}": float(np.quantile(each, 0.99)) for origin, each in values.items()}
    return p99 | {f"ratio_max_{origin}": float(each.max()) for origin, each in values.items()}
