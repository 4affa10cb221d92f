"""The options of BAPO: the paper's values, and every choice that the paper leaves open or its authors' code makes.

"The code" is waunx/BAPO_ICLR at commit 5a4e246, verl/trainer/ppo/ray_trainer.py (``OffPolicyManager``), which
``fidelity=code`` sets together.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from bapo.methods.base import KL, MethodConfig, Share, Type

Span = Annotated[list[Share], Field(min_length=2, max_length=2)]  # [low, high]


class BAPOConfig(MethodConfig):
    """The paper's values (Table 3). If the paper leaves a choice, the first option named is the default."""

    algorithm: str = "bapo"
    name: str = "bapo"
    kind: Type = "off"
    kl_to: KL = "rollout"  # eq. 3's alpha; "reference": eq. 1's

    # Delayed rollout policy alpha (Algorithm 1, lines 3-5)
    #: steps between two refreshes
    v: PositiveInt = 5
    m: PositiveInt = 5  # steps between two re-evaluations of B_bad
    #: literal: t mod v = 0, as printed; first: (t - 1) mod v = 0, as in the code
    sync_phase: Literal["literal", "first"] = "literal"

    # Thresholds (eq. 8)
    c1: float = Field(0.125, ge=0, lt=1)
    c2_range: Span = Field([0.125, 0.5])
    c3_range: Span = Field([0.25, 0.625])
    #: rising with r_tot, as printed; falling: "from easier to harder", and the code
    threshold_direction: Literal["rising", "falling"] = "rising"
    #: r_tot: mean reward of this batch, its moving average, or the mean of B_high; all-scores: the code's mean over
    #: every fresh group of the run, where those in a buffer count twice and those pushed out of one no more
    average_reward: Literal["batch", "moving-average", "buffer", "all-scores"] = "batch"
    average_decay: float = Field(0.9, ge=0, lt=1)  # for moving-average
    #: r_tot that eq. 8 maps to the low and to the high end; the code clips r_tot to [0.2, 0.8] and stretches that
    average_span: Span = Field([0.0, 1.0])

    # X1: fresh groups (A.3)
    #: range: 1/G <= mu <= (G-1)/G; quota: the code's Gaussian, which draws single responses
    online_filter: Literal["range", "gaussian", "uniform", "quota"] = "range"
    filter_mean: float = 0.5  # gaussian
    filter_std: PositiveFloat = 0.2  # gaussian
    filter_share: float = Field(0.6, gt=0, le=1)  # uniform; gaussian, at most
    quota_share: float = Field(0.75, gt=0, le=1)  # quota: of all responses, at most
    quota_std: PositiveFloat = 2.0  # quota: in bins of 1/G

    # X2: re-evaluated hard prompts (eq. 6)
    bad_capacity: PositiveInt | None = None  # |B_bad|; None: the batch size (256 in Table 3)
    max_reevaluated: PositiveInt | None = None  # at once; None: half the batch size (128 of 256 in Table 3)
    reevaluation_order: Literal["oldest", "newest", "random"] = "oldest"  # the code draws at random
    insert_before_reevaluation: bool = False  # also re-evaluate this step's hard prompts
    #: current: pi_theta_t (eq. 6); rollout: alpha, a control that shows what another draw from an old policy finds
    x2_policy: Literal["current", "rollout"] = "current"
    #: eq. 6: c1 < mu < 1; above-c1: eq. 5, mu = 1 too; above-stored: any gain (the code)
    x2_admission: Literal["improved", "above-c1", "above-stored"] = "improved"
    x2_within_room: bool = False  # at most the groups that X1 leaves room for, drawn at random (the code)
    keep_promoted: bool = False  # an improved prompt stays in B_bad (the code)
    #: a re-evaluated prompt that did not improve: requeue: it goes to the back with its new mean, so that every prompt
    #: has its turn; keep: it stays where it is with the mean that it came with (the code)
    failed_prompt: Literal["requeue", "keep"] = "requeue"
    #: persistent: u_i; per-draw: a prompt may sit in B_bad many times (the code)
    prompt_identity: Literal["persistent", "per-draw"] = "persistent"
    x2_weight: NonNegativeFloat = 1.0  # weight of X2's loss; 3 in one of the authors' scripts

    # X3: replayed groups of medium accuracy. The default is what all three places say together. Eq. 5 defines X3 by
    # c2 <= mu <= c3 and Algorithm 1, line 16 draws from those of B_high "with mu in [c2, c3]": the thresholds of the
    # step that draws. Eq. 7 draws min(|B_high|, B - |X1| - |X2|) groups and names no condition, which agrees if B_high
    # means the groups that are high-quality now: the sentence before eq. 8 lets that "shift". None of them takes a
    # drawn group out of B_high; only age and FIFO do.
    high_steps: PositiveInt = 3  # age limit of B_high in steps
    high_capacity: PositiveInt | None = None  # groups in B_high; None: the age limit alone
    #: Algorithm 1, line 9; informative: any 0 < mu < 1
    high_admission: Literal["thresholds", "informative"] = "thresholds"
    #: overflow: age counts only when B_high is over its capacity; capacity: age never counts (the code)
    high_eviction: Literal["age", "overflow", "capacity"] = "age"
    #: Algorithm 1, line 19 adds "D_t" to B. Of the step's groups only X2's are not in a buffer by then (lines 8 and 9
    #: store the fresh ones), and the code stores just these: into B_high, where they pass its admission
    store_promoted: bool = True
    #: which of B_high: current: with mu in this step's [c2, c3] (eq. 5, line 16); none: all of it (eq. 7 by itself)
    x3_filter: Literal["current", "none"] = "current"
    #: which accuracy counts: stored; re-evaluated: the current policy's, sampled anew; latest: that of X2's
    #: re-evaluations where there is one, for the stored responses of B_bad, too (the code)
    x3_choice: Literal["stored", "re-evaluated", "latest"] = "stored"
    x3_from_this_step: bool = False  # also fresh groups that X1 left out (the code stores before it draws)
    remove_replayed: bool = False  # a replayed group leaves B_high

    # The objective (eq. 3)
    #: pooled: one mean over X1, X2 and X3 (Algorithm 1, line 17); separate: the mean over X1 plus that over X2 and X3
    expectations: Literal["pooled", "separate"] = "pooled"
    #: group: eq. 2, over the responses that are trained on; buffer: the code's, by the latest mean of a stored group
    advantage_reference: Literal["group", "buffer"] = "group"

    @model_validator(mode="after")
    def _bapo(self) -> Self:
        for key in ("c2_range", "c3_range", "average_span"):
            low, high = getattr(self, key)
            self.require(low <= high and (low < high or key != "average_span"), key, "must be [low, high]")
        for end, c2, c3 in zip(("low", "high"), self.c2_range, self.c3_range, strict=True):
            cure = f"c2 must not exceed c3, but its {end} end {c2} is above c3_range's {c3}"
            self.require(c2 <= c3, "c2_range", cure)
        endless = f"{self.high_eviction} needs method.high_capacity, or nothing is ever forgotten"
        self.require(self.high_eviction == "age" or self.high_capacity is not None, "high_eviction", endless)
        return self
