"""PPO with a critic, the baseline of the paper's appendix A.9 and Figure 16."""

from __future__ import annotations

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from bapo.algorithm import advantages, losses
from bapo.algorithm.losses import ValueInputs
from bapo.methods.base import Method, MethodConfig, Share, Tensor


class PPOConfig(MethodConfig):
    """verl's values for the critic; the paper gives only lambda (Table 3)."""

    gamma: Share = 1.0  # discount of the rewards of later tokens
    gae_lambda: Share = 1.0  # Table 3
    whiten_advantages: bool = True  # over all tokens of the batch
    value_clip: NonNegativeFloat = 0.5  # 0: off
    #: critic's learning rate over train.learning_rate: verl's 1e-5 over Table 3's 1e-6
    critic_rate_ratio: PositiveFloat = 10.0
    critic_warmup: NonNegativeInt = 0  # first steps, which train only the critic
    unread = ("advantage_std", "advantage_eps", "advantage_eps_inside")


class PPO(Method):
    """Proximal Policy Optimization (Schulman et al. 2017) as verl's ``gae`` runs it, on G responses per prompt.

    A critic of the policy's architecture, started from the same base, gives each prefix a value. Tokens have GAE's
    advantages, whitened over the batch; the critic is updated before the policy. The policy's loss is GRPO's with
    these advantages. A.9 changes nothing else in the BAPO configuration, so G stays 8 and all prompts are used.
    """

    Config: type[MethodConfig] = PPOConfig
    config: PPOConfig
    title = "+PPO"
    summary = "actor and critic, generalised advantage estimation, on policy"
    source = "Schulman et al. 2017, 2016; verl `gae`; paper A.9"
    cost = "1 x rollouts, 2 x updates (actor, critic)"
    uses_critic = True

    def trains_policy(self, step: int) -> bool:
        return step > self.config.critic_warmup

    def token_advantages(
        self, rewards: np.ndarray, values: np.ndarray, mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        c = self.config
        estimates, returns = advantages.gae(rewards, values, mask, c.gamma, c.gae_lambda)
        return advantages.whiten(estimates, mask) if c.whiten_advantages else estimates, returns

    def value_loss(self, inputs: ValueInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the clipped squared error, averaged like the policy's loss (as verl's critics are by default)."""
        loss, clipped = losses.clipped_value_loss(
            inputs.values, inputs.old_values, inputs.returns, self.config.value_clip
        )
        share = losses.aggregate(clipped, inputs.mask, "token-mean")
        sizes = inputs.nominal_sequences, inputs.nominal_tokens
        mean = losses.aggregate(loss, inputs.mask, self.config.aggregation, *sizes)
        return mean, {"value_clip_fraction": share.detach()}
