"""BAPO, Algorithm 1 of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bapo.algorithm import losses
from bapo.algorithm.batch import linear_threshold, next_average_reward, online_filter
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.replay import HardPrompt, HardPrompts, HighQuality
from bapo.algorithm.rollouts import REEVALUATED, Group, Prompt, above, between
from bapo.methods.bapo_options import BAPOConfig
from bapo.methods.base import Batch, Method, MethodConfig, Sampler, State, due

if TYPE_CHECKING:
    from torch import Tensor

Groups = list[Group]
NO_SIGNAL = "no signal in X1"  #: why a fresh group is not trained on


class BAPO(Method):
    """Batch Adaptation Policy Optimization (the paper's section 3 and Algorithm 1).

    The batch is X1 + X2 + X3 (eq. 5): fresh groups with a signal, hard prompts that the current policy has learnt to
    solve sometimes, and recent groups of middling accuracy that fill the rest of B. The ratio is
    pi_theta / alpha with the log-probabilities stored at generation, for all three (eq. 3).
    """

    Config: type[MethodConfig] = BAPOConfig
    config: BAPOConfig
    revision = 2  # X3 keeps what it replays, X2's groups enter B_high, a failed prompt goes to the back of B_bad
    summary = "delayed rollout policy; X1 fresh + X2 re-evaluated hard + X3 replayed middling groups"
    source = "paper section 3, Algorithm 1, eq. 3-8"
    cost = "1 + 1/(2m) x rollouts at most, fewer updates"
    saved: tuple[str, ...] = ("average_reward",)

    def __init__(self, config: BAPOConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.bad: HardPrompts[Any] = HardPrompts(config.bad_capacity or batch_size)
        self.kept = self.high = HighQuality(config.high_steps, config.high_capacity)
        self.average_reward: float | None = None

    @property
    def delays_rollout_policy(self) -> bool:
        return self.config.v > 1

    def syncs_rollout_policy(self, step: int) -> bool:
        """Apply Algorithm 1, lines 3-5."""
        return due(step, self.config.v, self.config.sync_phase)

    def build_batch(self, step: int, fresh: Groups, sampler: Sampler) -> Batch:
        """Apply Algorithm 1, lines 8-19. |X1| + |X2| may exceed B when many hard prompts improve at once."""
        c2, c3 = self.thresholds(fresh)  # eq. 8
        self.high.drop_stale(step)
        if self.config.stored_first:
            self.store(fresh, c2, c3)  # lines 8, 9
        x1 = self.filtered_fresh(step, fresh)  # line 11
        x2, failed = self.improved_hard(step, sampler)  # lines 12-15
        room = self.batch_size - len(x1) - len(x2)
        x3 = self.high_quality(step, c2, c3, room, x1)  # line 16
        if not self.config.stored_first:
            self.store(fresh, c2, c3)
        if self.config.store_promoted:
            self.store_high(x2, c2, c3)  # line 19
        return self.batch(fresh, x1, x2, x3, failed, c2=c2, c3=c3)  # line 17

    def batch(self, fresh: Groups, x1: Groups, x2: Groups, x3: Groups, failed: Groups, **metrics: float) -> Batch:
        """Return X1 + X2 + X3, with the groups that are in none of them and the step's numbers for the log."""
        kept = {id(g) for g in x1}
        rejected = [(g, NO_SIGNAL) for g in fresh if id(g) not in kept]
        rejected += [(g, "all correct" if between(g.mean, 1, 1) else "not improved") for g in failed]
        metrics |= {"r_tot": self.average_reward or 0.0, "reevaluated_prompts": len(x2) + len(failed)}
        metrics |= {"bad_buffer": len(self.bad), "high_buffer": len(self.high)}
        return Batch(x1 + x2 + x3, rejected, metrics)

    # ------------------------------------------------------------------ the three parts of I(x), eq. 5
    def filtered_fresh(self, step: int, fresh: Groups) -> Groups:
        """Select X1: 1/G <= mu <= (G-1)/G, or another filter of A.3."""
        c, rng = self.config, self.random("x1", step)
        return online_filter(fresh, c.online_filter, c.filter_mean, c.filter_std, c.filter_share, rng)

    def improved_hard(self, step: int, sampler: Sampler) -> tuple[Groups, Groups]:
        """Re-evaluate hard prompts every m steps; return X2 (eq. 6), those now solved sometimes, and the other groups.

        A prompt above c1 leaves B_bad even if it is all correct and therefore not admitted.
        """
        c = self.config
        if step % c.m or not len(self.bad):
            return [], []
        entries = list(self.bad)[: c.max_reevaluated or max(1, self.batch_size // 2)]
        groups = self.regenerated([e.prompt for e in entries], sampler)
        for entry, group in zip(entries, groups, strict=True):
            if above(group.mean, c.c1):
                self.bad.discard(entry.key)
            elif c.failed_prompt == "requeue":
                self.bad.add(replace(entry, mean=group.mean))
        improved = [g for g in groups if self.admits(g)]
        return improved, [g for g in groups if not self.admits(g)]

    def regenerated(self, prompts: list[Prompt], sampler: Sampler) -> Groups:
        """Answer hard prompts anew, G times each."""
        return [g.as_origin(REEVALUATED) for g in sampler.regenerate(prompts, policy=self.config.x2_policy)]

    def admits(self, group: Group) -> bool:
        """Return whether a re-evaluated group enters X2: c1 < mu < 1 (eq. 6)."""
        return above(group.mean, self.config.c1) and (above(1, group.mean) or self.config.x2_admission == "above-c1")

    def high_quality(self, step: int, c2: float, c3: float, room: int, x1: Groups) -> Groups:
        """Draw X3 (eq. 7) without replacement: at most ``room`` of the stored groups, and none that X1 has."""
        taken = {g.key for g in x1}
        pool = [g for g in self.replayable(c2, c3) if g.key not in taken]
        count = max(0, min(len(pool), room))
        chosen = [pool[i] for i in sorted(self.random("x3", step).choice(len(pool), size=count, replace=False))]
        if self.config.remove_replayed:
            self.high.remove(chosen)
        return self.replayed(chosen)

    def replayable(self, c2: float, c3: float) -> Groups:
        """Return the stored groups that X3 draws from."""
        return [g for g in self.high if self.config.x3_filter == "none" or between(g.mean, c2, c3)]

    # ------------------------------------------------------------------ thresholds and buffers
    def thresholds(self, fresh: Groups) -> tuple[float, float]:
        """Update r_tot and return (c2, c3) of this step (eq. 8)."""
        c, mean = self.config, sum(g.mean for g in fresh) / len(fresh)
        average = next_average_reward(self.average_reward, mean, c.average_reward, c.average_decay)
        self.average_reward = average
        c2, c3 = (linear_threshold(average, low, high, c.threshold_direction) for low, high in (c.c2_range, c.c3_range))
        return c2, c3

    def store(self, fresh: Groups, c2: float, c3: float) -> None:
        """Store fresh groups (Algorithm 1, lines 8 and 9)."""
        for g in fresh:
            if not above(g.mean, self.config.c1):
                self.bad.add(HardPrompt(g.prompt.id, g.prompt, g.mean, g.step))
        self.store_high(fresh, c2, c3)

    def store_high(self, groups: Groups, c2: float, c3: float) -> None:
        informative = self.config.high_admission == "informative"
        fits = [above(g.mean, 0) and above(1, g.mean) if informative else between(g.mean, c2, c3) for g in groups]
        self.high.extend(g for g, fit in zip(groups, fits, strict=True) if fit)

    # ------------------------------------------------------------------ the objective, eq. 3
    def historical(self, group: Group) -> np.ndarray:
        """Mark the responses of X2 and X3 for a separate expectation, bool [G]; otherwise X3's alone."""
        if self.config.expectations == "separate" and group.origin == REEVALUATED:
            return np.ones(group.size, dtype=bool)
        return super().historical(group)

    def reduce(self, values: Tensor, inputs: LossInputs) -> Tensor:
        """Reduce [N, T] token losses to the mean of the batch, or to the sum of eq. 3's two expectations."""
        if self.config.expectations == "pooled":
            return super().reduce(values, inputs)
        return losses.sum_of_parts(values, inputs, self.config.aggregation, (1.0, 1.0))

    # ------------------------------------------------------------------ checkpoints
    def state(self) -> tuple[State, Groups]:
        state, groups = super().state()
        bad = [{"key": e.key, "prompt": e.prompt.id, "mean": e.mean, "step": e.step} for e in self.bad]
        return state | {"bad": bad}, groups

    def restore(self, state: State, groups: Groups, prompt: Callable[[str], Prompt]) -> None:
        super().restore(state, groups, prompt)
        self.bad.restore(HardPrompt(e["key"], prompt(e["prompt"]), e["mean"], e["step"]) for e in state["bad"])
