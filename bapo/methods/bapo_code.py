"""BAPO as in its authors' code: waunx/BAPO_ICLR at commit 5a4e246, the last before its clean-up.

``BAPOCode`` is ``OffPolicyManager`` in verl/trainer/ppo/ray_trainer.py, with the values of its mathematics script
(run_deepseek-1.5b_math_off_policy.sh); its Countdown script differs: experiments/task/countdown.yaml. The letters (a)
to (g) are those of docs/fidelity.md. Left to the setting, the same for all methods: the mini-batch, the aggregation
over tokens (token-mean there) and the temperature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import Field, NonNegativeFloat

from bapo.algorithm import advantages, losses
from bapo.algorithm.batch import linear_threshold
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.replay import HardPrompt, HardPrompts
from bapo.algorithm.rollouts import Group, Prompt, above, between
from bapo.methods.bapo import BAPO, NO_SIGNAL, BAPOConfig, Groups, Span
from bapo.methods.base import Batch, Phase, Sampler, State, Tensor, draw_groups

SPAN_OF_AVERAGE = (0.2, 0.8)  #: alpha_min and alpha_max: r_tot outside them moves no threshold (c)
QUOTA_SHARE, QUOTA_STD = 0.75, 2.0  #: X1's share of all responses at most; standard deviation in bins of 1/G (d)
RECENT = 4  #: re-evaluations that make a prompt's latest mean: the code keeps the last 32 rewards, 4 groups of 8


class BAPOCodeConfig(BAPOConfig):
    """The values of the authors' mathematics script; ``verl/trainer/config/ppo_trainer.yaml`` names them.

    None for a capacity: a quarter of B for B_high, max_total_uids // 4, and the rest for B_bad (e).
    """

    sync_phase: Phase = "first"  # step_count starts at 0 and is counted up after the step
    threshold_direction: Literal["rising", "falling"] = "falling"  # (c) new = high - (high - low) * ratio
    c2_range: Span = Field([0.125, 0.375])  # high_thr_*
    c3_range: Span = Field([0.375, 0.75])
    kl_to: Literal["step-policy", "none"] = "step-policy"  # type: ignore[assignment]  # ref_log_prob = old_log_probs
    kl_coef: NonNegativeFloat | None = 0.001
    x2_weight: NonNegativeFloat = 1.0  # lambda_1, the weight of X2's loss
    unread = (
        *("clip_centre", "average_reward", "average_decay", "online_filter", "filter_mean", "filter_std"),
        *("filter_share", "stored_first", "x2_admission", "failed_prompt", "high_steps", "store_promoted", "x3_filter"),
    )


@dataclass(frozen=True, kw_only=True)
class StoredPrompt(HardPrompt):
    """Holds an entry of the buffer with the responses that X3 may replay.

    again: mean rewards of its last re-evaluations, at most RECENT. group: the one that brought the prompt in.
    """

    again: tuple[float, ...] = ()
    group: Group

    @property
    def latest(self) -> float:
        """Return the mean reward of the last re-evaluations, or of the group that brought the prompt in."""
        return sum(self.again) / len(self.again) if self.again else self.mean


class BAPOCode(BAPO):
    """Runs BAPO with the order, the buffers, the filters and the objective of its authors' code."""

    Config = BAPOCodeConfig
    config: BAPOCodeConfig
    bad: HardPrompts[StoredPrompt]
    title = "+BAPO (authors' code)"
    summary = "BAPO as in its authors' code (5a4e246)"
    source = "waunx/BAPO_ICLR at 5a4e246"
    saved = ("average_reward", "unstored")

    def __init__(self, config: BAPOCodeConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.bad.capacity = config.bad_capacity or max(1, round(0.75 * batch_size))
        self.high.capacity = config.high_capacity or max(1, round(0.25 * batch_size))
        self.unstored = (0.0, 0)  # sum and count of the means of groups that entered no buffer
        self.latest: dict[tuple[str, int], float] = {}  # this step's groups -> their latest mean

    def build_batch(self, step: int, fresh: Groups, sampler: Sampler) -> Batch:
        """Store before X3 is drawn (b), and forget nothing for its age (e)."""
        c2, c3 = self.thresholds(fresh)
        x1 = self.filtered_fresh(step, fresh)
        room = self.batch_size - -(-sum(g.size for g in x1) // fresh[0].size)  # X1 holds parts of groups
        x2, failed = self.improved_hard(step, sampler)
        surplus: Groups = []
        if len(x2) > room:  # promoted_to_take = min(available_promoted, remaining_needed)
            improved = x2
            x2 = draw_groups(improved, max(0, room), self.random("x2", step))
            surplus = [g for g in improved if g not in x2]
        self.store(fresh, c2, c3)
        x3 = self.high_quality(step, c2, c3, room - len(x2), x1)
        self.store_high(x2, c2, c3)  # (f) collect_data(promoted_batch_filtered)
        self._note_scores(fresh, x2)
        x2 = [replace(g, weight=self.config.x2_weight) for g in x2]
        batch = self.batch(fresh, x1, x2, x3, failed, c2=c2, c3=c3)
        x1_keys = {g.key for g in x1}
        batch.rejected = [(g, why) for g, why in batch.rejected if why != NO_SIGNAL or g.key not in x1_keys]
        batch.rejected += [(g, "batch full") for g in surplus]
        batch.metrics["reevaluated_prompts"] += len(surplus)
        return batch

    # ------------------------------------------------------------------ the three parts
    def filtered_fresh(self, step: int, fresh: Groups) -> Groups:
        return quota_filter(fresh, QUOTA_SHARE, QUOTA_STD, self.random("x1", step))

    def improved_hard(self, step: int, sampler: Sampler) -> tuple[Groups, Groups]:
        """Re-evaluate prompts drawn at random (g). Any gain over the stored mean is admitted, all correct too.

        Every prompt stays where it is (uids_to_remove stays empty); only its latest mean changes.
        """
        c, entries = self.config, list(self.bad)
        if step % c.m or not entries:
            return [], []
        limit = self.reevaluated_at_once
        if len(entries) > limit:  # random.sample(available_uids, max_reeval_ids)
            indices = self.random("re-evaluated", step).choice(len(entries), size=limit, replace=False)
            entries = [entries[i] for i in sorted(indices)]
        groups = self.regenerated([e.prompt for e in entries], sampler)
        improved: Groups = []
        failed: Groups = []
        for entry, group in zip(entries, groups, strict=True):
            self.bad.replace(replace(entry, again=(*entry.again, group.mean)[-RECENT:]))
            (improved if above(group.mean, entry.mean) else failed).append(group)
        return improved, failed

    def replayable(self, c2: float, c3: float) -> Groups:
        """Return the stored groups whose latest mean lies in [c2, c3]: B_bad's count too (b)."""
        latest = {g.key: (g, g.mean) for g in self.high} | {e.group.key: (e.group, e.latest) for e in self.bad}
        return [g for g, mean in latest.values() if between(mean, c2, c3)]

    # ------------------------------------------------------------------ thresholds and buffers
    def thresholds(self, fresh: Groups) -> tuple[float, float]:
        """Return c2 and c3 by the mean of all scores so far (c), where stored groups count twice (alpha_score_mean)."""
        c, stored = self.config, self._stored(lambda entry: entry.mean)
        total, count = self.unstored
        total += sum(g.mean for g in fresh) + 2 * sum(stored.values())
        self.average_reward = average = total / (count + len(fresh) + 2 * len(stored))
        least, most = SPAN_OF_AVERAGE
        share = min(max((average - least) / (most - least), 0.0), 1.0)
        c2, c3 = (linear_threshold(share, low, high, c.threshold_direction) for low, high in (c.c2_range, c.c3_range))
        return c2, c3

    def store(self, fresh: Groups, c2: float, c3: float) -> None:
        """Store each draw of a prompt apart (a fresh uuid for each), with its responses."""
        for g in fresh:
            if not above(g.mean, self.config.c1):
                self.bad.add(StoredPrompt(f"{g.prompt.id}@{g.step}", g.prompt, g.mean, g.step, group=g))
        self.store_high(fresh, c2, c3)

    def _stored(self, mean_of: Callable[[StoredPrompt], float]) -> dict[tuple[str, int], float]:
        """Return the mean of each group in a buffer by its key; B_bad's by ``mean_of``."""
        return {g.key: g.mean for g in self.high} | {(e.prompt.id, e.step): mean_of(e) for e in self.bad}

    def _note_scores(self, fresh: Groups, x2: Groups) -> None:
        """Add the means that no buffer holds to ``unstored``, and set the latest means of this step's groups."""
        stored = self._stored(lambda entry: entry.latest)
        others = [g.mean for g in fresh if g.key not in stored]
        self.unstored = (self.unstored[0] + sum(others), self.unstored[1] + len(others))
        again = {e.prompt.id: e.latest for e in self.bad if e.again}
        self.latest = stored | {g.key: again[g.prompt.id] for g in x2 if g.prompt.id in again}

    # ------------------------------------------------------------------ the objective
    @property
    def needs_step_policy(self) -> bool:
        return True

    def old_logprobs(self, inputs: LossInputs) -> Tensor:
        """Return log-probabilities [N, T] under pi_k, recomputed; what is replayed keeps those of its step."""
        assert inputs.step_logprobs is not None
        return inputs.behaviour_logprobs.where(inputs.second_part[:, None], inputs.step_logprobs)

    def ratio(self, inputs: LossInputs) -> Tensor:
        """Return pi_theta / pi_k [N, T]."""
        return losses.importance_ratio(inputs.logprobs, self.old_logprobs(inputs))

    def divergence(self, inputs: LossInputs) -> Tensor:
        return losses.low_variance_kl(inputs.logprobs, self.old_logprobs(inputs))

    def units(self, groups: Groups) -> list[Groups]:
        """Join parts of groups until each unit has at least as many responses as a whole group.

        A mini-batch counts both as one. The authors' code cuts its batch by responses.
        """
        whole = max((g.size for g in groups), default=0)
        units: list[Groups] = []
        for group in groups:
            if units and sum(g.size for g in units[-1]) < whole:
                units[-1].append(group)
            else:
                units.append([group])
        return units

    def advantages(self, group: Group) -> np.ndarray:
        """Return advantages relative to a stored group's latest mean (compute_grpo_off_policy_advantage)."""
        mean = self.latest.get(group.key)
        if mean is None:
            return super().advantages(group)
        return advantages.relative_to(group.rewards, mean, self.config.advantage_eps)

    # ------------------------------------------------------------------ checkpoints
    def state(self) -> tuple[State, list[Group]]:
        """Return the buffers: B_high's groups, then those that B_bad's entries hold, in the order of the entries."""
        state, high = super().state()
        state |= {"again": [list(e.again) for e in self.bad], "high": len(high)}
        return state, [*high, *(e.group for e in self.bad)]

    def restore(self, state: State, groups: list[Group], prompt: Callable[[str], Prompt]) -> None:
        super().restore(state, groups[: state["high"]], prompt)
        entries = zip(self.bad, state["again"], groups[state["high"] :], strict=True)
        stored = [
            StoredPrompt(e.key, e.prompt, e.mean, e.step, again=tuple(again), group=group)
            for e, again, group in entries
        ]
        self.bad.restore(stored)


def quota_filter(groups: list[Group], share: float, std: float, rng: np.random.Generator) -> list[Group]:
    """Draw single responses up to a quota for each accuracy 0/G to (G-1)/G; return the groups, reduced to them.

    ``gaussian_sample_from_current_batch`` of waunx/BAPO_ICLR at 5a4e246. The accuracies that occur, the all correct one
    left out, share ``share`` of all responses by a Gaussian over their numbers 0 to G - 1: its centre is halfway
    between the lowest and the highest that occur, its standard deviation ``std`` bins. An accuracy with fewer
    responses than its quota gives all it has. If nothing is drawn, all groups are returned. (The code also cuts the
    result to a multiple of 8 responses, one for each of its GPUs.)
    """
    bins = [round(g.mean * g.size) for g in groups]
    levels = sorted({b for g, b in zip(groups, bins, strict=True) if b < g.size})
    if not levels:
        return list(groups)
    centre = (levels[0] + levels[-1]) / 2
    weights = np.exp(-0.5 * ((np.array(levels) - centre) / std) ** 2)
    quotas = (int(share * sum(g.size for g in groups)) * weights / weights.sum()).astype(int)
    picks: dict[int, list[int]] = {}
    for level, quota in zip(levels, quotas, strict=True):
        responses = [(n, i) for n, g in enumerate(groups) if bins[n] == level for i in range(g.size)]
        count = min(quota, len(responses))
        for index in rng.choice(len(responses), size=count, replace=False):
            n, i = responses[index]
            picks.setdefault(n, []).append(i)
    return [groups[n].select(sorted(index)) for n, index in sorted(picks.items())] or list(groups)
