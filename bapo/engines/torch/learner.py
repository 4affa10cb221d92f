"""Updates of the policy, and of a critic, on a batch of groups: advantages, mini-batches, loss, optimiser."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from bapo.algorithm.advantages import explained_variance
from bapo.algorithm.batch import mini_batches
from bapo.algorithm.losses import LossInputs, ValueInputs
from bapo.algorithm.rollouts import ORIGINS, Group
from bapo.engines.shared import models, shortcut
from bapo.engines.shared.batch_tensors import Rows, by_group, denominators, micro_batches
from bapo.engines.shared.schedule import learning_rate
from bapo.errors import UserError
from bapo.experiments.schema import Config
from bapo.methods import Method
from bapo.methods.ppo import PPOConfig

#: adds a value, and its weight, to the mean of a metric
Note = Callable[[str, float, float], None]
#: arrays [G, T] by id of the group
ByGroup = dict[int, np.ndarray]


class Trained:
    """A model and its optimiser. Micro-batches, warm-up and clipping of the gradient are the configuration's.

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
        """Updates so far, as the optimiser counts them, so that they are in its checkpoint."""
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
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found[name] = parameter
            if parameter.dtype != torch.float32:
                found[name] = parameter.detach().float()
                parameter.register_post_accumulate_grad_hook(partial(_hand_over, master=found[name]))
    return found


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


class Critic(Trained):
    """Value model and optimiser."""

    def __init__(self, model: PreTrainedModel, config: Config, method: Method) -> None:
        assert isinstance(method.config, PPOConfig)
        super().__init__(with_value_head(model), config, method, method.config.critic_rate_ratio)

    def step(self, groups: list[Group], parts: list[list[Group]], note: Note) -> tuple[ByGroup, int]:
        """Judge the batch, then one update on each of its mini-batches (``parts``).

        Returns the advantages [G, T] by id of the group, and the tokens that went through the model in one pass.
        """
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
        old, targets, found = (
            {id(group): part for group, part in zip(groups, np.split(array, edges), strict=True)}
            for array in (values, returns, advantages)
        )
        return found, sum(self._one_update(part, old, targets, note) for part in parts)

    def _one_update(self, groups: list[Group], old: ByGroup, returns: ByGroup, note: Note) -> int:
        """Take one update towards ``returns`` from the values before the step, ``old``. Returns the tokens trained."""
        counts = denominators(self.train, groups, [g.replayed for g in groups])
        self.optimizer.zero_grad(set_to_none=True)
        tokens, total = 0, 0.0
        for rows in self.micro_batches(groups):
            mask = rows.mask
            loss, metrics = self.method.value_loss(
                ValueInputs(
                    values=values_of(self.model, rows),
                    old_values=rows.gather([old[id(g)] for g in groups]),
                    returns=rows.gather([returns[id(g)] for g in groups]),
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
        norm = self._step("the critic's gradient", "lower method.critic_rate_ratio")
        note("value_loss", total, 1.0)
        note("critic_gradient_norm", norm, 1.0)
        return tokens


class Learner(Trained):
    """The current policy pi_theta, its optimiser, the frozen reference and, where the method has one, the critic."""

    def __init__(
        self,
        model: PreTrainedModel,
        reference: PreTrainedModel | None,
        config: Config,
        method: Method,
        critic: Critic | None = None,
    ) -> None:
        super().__init__(model, config, method)
        self.reference, self.critic = reference, critic
        self.temperature, self.seed = config.sampling.temperature, config.seed
        self.ratios: dict[int, list[np.ndarray]] = defaultdict(list)  # pi/alpha of responses in a step, by X1 to X3

    def update(self, step: int, groups: list[Group], phase: int = 0) -> dict[str, float]:
        """Train on the groups of a batch and its phase. No group changes nothing. Returns the step's metrics."""
        sums: dict[str, float] = defaultdict(float)
        weights: dict[str, float] = defaultdict(float)
        self.ratios.clear()

        def note(name: str, value: float, weight: float) -> None:
            sums[name] += value * weight
            weights[name] += weight

        method, critic_tokens, judged = self.method, 0, None
        parts = mini_batches(method, self.train, self.seed, step, groups)
        if self.critic is not None and groups:
            judged, critic_tokens = self.critic.step(groups, parts, note)
        trains = method.trains_policy(step)
        of_step = self._step_logprobs(groups) if trains else None
        trained = sum(self._one_update(step, part, of_step, judged, note, phase) for part in parts if trains)
        return {
            **{name: sums[name] / weights[name] for name in sums if weights[name]},
            **tails(self.ratios),
            "updates": float(weights["updates"]),
            "trained_tokens": trained,
            "forward_tokens": trained * (1 + method.needs_reference + method.needs_step_policy),
            "critic_tokens": critic_tokens,
            "learning_rate": learning_rate(self.rate, self.train.warmup_updates, max(1, self.updates)),
        }

    def reset_reference(self) -> None:
        """pi_ref <- pi_theta."""
        assert self.reference is not None
        self.reference.load_state_dict(self.model.state_dict())

    def _one_update(
        self,
        step: int,
        groups: list[Group],
        step_logprobs: ByGroup | None,
        judged: ByGroup | None,
        note: Note,
        phase: int = 0,
    ) -> int:
        """Make one optimiser step on a mini-batch; returns the tokens that went through the model.

        step_logprobs: under pi_k, or those that the groups keep; judged: the critic's advantages, without which they
        are the method's own, relative to the group.
        """
        advantages = [self.method.advantages(g) if judged is None else judged[id(g)] for g in groups]
        second_parts = [self.method.second_part(g) for g in groups]
        counts = denominators(self.train, groups, second_parts)
        of_step = None if step_logprobs is None else [step_logprobs[id(g)] for g in groups]
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
                second_part=torch.tensor([bool(second_parts[g][i]) for g, i in rows.index], device=self.device),
                reference_logprobs=self._reference_logprobs(rows),
                step_logprobs=None if of_step is None else rows.gather(of_step),
                entropy=scored.entropy,
                weights=self._weights(groups, rows),
                step=step,
                phase=phase,
                recorded=None if all(on_record) else torch.tensor(on_record, device=self.device),
                **counts,
            )
            loss, metrics = self.method.loss(inputs)
            clipped = metrics.pop("clipped")
            loss.backward()
            shown, entropy = inputs.recorded_mask, scored.entropy
            assert entropy is not None
            sums = [loss.detach(), shown.sum(), (entropy.detach() * shown).sum(), *metrics.values()]
            part_loss, count, total_entropy, *means = torch.stack(sums).tolist()  # one wait for a GPU
            trained += rows.tokens
            total_loss += part_loss
            if count:
                for name, mean in zip(metrics, means, strict=True):
                    note(name, mean, count)
                note("entropy", total_entropy / count, count)
            logprobs = scored.logprobs.detach()
            self._note_divergence(logprobs, rows, row_advantages, mask, clipped, note, self.ratios)
        norm = self._step("the gradient", "lower train.learning_rate, check the rewards")
        note("loss", total_loss, 1.0)
        note("gradient_norm", norm, 1.0)
        note("updates", 1.0, 1.0)
        return trained

    def _weights(self, groups: list[Group], rows: Rows) -> Tensor | None:
        weights = [groups[g].weight for g, _ in rows.index]
        return None if all(w == 1 for w in weights) else torch.tensor(weights, device=self.device)

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

    def _step_logprobs(self, groups: list[Group]) -> ByGroup | None:
        """Return the log-probabilities under pi_k, the policy before the first update of the step, if the loss reads
        them; those that the groups keep, if the method keeps them."""
        if self.method.keeps_step_logprobs:
            return {id(g): g.step_logprobs for g in groups if g.step_logprobs is not None}
        if not self.method.needs_step_policy:
            return None
        scored = by_group(groups, self.micro_batches(groups), lambda rows: self._score(self.model, rows).logprobs)
        return {id(group): logprobs for group, logprobs in zip(groups, scored, strict=True)}

    @staticmethod
    def _note_divergence(
        logprobs: Tensor,
        rows: Rows,
        advantages: Tensor,
        mask: Tensor,
        clipped: Tensor,
        note: Note,
        ratios: dict[int, list[np.ndarray]],
    ) -> None:
        """Note TV(pi_theta, alpha_i) by origin, 1/2 E|pi/alpha - 1| over sampled sequences (biased low for rare tails).

        Beside it the mean of ``clipped`` [N] (``Method.loss``), and the means of pi/alpha and its square, which
        ``ratios`` takes itself. Where the advantage is a response's (not a critic's): the surrogate E[pi/alpha A] of
        eq. 22, and the part of ``clipped`` of responses with a positive advantage, at which a clip from above is
        active, and with a negative one, from below.
        """
        ratio = torch.exp(((logprobs - rows.behaviour_logprobs) * mask).sum(1).clamp(-20, 20))
        values = {"tv": 0.5 * (ratio - 1).abs(), "clipped": clipped, "ratio": ratio, "ratio_squared": ratio.square()}
        if advantages.ndim == 1:
            values["surrogate"] = ratio * advantages
            values |= {"clipped_upper": clipped * (advantages > 0), "clipped_lower": clipped * (advantages < 0)}
        origins = np.array(rows.origins)
        for name, listed in zip(values, torch.stack([*values.values()]).cpu().numpy(), strict=True):
            for number, origin in enumerate(ORIGINS, start=1):
                if len(chosen := listed[origins == origin]):
                    note(f"{name}_x{number}", float(np.mean(chosen)), len(chosen))
                    if name == "ratio":
                        ratios[number].append(chosen)


def tails(ratios: Mapping[int, Sequence[np.ndarray]]) -> dict[str, float]:
    """Return the 99th percentile and the maximum of pi/alpha over a step's responses of each origin."""
    each = {number: np.concatenate(parts) for number, parts in ratios.items()}
    p99 = {f"ratio_p99_x{number}": float(np.quantile(values, 0.99)) for number, values in each.items()}
    return p99 | {f"ratio_max_x{number}": float(values.max()) for number, values in each.items()}
