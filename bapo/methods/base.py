"""The base of all methods: GRPO, as hooks named by WHEN they fire.

One training step, in both engines::

    prompts = method.draw_prompts(step, sampler)         # which problems
    if method.syncs_rollout_policy(step): alpha = pi     # before the rollout
    fresh = engine.generate(prompts, alpha)              # G responses each, rewards
    batch = method.build_batch(step, fresh, sampler)     # after the rewards: filter, replay, regenerate
    advantages = method.advantages(group)                # for each group of the batch
    loss, metrics = method.loss(inputs)                  # for each mini-batch

A method with a critic (``uses_critic``) gets its advantages from the critic's values for the whole batch instead::

    advantages, returns = method.token_advantages(rewards, values, mask)
    loss, metrics = method.value_loss(inputs)            # for each mini-batch, before the policy's

``Method`` itself is GRPO; a subclass overrides what it changes, so the difference between two methods is a short file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator, model_validator

from bapo import seeds
from bapo.algorithm import advantages, losses
from bapo.algorithm.losses import LossInputs, ValueInputs
from bapo.algorithm.replay import Buffer
from bapo.algorithm.rollouts import REPLAYED, Group, Prompt
from bapo.validate import Name, Part, Unidentified, WhereSet, wrong

if TYPE_CHECKING:
    from torch import Tensor

    from bapo.experiments.schema import TrainConfig
else:
    Tensor = Any  # torch takes seconds to import

#: what a resumed run needs of a method, as plain data
State = dict[str, Any]


class Sampler(Protocol):
    """The engine as a method sees it while it builds a batch."""

    def draw(self, count: int) -> list[Prompt]:
        """Draw the next prompts of the training stream: shuffled epochs, each prompt once per epoch.

        Args:
            count: how many
        """

    def regenerate(self, prompts: list[Prompt], origin: str, policy: str = "current") -> list[Group]:
        """Sample G new responses to each prompt and grade them.

        Args:
            prompts: any number
            origin: of the groups: ``FRESH`` if this step drew the prompts, ``REEVALUATED`` if an earlier one did. The
                responses are counted as fresh or as regenerated rollouts
            policy: "current" is pi_theta_t, "rollout" is alpha
        """

    def resume(self, groups: list[Group]) -> list[Group]:
        """Continue the groups' unfinished responses with the CURRENT policy and grade those that end.

        Each response may grow by ``Method.rollout_budget`` tokens, up to sampling.max_response_tokens in all; a token
        keeps the log-probability of the policy that sampled it.

        Args:
            groups: whose responses are not all finished
        """

    def demonstrate(self, prompts: list[Prompt]) -> list[Group | None]:
        """Return a group of one expert solution per prompt, with reward 1 and origin ``DEMONSTRATED``.

        The task's ``demonstration`` is the expert. Its log-probabilities are 0, as if it were certain (LUFFY, Yan et
        al. 2504.14945, section 3.2).

        Args:
            prompts: any number

        Returns:
            A group per prompt; None where the task knows no solution.
        """

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        """Return log-probabilities of responses under the CURRENT policy.

        Args:
            groups: any number

        Returns:
            For each group float32 [G, T], 0 past a response's end.
        """

    def embed(self, prompts: list[Prompt]) -> np.ndarray:
        """Return the mean last hidden state of prompts in the model before training.

        Args:
            prompts: n of them

        Returns:
            float32 [n, d], with the model's width d.
        """


@dataclass
class Batch:
    """Holds the training batch of one step.

    Args:
        groups: to train on; any number, even none
        rejected: groups that are not trained on, each with the reason, for the log. New groups that are neither here
            nor in ``groups`` nor kept by the method are logged as not chosen
        metrics: further columns of ``steps.parquet``
        phase: what the method decides once a step; the loss of every mini-batch gets it as ``LossInputs.phase``
    """

    groups: list[Group]
    rejected: list[tuple[Group, str]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    phase: int = 0


Share = Annotated[float, Field(ge=0, le=1)]
OpenShare = Annotated[float, Field(gt=0, lt=1)]
Type = Literal["on", "off"]  # policy, the Type column of Table 1
KL = Literal["reference", "rollout", "none"]  # eq. 1; alpha, eq. 3
Phase = Literal["literal", "first"]  # t mod v = 0, as printed; (t - 1) mod v = 0: every rollout policy serves v steps
Centre = Literal["one", "step-policy"]  # [1 - low, 1 + high]; around pi_k / alpha
Mean = Literal["sequence-mean", "token-mean"]  # eq. 1; verl: token-mean
Spread = Literal["population", "unbiased", "none"]  # eq. 2; verl; Dr. GRPO


class MethodConfig(Part):
    """The options of every method. The defaults are the paper's (equations 1 and 2, Table 3).

    Raises ValueError for another value than the default of an option that the method does not read.
    """

    #: options that this method does not read
    unread: ClassVar[tuple[str, ...]] = ()

    algorithm: str = "grpo"  # a method of the suite, or FILE.py:CLASS of a project
    name: Unidentified[Name] = "grpo"  # names the runs and their folder
    title: Unidentified[str] = ""  # in tables and figures; usually the class's own
    kind: Unidentified[Type] = "on"  # on or off policy, as Table 1 says
    clip_low: OpenShare = 0.2  # epsilon of eq. 1
    clip_high: PositiveFloat = 0.2  # the same upwards
    dual_clip: NonNegativeFloat = 3.0  # verl's bound where the advantage is negative; 0 is off
    clip_centre: Centre = "one"  # one: [1 - low, 1 + high]; step-policy: around pi_k / alpha
    kl_coef: NonNegativeFloat | None = None  # beta; None: train.kl_coef
    kl_to: KL = "reference"  # reference: eq. 1's base model; rollout: eq. 3's alpha
    entropy_coef: float | None = None  # None: train.entropy_coef
    aggregation: Mean = "sequence-mean"  # of the loss: over responses, as in eq. 1, or over all tokens
    advantage_std: Spread = "population"  # population: eq. 2; unbiased: verl; none: Dr. GRPO
    advantage_eps: NonNegativeFloat = 1e-6  # keeps the division by the deviation finite
    advantage_eps_inside: bool = True  # sqrt(var + eps), eq. 2; std + eps (verl)
    #: sequence-level importance sampling: the loss is that of responses of pi_k, times a weight pi_k(y) / alpha(y)
    sequence_weights: Annotated[Literal["none", "truncate", "mask"], WhereSet] = "none"
    sequence_cap: Annotated[float, Field(gt=0), WhereSet] = 2.0  # of the weight: truncated there, or 0 above it (verl)
    passes: Annotated[int, Field(ge=1), WhereSet] = 1  # over each step's batch (update-to-data ratio)

    @field_validator("*")
    @classmethod
    def _bounded(cls, value: object) -> object:
        numbers = value if isinstance(value, Sequence) else [value]
        if any(isinstance(number, int | float) and abs(number) > 1e9 for number in numbers):
            raise ValueError("must be between -1e9 and 1e9")
        return value

    @model_validator(mode="after")
    def _loss(self) -> Self:
        self.require(self.dual_clip == 0 or self.dual_clip > 1, "dual_clip", "must be 0 (off) or above 1")
        self.require_default(self.algorithm, *self.unread)
        if self.kl_to == "none" and self.kl_coef != type(self).model_fields["kl_coef"].default:
            self.require(not self.kl_coef, "kl_coef", "must be 0: kl_to=none has no KL")
        if self.sequence_weights == "none":
            self.require_default("sequence_weights=none", "sequence_cap")
        return self

    def require_default(self, reader: str, *keys: str) -> None:
        """Raise ValueError for a key with another value than its default. reader: what does not read these keys."""
        for key in keys:
            default = type(self).model_fields[key].default
            self.require(getattr(self, key) == default, key, f"must be {default}: {reader} does not read it")

    def of_setting(self, train: TrainConfig) -> Self:
        """Return the options of a run, in which the setting's values have replaced None where that stands for them.

        Without a KL its coefficient is 0, so that the options of a run are valid options, too.

        Raises UserError for another ``kl_to`` than the method's own where the method's coefficient is 0.
        """
        values = {"kl_coef": 0.0 if self.kl_to == "none" else train.kl_coef, "entropy_coef": train.entropy_coef}
        options = self.model_copy(update={key: v for key, v in values.items() if getattr(self, key) is None})
        changed = self.kl_to not in ("none", type(self).model_fields["kl_to"].default)
        if changed and self.kl_coef == 0 and train.kl_coef:  # a setting without a KL takes it from every method
            raise wrong(None, "method.kl_to", self.kl_to, "it has no effect with kl_coef=0; set method.kl_coef, too")
        return options

    def require(self, holds: bool, key: str, cure: str) -> None:
        """Raise ValueError with the value of ``key`` and the cure unless the rule holds."""
        if not holds:
            raise ValueError(f"{key}={getattr(self, key)}: {cure}")


class WithoutKL(MethodConfig):
    """The options of a method whose loss has no KL."""

    kl_to: KL = "none"
    kl_coef: NonNegativeFloat | None = 0.0


def draw_groups(groups: list[Group], count: int, rng: np.random.Generator) -> list[Group]:
    """Draw ``count`` of the groups without replacement, in the order of ``groups``."""
    return [groups[i] for i in sorted(rng.choice(len(groups), size=count, replace=False))]


def due(step: int, every: int, phase: str) -> bool:
    """Return whether an event that recurs every v = ``every`` steps falls on ``step`` (1-based).

    "literal" is Algorithm 1's ``t mod v = 0``: the initial policy serves only steps 1 .. v-1. "first" is
    ``(t - 1) mod v = 0``: every policy, the initial one included, serves exactly v steps.
    """
    return (step if phase == "literal" else step - 1) % every == 0


class Method:
    """GRPO (Shao et al. 2024; paper eq. 1 and 2) and the hooks that other methods override.

    A method's file defines one class.

    Args:
        config: the options of the run
        batch_size: prompts a step (B)
        seed: of the training
    """

    Config: type[MethodConfig] = MethodConfig  #: the options, with the method's defaults
    config: MethodConfig  #: of this run
    #: to be raised when new code changes what the same configuration means; part of a run's identity
    revision: int = 1
    title: str = ""  #: row label in tables
    kind: Type = "on"  #: on or off policy, as Table 1 says
    summary: str = ""  #: what it does, in a line
    source: str = ""  #: the paper or code that it follows
    cost: str = "1 x rollouts"  #: of a step, relative to GRPO
    #: whether the engine trains a critic, which then gives the advantages
    uses_critic: bool = False
    #: whether its groups hold ``Group.step_logprobs``, which the loss gets instead of the log-probabilities under pi_k
    keeps_step_logprobs: bool = False
    #: whether the loss decides on all rows of a micro-batch together, so that train.micro_batch_size changes numbers
    judges_micro_batches: bool = False
    #: whether the KL also covers the responses that ``second_part`` marks
    kl_of_second_part: bool = True
    saved: tuple[str, ...] = ()  #: attributes, plain data, that a resumed run needs

    def __init__(self, config: MethodConfig, batch_size: int, seed: int) -> None:
        self.config, self.batch_size, self.seed = config, batch_size, seed
        self.kept: Buffer = []

    # ------------------------------------------------------------------ before the rollout
    @property
    def delays_rollout_policy(self) -> bool:
        """Return whether alpha can differ from pi_theta_t, so that the engine must hold a second set of weights."""
        return False

    @property
    def most_generated(self) -> float:
        """Return how many batches of B groups a step generates at most, on average over steps."""
        return 1.0

    @property
    def draws_next_prompts(self) -> bool:
        """Return whether each step draws the next ``batch_size`` prompts and no others, and its rollout has no budget.

        What a step samples is then known beforehand. A method with its own hook may decide by what it has seen. One
        that draws further prompts in ``build_batch`` says False.
        """
        return all(getattr(type(self), n) is getattr(Method, n) for n in ("draw_prompts", "rollout_budget"))

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        """Draw the prompts that this step answers.

        Args:
            step: from 1
            sampler: the engine, for ``sampler.draw``
        """
        return sampler.draw(self.batch_size)

    def syncs_rollout_policy(self, step: int) -> bool:
        """Return whether alpha takes the current weights before this step's rollout.

        Args:
            step: from 1
        """
        return True

    def rollout_budget(self, step: int, longest: int) -> int | None:
        """Return the tokens after which this step's rollout cuts a response off, unfinished; None: at ``longest`` only.

        Args:
            step: from 1
            longest: sampling.max_response_tokens
        """
        return None

    # ------------------------------------------------------------------ after the rewards
    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        """Choose the groups to train on.

        Args:
            step: from 1
            fresh: the groups of this step's rollout, with rewards
            sampler: the engine, for more prompts or responses
        """
        return Batch(list(fresh))

    def advantages(self, group: Group) -> np.ndarray:
        """Return each response's advantage within its group, float32 [G].

        Args:
            group: of the batch, with rewards [G]
        """
        c = self.config
        return advantages.group_relative(group.rewards, c.advantage_std, c.advantage_eps, c.advantage_eps_inside)

    def second_part(self, group: Group) -> np.ndarray:
        """Mark the responses that the loss treats apart (``LossInputs.second_part``), bool [G].

        By default those that this step's rollout did not sample.

        Args:
            group: of the batch
        """
        return group.replayed

    def units(self, groups: list[Group]) -> list[list[Group]]:
        """Split the batch into units that mini-batches keep together: by default, each group alone.

        Args:
            groups: the batch
        """
        return [[g] for g in groups]

    def separate(self, group: Group) -> int:
        """Return the group's rank: ranks never share a mini-batch, and groups of lower rank are trained on first.

        Args:
            group: of the batch
        """
        return 0

    def passes(self, step: int) -> int:
        """Return how often this step's batch is trained on.

        Args:
            step: from 1
        """
        return self.config.passes

    def resets_reference(self, step: int) -> bool:
        """Return whether the reference policy takes the current weights before this step.

        Args:
            step: from 1
        """
        return False

    # ------------------------------------------------------------------ with a critic
    def trains_policy(self, step: int) -> bool:
        """Return whether this step updates the policy: False while a critic warms up.

        Args:
            step: from 1
        """
        return True

    def token_advantages(
        self, rewards: np.ndarray, values: np.ndarray, mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return advantages and returns from the critic's values, for all responses of the batch.

        Args:
            rewards: float32 [N, T], of each token
            values: float32 [N, T], the critic's, of the state before each token
            mask: float32 [N, T], 1 on response tokens

        Returns:
            Two float32 [N, T].

        Raises:
            NotImplementedError: the method has no critic.
        """
        raise NotImplementedError(f"{self.config.algorithm} has no critic")

    def value_loss(self, inputs: ValueInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the scalar that the critic minimises, and detached metrics.

        Args:
            inputs: of a mini-batch

        Raises:
            NotImplementedError: the method has no critic.
        """
        raise NotImplementedError(f"{self.config.algorithm} has no critic")

    # ------------------------------------------------------------------ in each mini-batch
    @property
    def needs_reference(self) -> bool:
        """Return whether the loss reads log-probabilities of the reference policy."""
        return self.config.kl_to == "reference" and bool(self.config.kl_coef)

    @property
    def needs_step_policy(self) -> bool:
        """Return whether the engine scores the batch under the policy at the start of the step (pi_k) for the loss."""
        return self.config.clip_centre == "step-policy" or self.config.sequence_weights != "none"

    def loss(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the scalar to minimise and detached metrics (paper eq. 1 for on-policy methods, eq. 3 for BAPO).

        Each metric is one number, but ``clipped`` [N]: the share of a sequence's tokens at which a clip was active. All
        answers have the same metrics; steps.parquet has their means, weighted by ``recorded_mask``'s tokens.

        Args:
            inputs: of a mini-batch, N responses of at most T tokens
        """
        c, sampled, factors = self.config, inputs, None
        if c.sequence_weights != "none":
            step, alpha = inputs.step_logprobs, inputs.behaviour_logprobs
            assert step is not None
            factors = losses.sequence_weights(step, alpha, inputs.mask, c.sequence_weights, c.sequence_cap)
            sampled = replace(inputs, behaviour_logprobs=step)
        values, clipped = self.surrogate(self.ratio(sampled), sampled)
        if factors is not None:
            values = values * factors[:, None]
        metrics = {"clip_fraction": losses.aggregate(clipped, inputs.recorded_mask, "token-mean")}
        metrics["clipped"] = (clipped * inputs.mask).sum(1) / inputs.mask.sum(1).clamp(min=1.0)
        if c.kl_to != "none" and c.kl_coef:
            kl = self.divergence(inputs)
            values = values + c.kl_coef * kl
            metrics["kl"] = losses.aggregate(kl, inputs.recorded_mask, "token-mean")
        if c.entropy_coef and inputs.entropy is not None:
            values = values - c.entropy_coef * inputs.entropy
        return self.reduce(values * inputs.weights[:, None], inputs), {k: v.detach() for k, v in metrics.items()}

    def ratio(self, inputs: LossInputs) -> Tensor:
        """Return rho [N, T], by default pi_theta / alpha of each token (below eq. 3).

        Args:
            inputs: of a mini-batch
        """
        return losses.importance_ratio(inputs.logprobs, inputs.behaviour_logprobs)

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        """Return the token losses [N, T] before KL, entropy and weights, and where a clip was active.

        Args:
            ratio: rho [N, T]
            inputs: of a mini-batch

        Returns:
            The losses, and 1 where a clip was active; both [N, T].
        """
        c, values = self.config, inputs.advantages
        values = values if values.dim() == 2 else values[:, None]
        centre = None
        if c.clip_centre == "step-policy":
            assert inputs.step_logprobs is not None
            centre = losses.importance_ratio(inputs.step_logprobs, inputs.behaviour_logprobs)
        return losses.clipped_surrogate(ratio, values, c.clip_low, c.clip_high, c.dual_clip, centre)

    def divergence(self, inputs: LossInputs) -> Tensor:
        """Return the penalised KL [N, T] of the current policy, by default to the one that ``kl_to`` names.

        Args:
            inputs: of a mini-batch
        """
        other = inputs.behaviour_logprobs if self.config.kl_to == "rollout" else inputs.reference_logprobs
        assert other is not None
        kl = losses.low_variance_kl(inputs.logprobs, other)
        return kl if self.kl_of_second_part else kl.masked_fill(inputs.second_part[:, None], 0.0)

    def reduce(self, values: Tensor, inputs: LossInputs) -> Tensor:
        """Reduce token losses to the scalar.

        Args:
            values: [N, T]
            inputs: of a mini-batch
        """
        return losses.aggregate(
            values, inputs.mask, self.config.aggregation, inputs.nominal_sequences, inputs.nominal_tokens
        )

    # ------------------------------------------------------------------ checkpoints
    def state(self) -> tuple[State, list[Group]]:
        """Return what a resumed run needs: plain data, and groups, whose token arrays are stored apart."""
        return {name: getattr(self, name) for name in self.saved}, list(self.kept)

    def restore(self, state: State, groups: list[Group], prompt: Callable[[str], Prompt]) -> None:
        """Take back what :meth:`state` returned, in a new method.

        Args:
            state: plain data
            groups: those that were stored
            prompt: finds a training prompt by its id
        """
        for name in self.saved:
            setattr(self, name, state[name])
        self.kept.extend(groups)

    # ------------------------------------------------------------------ helpers
    def random(self, purpose: str, step: int) -> np.random.Generator:
        """Return the random numbers of one purpose in one step; they need no saving.

        Args:
            purpose: a name that no other use of random numbers has
            step: from 1
        """
        return seeds.generator(self.seed, purpose, step)

    @staticmethod
    def replayed(groups: list[Group], step: int | None = None) -> list[Group]:
        """Return groups that the tables of a run count as replayed, as copies.

        Args:
            groups: of a buffer
            step: whose groups are returned as they are; None: all were sampled before
        """
        return [g if g.step == step else g.as_origin(REPLAYED) for g in groups]
