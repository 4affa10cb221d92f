"""LUFFY: an expert's solution takes a place in every group."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveInt

from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import Group
from bapo.errors import UserError
from bapo.methods.base import Batch, Sampler, Tensor
from bapo.methods.parts.mixed import MixedConfig, MixedMethod, mixed, shaped_loss


class LUFFYConfig(MixedConfig):
    demonstrations: PositiveInt = 1  # responses of a group replaced by the expert's solution (n_prefix)
    shape: NonNegativeFloat = 0.1  # gamma of policy shaping x / (x + gamma); 0: the plain ratio


class LUFFY(MixedMethod):
    """Learning under off-policy guidance (Yan et al. 2504.14945; ElliottYan/LUFFY ``mix_src/mix_core_alg.py`` and
    ``exp_scripts/train.sh``).

    G - 1 fresh responses and the expert's form one group, whose rewards give all advantages, not divided by their
    standard deviation (``grpo_use_std=False``). On the expert's tokens the ratio is pi_theta / 1, as if the expert were
    certain, shaped by f(x) = x / (x + 0.1) and never clipped (``p_div_p_0.1``); fresh responses have the ratio
    pi_theta / alpha without a clip (``loss_remove_clip=True``; the paper's equation has one: on_policy_clip). There is
    no KL, and the entropy bonus is the setting's.

    Differences from the reference: G responses are generated and the last gives way; the expert is the task's, at
    laptop scale an exhaustive search, not DeepSeek-R1; token losses are averaged, see :class:`MixedConfig`. A prompt
    without a solution keeps its fresh group.
    """

    Config = LUFFYConfig
    config: LUFFYConfig
    title = "+LUFFY"
    summary = "an expert's solution takes a place in every group; its ratio is shaped, not clipped"
    source = "Yan et al. 2504.14945; ElliottYan/LUFFY"
    cost = "1 x rollouts, and an expert"

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        """Put the solutions into the groups. Raises UserError where they would leave no fresh response."""
        count = self.config.demonstrations
        if fresh and count >= fresh[0].size:
            raise UserError(f"method.demonstrations={count}: must be below train.group_size={fresh[0].size}")
        solutions = sampler.demonstrate([g.prompt for g in fresh])
        groups = [g if s is None else mixed(g, s.select([0] * count)) for g, s in zip(fresh, solutions, strict=True)]
        return Batch(groups, metrics={"demonstrations": count * sum(s is not None for s in solutions)})

    def off_policy(self, ratio: Tensor, inputs: LossInputs) -> Tensor:
        return shaped_loss(ratio, inputs, self.config.shape)
