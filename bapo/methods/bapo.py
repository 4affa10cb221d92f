"""BAPO, Algorithm 1 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bapo.algorithm import advantages
from bapo.algorithm.batch import gaussian_filter, quota_filter, range_filter, uniform_filter
from bapo.algorithm.replay import HardPrompt, HardPrompts, HighQuality
from bapo.algorithm.rollouts import REEVALUATED, Group, Prompt, above, between
from bapo.algorithm.thresholds import linear_threshold, next_average_reward
from bapo.methods.bapo_options import BAPOConfig
from bapo.methods.base import Batch, Method, Sampler
from bapo.methods.grpo_delayed import due

if TYPE_CHECKING:
    from torch import Tensor

    from bapo.algorithm.losses import LossInputs


#: what :func:`group_key` returns for some groups
Keys = Collection[tuple[str, int]]


class BAPO(Method):
    """Batch Adaptation Policy Optimization (the paper's section 3 and Algorithm 1).

    The batch is X1 + X2 + X3 (eq. 5): fresh groups with a signal, hard prompts that the current policy has learnt to
    solve sometimes, and recent groups of middling accuracy that fill the rest of B. The ratio is
    pi_theta / alpha with the log-probabilities stored at generation, for all three (eq. 3).
    """

    Config = BAPOConfig
    revision = 2  # X3 keeps what it replays, X2's groups enter B_high, a failed prompt goes to the back of B_bad
    summary = "delayed rollout policy; X1 fresh + X2 re-evaluated hard + X3 replayed middling groups"
    source = "paper section 3, Algorithm 1, eq. 3-8"
    cost = "1 + 1/(2m) x rollouts at most, fewer updates"

    def __init__(self, config: BAPOConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.bad = HardPrompts(config.bad_capacity or batch_size)
        self.high = HighQuality(config.high_steps, config.high_capacity, config.high_eviction)
        self.average_reward: float | None = None
        self.unstored = (0.0, 0)  # sum and count of the means of groups that entered no buffer
        self.latest: dict[tuple[str, int], float] = {}  # this step's groups, for advantage_reference=buffer

    @property
    def delays_rollout_policy(self) -> bool:
        return self.config.v > 1

    def syncs_rollout_policy(self, step: int) -> bool:
        """Apply Algorithm 1, lines 3-5."""
        return due(step, self.config.v, self.config.sync_phase)

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        """Apply Algorithm 1, lines 8-17 and 19. |X1| + |X2| may exceed B when many hard prompts improve at once."""
        c = self.config
        c2, c3 = self.thresholds(fresh)
        self.high.drop_stale(step)
        if c.insert_before_reevaluation:
            self._store_hard(fresh)
        x1 = self.filtered_fresh(step, fresh)
        room = self.batch_size - -(-sum(g.size for g in x1) // fresh[0].size)  # X1 may hold parts of groups
        x2, failed = self.improved_hard(step, sampler, room)
        if not c.insert_before_reevaluation:
            self._store_hard(fresh)
        if c.x3_from_this_step:
            self._store_high(fresh, c2, c3)
        taken = {group_key(g) for g in x1}
        x3 = self.high_quality(step, c2, c3, room - len(x2), sampler, taken)
        if not c.x3_from_this_step:
            self._store_high(fresh, c2, c3)
        if c.store_promoted:
            self._store_high(x2, c2, c3)
        self._note_scores(fresh, x2)
        kept = {id(g) for g in x1}
        in_parts = taken if c.online_filter == "quota" else ()
        rejected = [(g, "no signal in X1") for g in fresh if id(g) not in kept and group_key(g) not in in_parts]
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
            return gaussian_filter(fresh, c.filter_mean, c.filter_std, c.filter_share, self.random("x1", step))
        if c.online_filter == "uniform":
            return uniform_filter(fresh, c.filter_share, self.random("x1", step))
        if c.online_filter == "quota":
            return quota_filter(fresh, c.quota_share, c.quota_std, self.random("x1", step))
        return range_filter(fresh)

    def improved_hard(self, step: int, sampler: Sampler, room: int) -> tuple[list[Group], list[Group]]:
        """Re-evaluate hard prompts every m steps; return X2 (eq. 6), those now solved sometimes, and the other groups.

        A prompt above c1 leaves B_bad even if it is all correct and therefore not admitted. room: groups that X1 leaves
        free, for x2_within_room.
        """
        c = self.config
        if step % c.m or not len(self.bad):
            return [], []
        limit = c.max_reevaluated or max(1, self.batch_size // 2)
        rng = self.random("re-evaluated", step) if c.reevaluation_order == "random" else None
        entries = self.bad.candidates(limit, c.reevaluation_order, rng)
        groups = sampler.regenerate([e.prompt for e in entries], policy=c.x2_policy)
        outcomes = [
            (self._admits(entry, group), entry, group.as_origin(REEVALUATED))
            for entry, group in zip(entries, groups, strict=True)
        ]
        for _, entry, group in outcomes:
            if above(group.mean, c.c1) and not c.keep_promoted:
                self.bad.discard(entry.key)
            elif c.failed_prompt == "requeue" and not above(group.mean, c.c1):
                self.bad.add(replace(entry, mean=group.mean))
            else:
                self.bad.note(entry.key, group.mean)
        improved = [group for admitted, _, group in outcomes if admitted]
        failed = [group for admitted, _, group in outcomes if not admitted]
        if c.x2_within_room and len(improved) > room:
            chosen = sorted(self.random("x2", step).choice(len(improved), size=max(0, room), replace=False))
            failed += [g for i, g in enumerate(improved) if i not in chosen]
            improved = [improved[i] for i in chosen]
        return improved, failed

    def _admits(self, entry: HardPrompt, group: Group) -> bool:
        if self.config.x2_admission == "above-stored":
            return above(group.mean, entry.mean)
        all_correct = between(group.mean, 1, 1)
        return above(group.mean, self.config.c1) and not (all_correct and self.config.x2_admission == "improved")

    def high_quality(
        self, step: int, c2: float, c3: float, room: int, sampler: Sampler, taken: Keys = ()
    ) -> list[Group]:
        """Draw X3 (eq. 7) without replacement: at most ``room`` of the replayable groups.

        taken: keys of this step's groups that X1 has, which x3_from_this_step must not draw again.
        """
        pool = [g for g in self._replayable(c2, c3, sampler) if group_key(g) not in taken] if room > 0 else []
        count = min(len(pool), room)
        if count <= 0:
            return []
        index = sorted(self.random("x3", step).choice(len(pool), size=count, replace=False))
        chosen = [pool[i] for i in index]
        if self.config.remove_replayed:
            self.high.remove(chosen)
        return self.replayed(chosen)

    def _replayable(self, c2: float, c3: float, sampler: Sampler) -> list[Group]:
        """Return the stored groups that X3 draws from; none where nothing is stored, without sampling anything."""
        c, stored = self.config, list(self.high)
        if c.x3_choice == "latest":
            latest = {group_key(g): (g, g.mean) for g in stored}
            for e in self.bad:
                if e.group is not None:
                    latest[group_key(e.group)] = (e.group, e.latest)
            groups, means = [g for g, _ in latest.values()], [mean for _, mean in latest.values()]
        elif c.x3_choice == "re-evaluated" and stored:
            groups, means = stored, [g.mean for g in sampler.regenerate([g.prompt for g in stored])]
        else:
            groups, means = stored, [g.mean for g in stored]
        if c.x3_filter == "none":
            return groups
        return [g for g, mean in zip(groups, means, strict=True) if between(mean, c2, c3)]

    # ------------------------------------------------------------------ the objective, eq. 3
    def weight(self, group: Group) -> float:
        return self.config.x2_weight if group.origin == REEVALUATED else 1.0

    def units(self, groups: list[Group]) -> list[list[Group]]:
        """Put parts of groups together to as many responses as a whole group has, at least: a mini-batch counts both
        as one (the code cuts its batch by responses)."""
        whole = max((g.size for g in groups), default=0)
        units: list[list[Group]] = []
        for group in groups:
            if units and sum(g.size for g in units[-1]) < whole:
                units[-1].append(group)
            else:
                units.append([group])
        return units

    def historical(self, group: Group) -> np.ndarray:
        """Mark the responses of X2 and X3 for a separate expectation, bool [G]; otherwise X3's alone."""
        if self.config.expectations == "separate" and group.origin == REEVALUATED:
            return np.ones(group.size, dtype=bool)
        return super().historical(group)

    def reduce(self, values: Tensor, inputs: LossInputs) -> Tensor:
        """Reduce [N, T] token losses to the mean of the batch, or to the sum of eq. 3's two expectations."""
        if self.config.expectations == "pooled":
            return super().reduce(values, inputs)
        from bapo.algorithm import losses

        return losses.sum_of_parts(values, inputs, self.config.aggregation, (1.0, 1.0))

    def advantages(self, group: Group) -> np.ndarray:
        mean = self.latest.get(group_key(group)) if self.config.advantage_reference == "buffer" else None
        if mean is None:
            return super().advantages(group)
        return advantages.relative_to(group.rewards, mean, self.config.advantage_eps)

    # ------------------------------------------------------------------ thresholds and buffers
    def thresholds(self, fresh: list[Group]) -> tuple[float, float]:
        """Update r_tot and return (c2, c3) of this step (eq. 8)."""
        c = self.config
        mean = sum(g.mean for g in fresh) / len(fresh)
        if c.average_reward == "buffer" and len(self.high):
            mean = sum(g.mean for g in self.high) / len(self.high)
        elif c.average_reward == "all-scores":
            stored = self._stored(lambda entry: entry.mean)
            total, count = self.unstored
            total += sum(g.mean for g in fresh) + 2 * sum(stored.values())
            mean = total / (count + len(fresh) + 2 * len(stored))
        self.average_reward = next_average_reward(self.average_reward, mean, c.average_reward, c.average_decay)
        return tuple(
            linear_threshold(self.average_reward, *ends, c.threshold_direction, tuple(c.average_span))
            for ends in (c.c2_range, c.c3_range)
        )

    def _store_hard(self, fresh: list[Group]) -> None:
        c = self.config
        for g in fresh:
            if not above(g.mean, c.c1):
                key = g.prompt.id if c.prompt_identity == "persistent" else f"{g.prompt.id}@{g.step}"
                self.bad.add(HardPrompt(key, g.prompt, g.mean, g.step, group=g if c.x3_choice == "latest" else None))

    def _store_high(self, groups: list[Group], c2: float, c3: float) -> None:
        if self.config.high_admission == "thresholds":
            self.high.add(g for g in groups if between(g.mean, c2, c3))
        else:
            self.high.add(g for g in groups if above(g.mean, 0) and not between(g.mean, 1, 1))

    def _stored(self, mean_of: Callable[[HardPrompt], float]) -> dict[tuple[str, int], float]:
        """Return the mean of each group in a buffer by its key; B_bad's by ``mean_of``."""
        return {group_key(g): g.mean for g in self.high} | {(e.prompt.id, e.step): mean_of(e) for e in self.bad}

    def _note_scores(self, fresh: list[Group], x2: list[Group]) -> None:
        """Take down what the options of the authors' code look up: means that no buffer holds, and the latest means."""
        c = self.config
        if c.average_reward != "all-scores" and c.advantage_reference != "buffer":
            return
        stored = self._stored(lambda entry: entry.latest)
        if c.average_reward == "all-scores":
            others = [g.mean for g in fresh if group_key(g) not in stored]
            self.unstored = (self.unstored[0] + sum(others), self.unstored[1] + len(others))
        if c.advantage_reference == "buffer":
            again = {e.prompt.id: e.latest for e in self.bad if e.again}
            self.latest = stored | {group_key(g): again[g.prompt.id] for g in x2 if g.prompt.id in again}

    # ------------------------------------------------------------------ checkpoints
    def state(self) -> tuple[dict[str, Any], list[Group]]:
        """Return the buffers: B_high's groups, then those that B_bad's entries hold, in the order of the entries."""
        bad = [
            {"key": e.key, "prompt": e.prompt.id, "mean": e.mean, "step": e.step, "again": list(e.again)}
            | {"group": e.group is not None}
            for e in self.bad
        ]
        state = {"bad": bad, "high": len(self.high), "average_reward": self.average_reward}
        state["unstored"] = list(self.unstored)
        return state, [*self.high, *(e.group for e in self.bad if e.group is not None)]

    def restore(self, state: dict[str, Any], groups: list[Group], prompt: Callable[[str], Prompt]) -> None:
        self.bad = HardPrompts(self.bad.capacity)
        held = iter(groups[state["high"] :])
        for e in state["bad"]:
            group = next(held) if e["group"] else None
            self.bad.add(HardPrompt(e["key"], prompt(e["prompt"]), e["mean"], e["step"], tuple(e["again"]), group))
        self.average_reward, self.unstored = state["average_reward"], tuple(state["unstored"])
        self.high.restore(groups[: state["high"]])


def group_key(group: Group) -> tuple[str, int]:
    """Return what tells the groups of a run apart, also after a resume: a prompt is drawn once a step, all but always.

    (A step that ends one epoch and begins the next may draw a prompt twice.)
    """
    return group.prompt.id, group.step
