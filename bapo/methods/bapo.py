"""BAPO, Algorithm 1 of the paper, and every choice that the paper leaves open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from bapo.algorithm import losses
from bapo.algorithm.batch import linear_threshold, next_average_reward, online_filter
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.replay import HardPrompt, HardPrompts, HighQuality
from bapo.algorithm.rollouts import REEVALUATED, Group, Prompt, above, between
from bapo.methods.base import KL, Batch, Method, MethodConfig, Phase, Sampler, Share, State, Tensor, draw_groups, due

Span = Annotated[list[Share], Field(min_length=2, max_length=2)]  # [low, high]
Groups = list[Group]
#: why a fresh group is not trained on, in the tables of runs. Other filters than "range" leave out groups with a signal
NO_SIGNAL = "no signal in X1"


class BAPOConfig(MethodConfig):
    """The paper's values (Table 3). If the paper leaves a choice, the first option named is the default."""

    kl_to: KL = "rollout"

    # Delayed rollout policy alpha (Algorithm 1, lines 3-5)
    #: steps between two refreshes
    v: PositiveInt = 5
    m: PositiveInt = 5  # steps between two re-evaluations of B_bad
    sync_phase: Phase = "literal"  # literal: t mod v = 0, as printed; first: (t - 1) mod v = 0

    # Thresholds (eq. 8)
    c1: float = Field(0.125, ge=0, lt=1)  # a group with mu <= c1 is bad (eq. 5)
    c2_range: Span = Field([0.125, 0.5])  # between which eq. 8 sets c2, the lower end of high quality
    c3_range: Span = Field([0.25, 0.625])  # and c3, its upper end
    #: rising with r_tot, as printed; falling: "from easier to harder", the sentence above eq. 8
    threshold_direction: Literal["rising", "falling"] = "rising"
    #: r_tot: mean reward of the step's new responses, before X1's filter, or its moving average
    average_reward: Literal["batch", "moving-average"] = "batch"
    average_decay: float = Field(0.9, ge=0, lt=1)  # for moving-average

    # X1: fresh groups (A.3)
    online_filter: Literal["range", "gaussian", "uniform"] = "range"  # range: 1/G <= mu <= (G-1)/G
    filter_mean: Share = 0.5  # gaussian
    filter_std: PositiveFloat = 0.2  # gaussian
    filter_share: float = Field(0.6, gt=0, le=1)  # uniform; gaussian, at most

    # X2: re-evaluated hard prompts (eq. 6)
    bad_capacity: PositiveInt | None = None  # |B_bad|; None: the batch size (256 in Table 3)
    max_reevaluated: PositiveInt | None = None  # at once; None: half the batch size (128 of 256 in Table 3)
    #: False: this step's groups enter the buffers after X2 and X3 are drawn, so that both hold earlier steps' groups;
    #: True: before, in the order of Algorithm 1, whose lines 8 and 9 store and whose lines 14 and 16 draw
    stored_first: bool = False
    #: current: pi_theta_t (eq. 6); rollout: alpha, a control that shows what another draw from an old policy finds
    x2_policy: Literal["current", "rollout"] = "current"
    #: improved: c1 < mu < 1 (eq. 6); above-c1: mu = 1 too (eq. 5)
    x2_admission: Literal["improved", "above-c1"] = "improved"
    #: a re-evaluated prompt that did not improve: requeue: it goes to the back with its new mean, so that every prompt
    #: has its turn; keep: it stays where it is with the mean that it came with
    failed_prompt: Literal["requeue", "keep"] = "requeue"

    # X3: replayed groups of medium accuracy. The default is what all three places say together. Eq. 5 defines X3 by
    # c2 <= mu <= c3 and Algorithm 1, line 16 draws from those of B_high "with mu in [c2, c3]": the thresholds of the
    # step that draws. Eq. 7 draws min(|B_high|, B - |X1| - |X2|) groups and names no condition, which agrees if B_high
    # means the groups that are high-quality now: the sentence before eq. 8 lets that "shift". None of them takes a
    # drawn group out of B_high; only age and FIFO do.
    high_steps: PositiveInt = 3  # age limit of B_high in steps
    high_capacity: PositiveInt | None = None  # groups in B_high; None: the age limit alone
    #: Algorithm 1, line 9; informative: any 0 < mu < 1
    high_admission: Literal["thresholds", "informative"] = "thresholds"
    #: Algorithm 1, line 19 adds "D_t" to B. Lines 8 and 9 have stored the fresh groups that a buffer admits, so D_t is
    #: taken to be X2's groups, as the authors' code does: they enter B_high, where they pass its admission
    store_promoted: bool = True
    #: which of B_high: current: with mu in this step's [c2, c3] (eq. 5, line 16); none: all of it (eq. 7 by itself)
    x3_filter: Literal["current", "none"] = "current"
    remove_replayed: bool = False  # a replayed group leaves B_high

    # The objective (eq. 3)
    #: pooled: one mean over X1, X2 and X3 (Algorithm 1, line 17); separate: the mean over X1 plus that over X2 and X3
    expectations: Literal["pooled", "separate"] = "pooled"

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        for key in ("c2_range", "c3_range"):
            low, high = getattr(self, key)
            self.require(low <= high, key, "must be [low, high], low <= high")
        below = all(c2 <= c3 for c2, c3 in zip(self.c2_range, self.c3_range, strict=True))
        self.require(below, "c2_range", f"c2 must not exceed c3 at either end of c3_range={self.c3_range}")
        if self.average_reward == "batch":
            self.require_default("average_reward=batch", "average_decay")
        of_filter = {"range": ("filter_mean", "filter_std", "filter_share"), "uniform": ("filter_mean", "filter_std")}
        self.require_default(f"online_filter={self.online_filter}", *of_filter.get(self.online_filter, ()))
        return self


class BAPO(Method):
    """Batch Adaptation Policy Optimization (the paper's section 3 and Algorithm 1).

    The batch is X1 + X2 + X3 (eq. 5): fresh groups with a signal, hard prompts that the current policy has learnt to
    solve sometimes, and recent groups of middling accuracy that fill the rest of B. The ratio is
    pi_theta / alpha with the log-probabilities stored at generation, for all three (eq. 3).
    """

    Config: type[MethodConfig] = BAPOConfig
    config: BAPOConfig
    revision = 2  # X3 keeps what it replays, X2's groups enter B_high, a failed prompt goes to the back of B_bad
    title = "+BAPO"
    kind = "off"
    summary = "stale sampling; X1 new + X2 re-evaluated hard + X3 replayed middling groups"
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

    @property
    def reevaluated_at_once(self) -> int:
        """Return how many hard prompts are sampled again at most, every m steps."""
        return self.config.max_reevaluated or max(1, self.batch_size // 2)

    @property
    def most_generated(self) -> float:
        return 1.0 + self.reevaluated_at_once / self.batch_size / self.config.m

    def syncs_rollout_policy(self, step: int) -> bool:
        """Apply Algorithm 1, lines 3-5."""
        return due(step, self.config.v, self.config.sync_phase)

    def build_batch(self, step: int, fresh: Groups, sampler: Sampler) -> Batch:
        """Apply Algorithm 1, lines 8 to 17 and 19. |X1| + |X2| may exceed B when many hard prompts improve at once."""
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
        """Return X1 + X2 + X3, with the groups that are in none of them and the step's numbers for the log.

        Args:
            fresh: all groups of the step's rollout
            x1, x2, x3: the parts of the batch
            failed: re-evaluated groups that X2 does not admit
            metrics: further numbers of the step
        """
        x1_ids = {id(g) for g in x1}
        rejected = [(g, NO_SIGNAL) for g in fresh if id(g) not in x1_ids]
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
        entries = list(self.bad)[: self.reevaluated_at_once]
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
        return sampler.regenerate(prompts, REEVALUATED, self.config.x2_policy)

    def admits(self, group: Group) -> bool:
        """Return whether a re-evaluated group enters X2: c1 < mu < 1 (eq. 6)."""
        return above(group.mean, self.config.c1) and (above(1, group.mean) or self.config.x2_admission == "above-c1")

    def high_quality(self, step: int, c2: float, c3: float, room: int, x1: Groups) -> Groups:
        """Draw X3 (eq. 7) without replacement: at most ``room`` of the stored groups, and none that X1 has.

        Args:
            step: the training step, 1-based
            c2, c3: its thresholds (eq. 8)
            room: places that X1 and X2 leave in the batch, maybe none
            x1: the fresh groups in the batch, which may be stored already
        """
        x1_keys = {g.key for g in x1}
        pool = [g for g in self.replayable(c2, c3) if g.key not in x1_keys]
        count = max(0, min(len(pool), room))
        x3 = draw_groups(pool, count, self.random("x3", step))
        if self.config.remove_replayed:
            self.high.remove(x3)
        return self.replayed(x3)

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
    def second_part(self, group: Group) -> np.ndarray:
        """Mark the responses of X2 and X3 for a separate expectation, bool [G]; otherwise X3's alone."""
        if self.config.expectations == "separate" and group.origin == REEVALUATED:
            return np.ones(group.size, dtype=bool)
        return super().second_part(group)

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
