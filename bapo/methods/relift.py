"""ReLIFT: between GRPO's updates, supervised ones on solutions of the hardest questions."""

from __future__ import annotations

from pydantic import PositiveFloat

from bapo.algorithm import losses
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import DEMONSTRATED, Group
from bapo.methods.base import Batch, Sampler, Tensor
from bapo.methods.parts.mixed import MixedConfig, MixedMethod


class ReLIFTConfig(MixedConfig):
    buffer_share: PositiveFloat = 1.0  # solutions in a supervised update, as a share of train.batch_size


class ReLIFT(MixedMethod):
    """Reinforcement learning interleaved with fine-tuning (Ma et al. 2506.07527; TheRoadQaQ/ReLIFT
    ``relift/trainer.py``, ``relift/core_algos.compute_sft_loss`` and ``examples/math-7b/train.sh``).

    A question that all G responses get wrong enters the front of a buffer with the expert's solution. The buffer is
    full when it holds as many as a batch has questions (128 of both in the reference). Then one supervised update on
    that many from the front follows the step's policy updates: its loss is the mean over tokens of -log pi_theta, less
    the entropy bonus. The reinforcement learning is GRPO without division by the standard deviation, clip
    (on_policy_clip) or KL.

    Differences from the reference: one optimiser and one gradient clip serve both losses (a second AdamW there, with
    the same learning rate); the expert is the task's; token losses are averaged, see :class:`MixedConfig`. A question
    without a solution does not enter.
    """

    Config = ReLIFTConfig
    config: ReLIFTConfig
    kept: list[Group]  # solutions, the newest step's first
    title = "+ReLIFT"
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
        return Batch(fresh + supervised, metrics={"demonstrations": len(supervised), "buffered": len(self.kept)})

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
        if bool(inputs.second_part.all()):
            return losses.aggregate(values, inputs.mask, "token-mean", None, inputs.nominal_tokens)
        return super().reduce(values, inputs)
