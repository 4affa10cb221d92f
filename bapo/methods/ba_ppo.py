"""BA-PPO (A.9, Figure 16): BAPO's delayed rollout policy and batches, PPO's critic and advantages."""

from __future__ import annotations

from pydantic import PositiveInt

from bapo.methods.bapo import BAPO, BAPOConfig
from bapo.methods.base import KL
from bapo.methods.ppo import PPO, PPOConfig


class BAPPOConfig(PPOConfig, BAPOConfig):
    """Joins BAPO's options and PPO's."""

    kl_to: KL = "rollout"
    bad_capacity: PositiveInt | None = None  # None: a quarter of the batch size, A.9's 64 of Table 3's 256


class BAPPO(PPO, BAPO):
    """The rollout policy is delayed and the batch is X1 + X2 + X3 as in BAPO; advantages and critic are PPO's.

    Which groups are "without an advantage" in X1 is still decided by their mean rewards (A.9: "removing only
    all-correct and all-wrong groups"). Rows of X2 and X3 get their values, advantages and returns from the critic of
    the step that trains on them, like fresh ones: with lambda = 1 the return is the reward, which does not depend on
    the policy, and the ratio pi_theta / alpha corrects for the policy (eq. 3). A.9's "initial values" of c1, c2 and
    c3 are read as BAPO's, moving with eq. 8; ``c2_range=[0.125,0.125] c3_range=[0.25,0.25]`` fixes them. Its buffer
    size is read as B_bad's, as BAPO does with Table 3's.
    """

    Config = BAPPOConfig
    config: BAPPOConfig
    title = "+BA-PPO"
    kind = "off"
    summary = "BAPO's stale sampling and batch X1 + X2 + X3, with PPO's critic"
    source = "paper A.9, Figure 16"
    cost = "BAPO's rollouts, 2 x its updates (actor, critic)"

    def __init__(self, config: BAPPOConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.bad.capacity = config.bad_capacity or max(1, batch_size // 4)
