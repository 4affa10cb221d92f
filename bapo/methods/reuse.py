"""Prompt Replay, FIFO replay and FreshPER: prompts or groups of earlier steps come back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from bapo.algorithm.rollouts import FRESH, REPLAYED, Group, Prompt, between
from bapo.methods.base import Batch, Method, MethodConfig, Sampler, Share, State, Type


class PromptReplayConfig(MethodConfig):
    share: Share = 0.75  # epsilon: largest share of a batch that comes back
    lowest: Share = 0.25  # p_min: pass rate of a prompt that may come back
    highest: Share = 0.75  # p_max
    cooldown: PositiveInt = 10  # C: steps until a prompt may come back
    uses: PositiveInt = 15  # R: times that a prompt comes back at most


class PromptReplay(Method):
    """Prompt Replay (Baroian & Berger 2603.21177): prompts come back, never responses, so GRPO stays on policy.

    After a step, prompts with p_min <= p <= p_max right answers enter a buffer, and all others of the step leave it.
    At most epsilon * B prompts of a step come from there, the smallest |p - 1/2| first; the stream fills the rest. A
    prompt waits at least C steps after it was trained on, and comes back at most R times.

    The paper's algorithm could not be read. Rules and values follow a survey's summary. Chosen here: ties come back in
    the order of their entry, the buffer has no capacity, and a prompt that the stream draws again keeps its count.
    """

    Config = PromptReplayConfig
    config: PromptReplayConfig
    summary = "prompts near half right come back, answered anew"
    source = "Baroian & Berger 2603.21177"
    saved = ("buffer",)

    def __init__(self, config: PromptReplayConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.buffer: dict[str, tuple[float, int, int]] = {}  # prompt id -> pass rate, step of it, times it came back
        self.prompts: dict[str, Prompt] = {}
        self.chosen: list[str] = []

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        c = self.config
        ready = [name for name, (_, last, uses) in self.buffer.items() if step - last >= c.cooldown and uses < c.uses]
        count = min(len(ready), int(c.share * self.batch_size))
        fresh = sampler.draw(self.batch_size - count)
        drawn = {p.id for p in fresh}
        ready.sort(key=lambda name: abs(self.buffer[name][0] - 0.5))
        self.chosen = [name for name in ready if name not in drawn][:count]
        return [self.prompts[n] for n in self.chosen] + fresh + sampler.draw(count - len(self.chosen))

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        for group in fresh:
            name = group.prompt.id
            _, _, uses = self.buffer.pop(name, (0.0, 0, 0))
            if between(group.mean, self.config.lowest, self.config.highest):
                self.buffer[name], self.prompts[name] = (group.mean, step, uses + (name in self.chosen)), group.prompt
        return Batch(
            list(fresh), metrics={"replayed_prompts": len(self.chosen), "prompt_buffer": float(len(self.buffer))}
        )

    def restore(self, state: State, groups: list[Group], prompt: Callable[[str], Prompt]) -> None:
        super().restore(state, groups, prompt)
        self.prompts = {name: prompt(name) for name in self.buffer}


class FIFOReplayConfig(MethodConfig):
    kind: Type = "off"
    fresh_share: float = Field(0.5, gt=0, le=1)  # R / B; each group is trained on B / R times on average
    horizon: PositiveInt = 8  # N / R: steps that a group stays in the buffer


class FIFOReplay(Method):
    """Uniform replay from a FIFO buffer (Arnal et al. 2604.08706, section 4).

    Each step generates R groups, puts them into a buffer of the last N, and trains on B drawn uniformly from it:
    g = 1/B sum_j G(theta, z_ij). While the buffer holds fewer than B, all of them are drawn. They stay in the buffer.

    A step costs B + mu R, mu being the price of a rollout in trained responses. So fewer rollouts are cheaper:
    gamma = (1 + mu R/B) / (1 + mu) of a step without replay. The price is staleness, up to the horizon N/R, and reuse,
    the replay ratio B/R: both add to the gradient's variance, sigma^2(N/R) (1/B + 1/N + rho/R). The best N/R minimises
    sigma^2(x) (sqrt(1/mu) + sqrt(rho + 1/x))^2, and B/R = sqrt(mu / (rho + 1/x)): the dearer a rollout, the more
    replay.

    A step draws no group twice, as in the paper's Listing 5; its analysis draws with replacement. The paper's buffer
    holds single responses with the advantages of their groups; here a group stays together. Its asynchronous workers,
    its buffer that keeps right responses for longer, and AsymRE are left out.
    """

    Config = FIFOReplayConfig
    config: FIFOReplayConfig
    kept: list[Group]
    summary = "batches drawn uniformly from the last N groups, of which R are new"
    source = "Arnal et al. 2604.08706"
    cost = "R/B x rollouts"

    def __init__(self, config: FIFOReplayConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.generated = max(1, round(config.fresh_share * batch_size))

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        return sampler.draw(self.generated)

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        self.kept = [*self.kept, *fresh][-self.config.horizon * self.generated :]
        count = min(self.batch_size, len(self.kept))
        chosen = self.random("fifo replay", step).choice(len(self.kept), size=count, replace=False)
        groups = [self.kept[i] for i in sorted(chosen)]
        return Batch(
            [g.as_origin(FRESH if g.step == step else REPLAYED) for g in groups],
            metrics={"replay_buffer": len(self.kept), "replay_age": float(np.mean([step - g.step for g in groups]))},
        )


class FreshPERConfig(MethodConfig):
    kind: Type = "off"
    age_decay: PositiveFloat = 125.0  # tau in steps: 500 gradient steps at four updates a step
    exponent: NonNegativeFloat = 0.6  # alpha of prioritised replay
    correction: Share = 0.4  # beta, which rises to 1
    correction_steps: PositiveInt = 150  # until beta is 1
    replays: PositiveInt = 1  # K: replayed batches a step
    capacity: PositiveInt = 1600  # groups


class FreshPER(Method):
    """Freshness-aware prioritised replay (Ma et al. 2604.16918; Vision-CAIR/Freshness-Aware-PER).

    A step trains on its fresh batch, then on K batches from a buffer that holds at least one batch. They are drawn with
    P_i = p_i^alpha / sum_j p_j^alpha, p_i = p_i^base exp(-age_i / tau): a stratified draw, one group from each of equal
    shares of the mass. The loss of a drawn group is weighted by (n P_i)^-beta over the largest such weight of the draw,
    n groups being stored.

    The paper replays trajectories on REINFORCE++ with p^base = |reward| + epsilon. Here the unit is a group on GRPO's
    loss, so p^base is its mean |advantage| + 1e-6, the paper's choice where advantages are known: a group without an
    advantage teaches nothing. Groups enter after the draw, and the oldest leave a full buffer. beta rises linearly; how
    fast the paper's does could not be read.
    """

    Config = FreshPERConfig
    config: FreshPERConfig
    kept: list[Group]
    summary = "a second batch drawn by advantage and freshness from a buffer"
    source = "Ma et al. 2604.16918; Vision-CAIR/Freshness-Aware-PER"
    cost = "1 x rollouts, 2 x updates"

    def __init__(self, config: FreshPERConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.weights: dict[int, float] = {}  # of this step's replayed groups

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        replayed, weights = self._drawn(step) if len(self.kept) >= self.batch_size else ([], np.empty(0))
        self.weights = {id(g): float(w) for g, w in zip(replayed, weights, strict=True)}
        self.kept = [*self.kept, *fresh][-self.config.capacity :]
        age = float(np.mean([step - g.step for g in replayed])) if replayed else 0.0
        return Batch([*fresh, *replayed], metrics={"replay_buffer": len(self.kept), "replay_age": age})

    def _drawn(self, step: int) -> tuple[list[Group], np.ndarray]:
        """Draw groups and the weights of their losses."""
        c, count = self.config, self.config.replays * self.batch_size
        chances = self.chances(step)
        shares = (np.arange(count) + self.random("freshper", step).random(count)) / count
        chosen = np.searchsorted(np.cumsum(chances), shares).clip(max=len(chances) - 1)
        beta = c.correction + (1 - c.correction) * min(1.0, step / c.correction_steps)
        weights = (len(chances) * chances[chosen]) ** -beta
        return self.replayed([self.kept[i] for i in chosen]), weights / weights.max()

    def chances(self, step: int) -> np.ndarray:
        """Return P of each stored group, float64 [n]."""
        base = np.array([np.abs(self.advantages(g)).mean() for g in self.kept]) + 1e-6
        ages = np.array([step - g.step for g in self.kept])
        priorities = (base * np.exp(-ages / self.config.age_decay)) ** self.config.exponent
        return priorities / priorities.sum()

    def weight(self, group: Group) -> float:
        return self.weights.get(id(group), 1.0)

    def separate(self, group: Group) -> int:
        """Put replayed groups last, in mini-batches of their own."""
        return int(group.origin == REPLAYED)
