"""LUFFY and ReLIFT: an expert's solutions take places in groups, or are learnt in supervised updates.

Groups that mix fresh responses with another policy's, which have a separate loss, are ExGRPO's too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from bapo.algorithm import losses
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import DEMONSTRATED, Group
from bapo.errors import UserError
from bapo.methods.base import KL, Batch, Mean, Method, MethodConfig, Sampler, Spread, Type

if TYPE_CHECKING:
    from torch import Tensor


class MixedConfig(MethodConfig):
    """The common settings of the launch scripts of LUFFY, ExGRPO and ReLIFT.

    The scripts divide the sum of the token losses by a constant, the longest response (``loss_remove_token_mean``), so
    that a token weighs the same in every response; so does token-mean, without a constant.
    """

    kind: Type = "off"
    advantage_std: Spread = "none"  # grpo_use_std=False
    aggregation: Mean = "token-mean"
    kl_to: KL = "none"
    kl_coef: NonNegativeFloat = 0.0
    on_policy_clip: bool = False  # fresh responses keep GRPO's clip; the scripts have loss_remove_clip=True


class MixedMethod(Method):
    """GRPO on fresh responses, :meth:`off_policy` on those that this step's rollout did not sample."""

    config: MixedConfig

    def off_policy(self, ratio: Tensor, inputs: LossInputs) -> Tensor:
        """Return the token losses [N, T] of another policy's responses; ratio [N, T] is pi_theta to that policy."""
        raise NotImplementedError

    def clips(self, inputs: LossInputs) -> bool:
        """Return whether fresh responses have GRPO's clip in this mini-batch."""
        return self.config.on_policy_clip

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        values, clipped = super().surrogate(ratio, inputs)
        if not self.clips(inputs):
            values, clipped = -inputs.advantages[:, None] * ratio, clipped.new_zeros(clipped.shape)
        others = inputs.replayed[:, None]
        return self.off_policy(ratio, inputs).where(others, values), clipped.masked_fill(others, 0.0)

    def divergence(self, inputs: LossInputs) -> Tensor:
        """Restrict the KL to fresh responses."""
        return super().divergence(inputs).masked_fill(inputs.replayed[:, None], 0.0)


def mixed(group: Group, others: Group) -> Group:
    """Replace the group's last responses by ``others``, another policy's to the same prompt.

    The references generate fewer fresh responses instead; here an engine generates G for every prompt.
    """
    kept = group.select(range(group.size - others.size))
    return replace(
        group,
        rewards=np.concatenate([kept.rewards, others.rewards]),
        samples=kept.samples and type(kept.samples).concatenate([kept.samples, others.samples]),
        off_policy=np.arange(group.size) >= kept.size,
    )


def shaped_loss(ratio: Tensor, inputs: LossInputs, shape: float) -> Tensor:
    """Return -A f(ratio) for each token: f(x) = x / (x + shape) is steep at tokens that the policy finds unlikely."""
    return -inputs.advantages[:, None] * (ratio / (ratio + shape) if shape else ratio)


class LUFFYConfig(MixedConfig):
    demonstrations: PositiveInt = 1  # responses of a group replaced by the expert's solution (n_prefix)
    shape: NonNegativeFloat = 0.1  # gamma of policy shaping x / (x + gamma); 0: the plain ratio


class LUFFY(MixedMethod):
    """Learning under off-policy guidance (Yan et al. 2504.14945; ElliottYan/LUFFY ``mix_src/mix_core_alg.py`` and
    ``exp_scripts/train.sh``).

    G - 1 fresh responses and the expert's form one group, whose rewards give all advantages, not divided by their
    standard deviation (``grpo_use_std=False``). On the expert's tokens the ratio is pi_theta / 1, as if the expert were
    certain, shaped by f(x) = x / (x + 0.1) and never clipped (``p_div_p_0.1``); fresh responses have the ratio
    pi_theta / alpha without a clip (``loss_remove_clip=True``; the paper's equation has one: on_policy_clip). No KL;
    entropy 0.001.

    Differences from the reference: G responses are generated and the last gives way; the expert is the task's, at
    laptop scale an exhaustive search, not DeepSeek-R1; token losses are averaged, see :class:`MixedConfig`. A prompt
    without a solution keeps its fresh group.
    """

    Config = LUFFYConfig
    config: LUFFYConfig
    summary = "an expert's solution takes a place in every group; its ratio is shaped, not clipped"
    source = "Yan et al. 2504.14945; ElliottYan/LUFFY"
    cost = "1 x rollouts, and an expert"

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        count = self.config.demonstrations
        if fresh and count >= fresh[0].size:
            raise UserError(f"method.demonstrations={count}: must be below train.group_size={fresh[0].size}")
        solutions = sampler.demonstrate([g.prompt for g in fresh])
        groups = [g if s is None else mixed(g, s.select([0] * count)) for g, s in zip(fresh, solutions, strict=True)]
        return Batch(groups, metrics={"demonstrations": count * sum(s is not None for s in solutions)})

    def off_policy(self, ratio: Tensor, inputs: LossInputs) -> Tensor:
        return shaped_loss(ratio, inputs, self.config.shape)


class ReLIFTConfig(MixedConfig):
    buffer_share: PositiveFloat = 1.0  # solutions in a supervised update, as a share of train.batch_size


class ReLIFT(MixedMethod):
    """Reinforcement learning interleaved with fine-tuning (Ma et al. 2506.07527; TheRoadQaQ/ReLIFT
    ``relift/trainer.py``, ``relift/core_algos.compute_sft_loss`` and ``examples/math-7b/train.sh``).

    A question that all G responses get wrong enters the front of a buffer with the expert's solution. Once the buffer
    holds as many as a batch has questions (128 of both in the reference), the step's policy updates are followed by one
    supervised update on that many from the front: the mean over tokens of -log pi_theta, less the entropy bonus. The
    reinforcement learning is GRPO without division by the standard deviation, clip (on_policy_clip) or KL.

    Differences from the reference: one optimiser and one gradient clip serve both losses (a second AdamW there, with
    the same learning rate); the expert is the task's; token losses are averaged, see :class:`MixedConfig`. A question
    without a solution does not enter.
    """

    Config = ReLIFTConfig
    config: ReLIFTConfig
    kept: list[Group]  # solutions, the newest step's first
    summary = "supervised updates on expert solutions of questions that are all wrong, once a buffer is full"
    source = "Ma et al. 2506.07527; TheRoadQaQ/ReLIFT"
    cost = "1 x rollouts, and an expert"

    def __init__(self, config: ReLIFTConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.capacity = max(1, round(config.buffer_share * batch_size))

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        hard = [g.prompt for g in fresh if not g.rewards.any()]
        self.kept = [s for s in sampler.demonstrate(hard) if s is not None] + self.kept
        supervised: list[Group] = []
        if len(self.kept) >= self.capacity:
            supervised, self.kept = self.kept[: self.capacity], self.kept[self.capacity :]
        return Batch(list(fresh) + supervised, metrics={"demonstrations": len(supervised), "buffered": len(self.kept)})

    # ------------------------------------------------------------------ in each mini-batch
    def separate(self, group: Group) -> int:
        """Put supervised updates last."""
        return int(group.origin == DEMONSTRATED)

    def units(self, groups: list[Group]) -> list[list[Group]]:
        """Keep all solutions in one mini-batch (sft_mini_batch_size = sft_data_size)."""
        solutions = [g for g in groups if g.origin == DEMONSTRATED]
        return [[g] for g in groups if g.origin != DEMONSTRATED] + ([solutions] if solutions else [])

    def off_policy(self, ratio: Tensor, inputs: LossInputs) -> Tensor:
        return -inputs.logprobs

    def reduce(self, values: Tensor, inputs: LossInputs) -> Tensor:
        """Average a supervised mini-batch over its tokens whatever the aggregation."""
        if bool(inputs.replayed.all()):
            return losses.aggregate(values, inputs.mask, "token-mean", None, inputs.nominal_tokens)
        return super().reduce(values, inputs)
