"""Prompts and groups of responses: the data type that methods, replay buffers and both engines share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

#: The origin of a group in a training batch (X1, X2 and X3 of the paper's equation 5).
FRESH, REEVALUATED, REPLAYED = "fresh", "re-evaluated", "replayed"
ORIGINS = (FRESH, REEVALUATED, REPLAYED)
#: The origin of a group of expert solutions (LUFFY, ReLIFT), outside X1, X2 and X3.
DEMONSTRATED = "demonstration"


@dataclass(frozen=True)
class Prompt:
    """Names one problem of the training set.

    id: the same for this problem in every epoch, step and run (the paper's u_i, eq. 4)
    row: the data that the engine needs to generate from it and to grade it
    """

    id: str
    row: Any = field(default=None, compare=False, repr=False)


@dataclass
class Samples:
    """Holds G responses as tokens.

    tokens: int32 [G, T], padded on the right
    lengths: int32 [G], the end token included
    logprobs: float32 [G, T], log-probability of each token under the policy that sampled it (alpha or alpha_B)
    rows: names under which the engine holds exactly these responses, if it does
    """

    tokens: np.ndarray
    lengths: np.ndarray
    logprobs: np.ndarray
    rows: tuple[str, ...] = ()

    @property
    def mask(self) -> np.ndarray:
        """Mark the tokens that are no padding, bool [G, T]."""
        return np.arange(self.tokens.shape[1]) < self.lengths[:, None]

    def select(self, index: Sequence[int] | np.ndarray) -> Samples:
        i = np.asarray(index, dtype=np.int64)
        return Samples(self.tokens[i], self.lengths[i], self.logprobs[i])

    @staticmethod
    def concatenate(parts: Sequence[Samples]) -> Samples:
        """Join the responses of the parts in order, padded on the right with zeros to the longest."""
        width = max(p.tokens.shape[1] for p in parts)

        def padded(array: np.ndarray) -> np.ndarray:
            return np.pad(array, ((0, 0), (0, width - array.shape[1])))

        return Samples(
            np.concatenate([padded(p.tokens) for p in parts]),
            np.concatenate([p.lengths for p in parts]),
            np.concatenate([padded(p.logprobs) for p in parts]),
        )


@dataclass(eq=False)
class Estimates:
    """Holds a critic's estimates for a group's tokens, float32 [G, T] each, 0 behind a response's end.

    values: of the state before each token, at the start of the step
    returns: what the values are trained towards
    advantages: of each token
    """

    values: np.ndarray
    returns: np.ndarray
    advantages: np.ndarray


@dataclass(eq=False)  # a group equals no other object
class Group:
    """Holds one prompt, G responses, their rewards and the policy that generated them (paper, eq. 4).

    prompt: the problem
    rewards: float32 [G] in [0, 1]; nothing can be written into them, as the tables record them after the update
    step: the training step that generated the responses
    version: the training step after which the sampling weights were taken (0: base)
    samples: the responses, in the order of the rewards
    origin: one of ORIGINS, or DEMONSTRATED
    off_policy: bool [G], True for a replayed or an expert's response among fresh ones; None: there is none among them
    unfinished: bool [G], responses cut off by ``Method.rollout_budget``, whose reward is not known yet (0 here)
    earlier: int [G], tokens of each response that earlier steps sampled, in the batch of a step that resumed it
    step_logprobs: float32 [G, T], of each token under the policy at the start of ``step``, where the method keeps them;
        in the update of another step, under the policy at that step's start, where the loss reads them
    estimates: a critic's, in the update of one step
    weight: factor of the group's loss in the batch that holds it

    Raises ValueError for rewards of another shape or outside [0, 1].
    """

    prompt: Prompt
    rewards: np.ndarray
    step: int
    version: int
    samples: Samples
    origin: str = FRESH
    off_policy: np.ndarray | None = None
    unfinished: np.ndarray | None = None
    earlier: np.ndarray | None = None
    step_logprobs: np.ndarray | None = None
    estimates: Estimates | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        self.grade(self.rewards)

    def grade(self, rewards: np.ndarray) -> None:
        """Set the rewards of all responses, as the verifier gives them. Raises ValueError as the class does."""
        self.rewards = np.array(rewards, dtype=np.float32)
        self.rewards.flags.writeable = False
        if self.rewards.ndim != 1 or not len(self.rewards):
            raise ValueError(f"prompt {self.prompt.id}: rewards must be a vector of G values, got {self.rewards.shape}")
        if not (np.isfinite(self.rewards).all() and self.rewards.min() >= 0 and self.rewards.max() <= 1):
            raise ValueError(f"prompt {self.prompt.id}: rewards {self.rewards.tolist()}: must lie in [0, 1]; rescale")

    @property
    def mean(self) -> float:
        """Return mu(x), the mean reward, estimated from the G responses."""
        return float(self.rewards.mean(dtype=np.float64))

    @property
    def size(self) -> int:
        return len(self.rewards)

    @property
    def key(self) -> tuple[str, int]:
        """Return the prompt and the step, which identify a group within a run, also after a resume.

        A step that ends one epoch and begins the next may draw a prompt twice, and then two groups have the same key.
        """
        return self.prompt.id, self.step

    @property
    def replayed(self) -> np.ndarray:
        """Mark the responses that this step's rollout did not sample, bool [G]."""
        whole = self.origin in (REPLAYED, DEMONSTRATED)
        return np.full(self.size, whole) if whole or self.off_policy is None else self.off_policy

    @property
    def finished(self) -> bool:
        """Return whether all rewards are known."""
        return self.unfinished is None or not bool(self.unfinished.any())

    def as_origin(self, origin: str) -> Group:
        return replace(self, origin=origin)

    def select(self, index: Sequence[int] | np.ndarray) -> Group:
        """Return the group reduced to the responses of these indices (RePO retrieves single ones)."""
        i = np.asarray(index, dtype=np.int64)
        names = ("off_policy", "unfinished", "earlier", "step_logprobs")
        marks = {name: mark[i] for name in names if (mark := getattr(self, name)) is not None}
        return replace(self, rewards=self.rewards[i], samples=self.samples.select(i), **marks)

    def with_responses_of(self, parts: Sequence[Group]) -> Group:
        """Return the group with the responses of ``parts`` in place of its own, in order and as many.

        The marks of its responses stay unchanged.
        """
        rewards = np.concatenate([part.rewards for part in parts])
        return replace(self, rewards=rewards, samples=Samples.concatenate([part.samples for part in parts]))


def between(value: float, low: float, high: float, tolerance: float = 1e-6) -> bool:
    """Return whether low <= value <= high, for mean rewards, which are multiples of 1/G up to rounding."""
    return low - tolerance <= value <= high + tolerance


def above(value: float, low: float, tolerance: float = 1e-6) -> bool:
    """Return whether value > low strictly, with the tolerance of :func:`between`."""
    return value > low + tolerance
