"""An example of a task of the library reasoning-gym: the setting names the data set and its arguments."""

from bapo.tasks.reasoning_gym import ReasoningGym


class ChainSum(ReasoningGym):
    name = "chain_sum"
