"""BAPO, Algorithm 1 of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bapo.algorithm.batch import gaussian_filter, range_filter, uniform_filter
from bapo.algorithm.replay import HardPrompt, HardPrompts, HighQuality
from bapo.algorithm.rollouts import REEVALUATED, Group, Prompt, above, between
from bapo.algorithm.thresholds import linear_threshold, next_average_reward
from bapo.methods.base import Batch, Method, MethodConfig, Sampler
from bapo.methods.grpo_delayed import due
from bapo.validate import ONE, POSITIVE, Rule, at_least, one_of, setting, within

SPAN = Rule(lambda ends: len(ends) == 2 and 0 <= ends[0] <= ends[1] <= 1, "must be [low, high] in [0, 1]")
COUNT = at_least(1, ", or null for the default")


@dataclass
class BAPOConfig(MethodConfig):
    """The paper's values (Table 3). If the paper leaves a choice, the first option named is the default."""

    algorithm: str = "bapo"
    name: str = "bapo"
    kind: str = "off"
    kl_to: str = "rollout"  # eq. 3's alpha; "reference": eq. 1's

    # Delayed rollout policy alpha (Algorithm 1, lines 3-5)
    #: steps between two refreshes
    v: int = setting(5, at_least(1, " (1 refreshes the rollout policy before every step)"))
    m: int = setting(5, at_least(1, " (1 re-evaluates at every step)"))  # steps between two re-evaluations of B_bad
    #: literal: t mod v = 0, as printed; first: (t - 1) mod v = 0
    sync_phase: str = setting("literal", one_of("literal", "first"))

    # Thresholds (eq. 8)
    c1: float = setting(0.125, within(0, 1, "[0, 1)"))
    c2_range: list[float] = setting([0.125, 0.5], SPAN)
    c3_range: list[float] = setting([0.25, 0.625], SPAN)
    #: rising with r_tot, as printed; falling: "from easier to harder"
    threshold_direction: str = setting("rising", one_of("rising", "falling"))
    #: r_tot: mean reward of this batch, its moving average, or the mean of B_high
    average_reward: str = setting("batch", one_of("batch", "moving-average", "buffer"))
    average_decay: float = setting(0.9, within(0, 1, "[0, 1)"))  # for moving-average

    # X1: fresh groups (A.3)
    online_filter: str = setting("range", one_of("range", "gaussian", "uniform"))  # range: 1/G <= mu <= (G-1)/G
    filter_mean: float = 0.5  # gaussian
    filter_std: float = setting(0.2, POSITIVE)  # gaussian
    filter_share: float = setting(0.6, within(0, 1, "(0, 1]"))  # uniform

    # X2: re-evaluated hard prompts (eq. 6)
    bad_capacity: int | None = setting(None, COUNT)  # |B_bad|; None: the batch size (256 in Table 3)
    max_reevaluated: int | None = setting(None, COUNT)  # at once; None: half the batch size (128 of 256 in Table 3)
    reevaluation_order: str = setting("oldest", one_of("oldest", "newest"))
    insert_before_reevaluation: bool = False  # also re-evaluate this step's hard prompts
    #: eq. 6: c1 < mu < 1; above-c1: eq. 5, mu = 1 too; above-stored: any gain (the authors' code)
    x2_admission: str = setting("improved", one_of("improved", "above-c1", "above-stored"))
    keep_promoted: bool = False  # an improved prompt stays in B_bad (the authors' code)
    #: persistent: u_i; per-draw: a prompt may sit in B_bad many times (the authors' code)
    prompt_identity: str = setting("persistent", one_of("persistent", "per-draw"))
    x2_weight: float = setting(1.0, at_least(0))  # weight of X2's loss; 3 in one of the authors' scripts

    # X3: replayed groups of medium accuracy (eq. 7)
    high_steps: int = setting(3, ONE)  # age limit of B_high in steps
    high_capacity: int | None = setting(None, COUNT)  # groups in B_high; None: the age limit alone
    #: Algorithm 1, line 9; informative: any 0 < mu < 1
    high_admission: str = setting("thresholds", one_of("thresholds", "informative"))
    #: overflow: age counts only when B_high is over its capacity (the authors' code)
    high_eviction: str = setting("age", one_of("age", "overflow"))
    #: which accuracy must lie in [c2, c3]: the stored one, or the current policy's
    x3_choice: str = setting("stored", one_of("stored", "re-evaluated"))
    remove_replayed: bool = True  # a replayed group leaves B_high

    def __post_init__(self) -> None:
        super().__post_init__()
        for end, c2, c3 in zip(("low", "high"), self.c2_range, self.c3_range, strict=True):
            cure = f"c2 must not exceed c3, but its {end} end {c2} is above c3_range's {c3}"
            self.require(c2 <= c3, "c2_range", cure)
        self.require(
            self.high_eviction == "age" or self.high_capacity is not None,
            "high_eviction",
            "overflow needs method.high_capacity, or nothing is ever forgotten",
        )


class BAPO(Method):
    """Batch Adaptation Policy Optimization (the paper's section 3 and Algorithm 1).

    The batch is X1 + X2 + X3 (eq. 5): fresh groups with a signal, hard prompts that the current policy has learnt to
    solve sometimes, and recent groups of middling accuracy that fill the rest of B. The ratio is
    pi_theta / alpha with the log-probabilities stored at generation, for all three (eq. 3).
    """

    Config = BAPOConfig
    summary = "delayed rollout policy; X1 fresh + X2 re-evaluated hard + X3 replayed middling groups"
    source = "paper section 3, Algorithm 1, eq. 3-8"
    cost = "1 + 1/(2m) x rollouts at most, fewer updates"

    def __init__(self, config: BAPOConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.bad = HardPrompts(config.bad_capacity or batch_size)
        self.high = HighQuality(config.high_steps, config.high_capacity, config.high_eviction)
        self.average_reward: float | None = None

    @property
    def delays_rollout_policy(self) -> bool:
        return self.config.v > 1

    def syncs_rollout_policy(self, step: int) -> bool:
        """Apply Algorithm 1, lines 3-5."""
        return due(step, self.config.v, self.config.sync_phase)

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        """Apply Algorithm 1, lines 8-17. |X1| + |X2| may exceed B when many hard prompts improve at once."""
        c2, c3 = self.thresholds(fresh)
        self.high.drop_stale(step)
        if self.config.insert_before_reevaluation:
            self._store_hard(fresh)
        x1 = self.filtered_fresh(step, fresh)
        x2, failed = self.improved_hard(step, sampler)
        x3 = self.high_quality(step, c2, c3, self.batch_size - len(x1) - len(x2), sampler)
        if not self.config.insert_before_reevaluation:
            self._store_hard(fresh)
        self._store_high(fresh, c2, c3)
        kept = {id(g) for g in x1}
        rejected = [(g, "no signal in X1") for g in fresh if id(g) not in kept]
        rejected += [(g, "all correct" if between(g.mean, 1, 1) else "not improved") for g in failed]
        metrics = {
            "c2": c2,
            "c3": c3,
            "r_tot": self.average_reward,
            "reevaluated_prompts": len(x2) + len(failed),
            "bad_buffer": len(self.bad),
            "high_buffer": len(self.high),
        }
        return Batch(x1 + x2 + x3, rejected, metrics)

    # ------------------------------------------------------------------ the three parts of I(x), eq. 5
    def filtered_fresh(self, step: int, fresh: list[Group]) -> list[Group]:
        """Select X1: 1/G <= mu <= (G-1)/G, or another filter of A.3."""
        c = self.config
        if c.online_filter == "gaussian":
            return gaussian_filter(fresh, c.filter_mean, c.filter_std, self.random("x1", step))
        if c.online_filter == "uniform":
            return uniform_filter(fresh, c.filter_share, self.random("x1", step))
        return range_filter(fresh)

    def improved_hard(self, step: int, sampler: Sampler) -> tuple[list[Group], list[Group]]:
        """Re-evaluate hard prompts every m steps; return X2 (eq. 6), those now solved sometimes, and the other groups.

        A prompt above c1 leaves B_bad even if it is all correct and therefore not admitted.
        """
        if step % self.config.m or not len(self.bad):
            return [], []
        limit = self.config.max_reevaluated or max(1, self.batch_size // 2)
        entries = self.bad.candidates(limit, self.config.reevaluation_order)
        improved, failed = [], []
        for entry, group in zip(entries, sampler.regenerate([e.prompt for e in entries]), strict=True):
            if above(group.mean, self.config.c1) and not self.config.keep_promoted:
                self.bad.discard(entry.key)
            (improved if self._admits(entry, group) else failed).append(group.as_origin(REEVALUATED))
        return improved, failed

    def _admits(self, entry: HardPrompt, group: Group) -> bool:
        if self.config.x2_admission == "above-stored":
            return above(group.mean, entry.mean)
        all_correct = between(group.mean, 1, 1)
        return above(group.mean, self.config.c1) and not (all_correct and self.config.x2_admission == "improved")

    def high_quality(self, step: int, c2: float, c3: float, room: int, sampler: Sampler) -> list[Group]:
        """Draw X3 (eq. 7) without replacement: at most ``room`` groups of B_high with accuracy in [c2, c3]."""
        if room <= 0 or not len(self.high):
            return []
        if self.config.x3_choice == "stored":
            pool = self.high.within(c2, c3)
        else:  # the current policy's accuracy decides, the old responses are used
            stored = list(self.high)
            again = sampler.regenerate([g.prompt for g in stored])
            pool = [g for g, new in zip(stored, again, strict=True) if between(new.mean, c2, c3)]
        count = min(len(pool), room)
        if not count:
            return []
        index = sorted(self.random("x3", step).choice(len(pool), size=count, replace=False))
        chosen = [pool[i] for i in index]
        if self.config.remove_replayed:
            self.high.remove(chosen)
        return self.replayed(chosen)

    def weight(self, group: Group) -> float:
        return self.config.x2_weight if group.origin == REEVALUATED else 1.0

    # ------------------------------------------------------------------ thresholds and buffers
    def thresholds(self, fresh: list[Group]) -> tuple[float, float]:
        """Update r_tot and return (c2, c3) of this step (eq. 8)."""
        c = self.config
        batch_mean = sum(g.mean for g in fresh) / len(fresh)
        if c.average_reward == "buffer" and len(self.high):
            batch_mean = sum(g.mean for g in self.high) / len(self.high)
        self.average_reward = next_average_reward(self.average_reward, batch_mean, c.average_reward, c.average_decay)
        return (
            linear_threshold(self.average_reward, *c.c2_range, c.threshold_direction),
            linear_threshold(self.average_reward, *c.c3_range, c.threshold_direction),
        )

    def _store_hard(self, fresh: list[Group]) -> None:
        for g in fresh:
            if not above(g.mean, self.config.c1):
                key = g.prompt.id if self.config.prompt_identity == "persistent" else f"{g.prompt.id}@{g.step}"
                self.bad.add(g.prompt, g.mean, key)

    def _store_high(self, fresh: list[Group], c2: float, c3: float) -> None:
        if self.config.high_admission == "thresholds":
            self.high.add(g for g in fresh if between(g.mean, c2, c3))
        else:
            self.high.add(g for g in fresh if above(g.mean, 0) and not between(g.mean, 1, 1))

    # ------------------------------------------------------------------ checkpoints
    def state(self) -> tuple[dict[str, Any], list[Group]]:
        bad = [{"key": e.key, "prompt": e.prompt.id, "mean": e.mean} for e in self.bad]
        return {"bad": bad, "average_reward": self.average_reward}, list(self.high)

    def restore(self, state: dict[str, Any], groups: list[Group], prompt: Callable[[str], Prompt]) -> None:
        self.bad = HardPrompts(self.bad.capacity)
        for entry in state["bad"]:
            self.bad.add(prompt(entry["prompt"]), entry["mean"], entry["key"])
        self.average_reward = state["average_reward"]
        self.high.restore(groups)
