"""The options of BAPO: the paper's values, and every choice that the paper leaves open."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from bapo.methods.base import KL, MethodConfig, Share, Type

Span = Annotated[list[Share], Field(min_length=2, max_length=2)]  # [low, high]


class BAPOConfig(MethodConfig):
    """The paper's values (Table 3). If the paper leaves a choice, the first option named is the default."""

    kind: Type = "off"
    kl_to: KL = "rollout"  # eq. 3's alpha; "reference": eq. 1's

    # Delayed rollout policy alpha (Algorithm 1, lines 3-5)
    #: steps between two refreshes
    v: PositiveInt = 5
    m: PositiveInt = 5  # steps between two re-evaluations of B_bad
    #: literal: t mod v = 0, as printed; first: (t - 1) mod v = 0, so that every rollout policy serves v steps
    sync_phase: Literal["literal", "first"] = "literal"

    # Thresholds (eq. 8)
    c1: float = Field(0.125, ge=0, lt=1)
    c2_range: Span = Field([0.125, 0.5])
    c3_range: Span = Field([0.25, 0.625])
    #: rising with r_tot, as printed; falling: "from easier to harder", the sentence above eq. 8
    threshold_direction: Literal["rising", "falling"] = "rising"
    #: r_tot: mean reward of this batch, or its moving average
    average_reward: Literal["batch", "moving-average"] = "batch"
    average_decay: float = Field(0.9, ge=0, lt=1)  # for moving-average

    # X1: fresh groups (A.3)
    online_filter: Literal["range", "gaussian", "uniform"] = "range"  # range: 1/G <= mu <= (G-1)/G
    filter_mean: float = 0.5  # gaussian
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
    #: Algorithm 1, line 19 adds "D_t" to B. Of the step's groups only X2's are not in a buffer by then (lines 8 and 9
    #: store the fresh ones): they enter B_high, where they pass its admission
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
        return self
