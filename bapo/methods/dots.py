"""MoPPS, DOTS and its rollout replay: training on prompts of medium predicted difficulty.

MoPPS predicts a prompt's success rate from its own rewards, DOTS from those of a few reference prompts. With rollout
replay half of a batch comes from a first-in-first-out buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from bapo.algorithm.batch import informative
from bapo.algorithm.rollouts import Group, Prompt
from bapo.methods.base import KL, Batch, Mean, Method, MethodConfig, Sampler, Share, State, Type

#: success rates stay this far from 0 and 1 before their logit is taken, as in the reference
MARGIN = 1e-4
#: weight of the prior w = 1, b = 0 in Platt scaling, in reference prompts
PRIOR = 1.0


class MoPPSConfig(MethodConfig):
    """The reference's values for Countdown and Geometry3K; for mathematics it has candidates 16 and memory 1."""

    clip_high: PositiveFloat = 0.28
    kl_to: KL = "none"
    kl_coef: NonNegativeFloat = 0.0
    aggregation: Mean = "token-mean"  # as in the reference
    candidates: PositiveInt = 8  # rho: candidates per prompt of the batch
    #: lambda: share of a posterior that the next one keeps; 1 forgets nothing
    memory: Share = 0.5
    prior_successes: PositiveFloat = 1.0  # a0 of Beta(a0, b0)
    prior_failures: PositiveFloat = 1.0  # b0
    target: Share = 0.5  # gamma*: the desired success probability


class MoPPS(Method):
    """Model predictive prompt selection (Qu et al. 2507.04632; thu-rllab/MoPPS ``recipe/ours/mopps.py``).

    Each prompt x has a posterior Beta(a, b) of its success probability. From rho * B candidates of the stream,
    gamma ~ Beta(a, b) is sampled (Thompson), and the B prompts nearest to the target are trained on. After the rewards
    a <- lambda a + (1 - lambda) a0 + successes, and b likewise with failures. The loss is GRPO's with "clip higher" and
    no KL. Candidates not chosen cost nothing but count as drawn from the stream.
    """

    Config = MoPPSConfig
    config: MoPPSConfig
    summary = "prompts of medium difficulty by a Beta posterior and Thompson sampling"
    source = "Qu et al. 2507.04632; thu-rllab/MoPPS"
    saved = ("posteriors",)

    def __init__(self, config: MoPPSConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.posteriors: dict[str, tuple[float, float]] = {}  # prompt id -> (a, b)

    def posterior(self, prompt_id: str) -> tuple[float, float]:
        """Return (a, b) of a prompt: the prior before it is first trained on."""
        return self.posteriors.get(prompt_id, (self.config.prior_successes, self.config.prior_failures))

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        candidates = distinct(sampler.draw(self.config.candidates * self.batch_size), self.batch_size)
        a, b = np.array([self.posterior(p.id) for p in candidates]).T
        predicted = self.random("mopps", step).beta(a, b)
        nearest = np.argsort((predicted - self.config.target) ** 2, kind="stable")[: self.batch_size]
        return [candidates[i] for i in nearest]

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        c = self.config
        for group in fresh:
            successes = float(group.rewards.sum(dtype=np.float64))
            a, b = self.posterior(group.prompt.id)
            self.posteriors[group.prompt.id] = (
                c.memory * a + (1 - c.memory) * c.prior_successes + successes,
                c.memory * b + (1 - c.memory) * c.prior_failures + group.size - successes,
            )
        return Batch(list(fresh))


def distinct(drawn: list[Prompt], wanted: int) -> list[Prompt]:
    """Return each problem once, or all that was drawn where fewer than ``wanted`` are left and some must come twice."""
    once = list({p.id: p for p in drawn}.values())
    return once if len(once) >= wanted else drawn


class RolloutReplayConfig(MethodConfig):
    kind: Type = "off"
    kl_to: KL = "none"
    kl_coef: NonNegativeFloat = 0.0
    fresh_share: float = Field(0.5, gt=0, le=1)  # sigma: generated share of the batch
    entropy_coef: float = 0.0
    #: groups in the buffer; None: the batch size (512 of 512 in the reference)
    capacity: PositiveInt | None = None
    #: mu: steps before the first replay
    first_steps: PositiveInt = 2


class RolloutReplay(Method):
    """Rollout replay (Sun et al. 2506.05316, section 3.3; ASTRAL-Group/data-efficient-llm-rl, ``select_buffer``).

    After the first steps, sigma * B prompts are generated and up to (1 - sigma) * B groups replayed, drawn at random
    from a FIFO buffer of the last groups. It holds the newest group of each prompt, unless that is all right or all
    wrong; a replayed group stays in it until it is pushed out. The ratio is pi_theta / alpha_B.
    """

    Config = RolloutReplayConfig
    config: RolloutReplayConfig
    kept: list[Group]
    summary = "half of each batch replayed from a FIFO buffer of informative groups"
    source = "Sun et al. 2506.05316; ASTRAL-Group/data-efficient-llm-rl"
    cost = "0.5 x rollouts"

    def __init__(self, config: RolloutReplayConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.capacity = batch_size if config.capacity is None else config.capacity
        self.generated = max(1, int(config.fresh_share * batch_size))

    def count(self, step: int) -> int:
        """Return the number of prompts that a step generates from."""
        return self.batch_size if step <= self.config.first_steps else self.generated

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        return sampler.draw(self.count(step))

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        replayed: list[Group] = []
        if step > self.config.first_steps:
            count = min(self.batch_size - self.generated, len(self.kept))
            chosen = self.random("rollout replay", step).choice(len(self.kept), size=count, replace=False)
            replayed = self.replayed([self.kept[i] for i in sorted(chosen)]) if count else []
        newest = {g.prompt.id: g for g in fresh}
        others = [g for g in self.kept if g.prompt.id not in newest]
        self.kept = (others + [g for g in newest.values() if informative(g)])[-self.capacity :]
        return Batch(list(fresh) + replayed, metrics={"replay_buffer": len(self.kept)})


class DOTSConfig(RolloutReplayConfig):
    """The values of the reference's ``final_ds_teacher_replay.sh``, as far as it sets them."""

    every: PositiveInt = 2  # mu: steps between two selections
    reference_share: PositiveFloat = 0.5  # share of B rolled out at each selection; 256 of 512
    #: candidates from the stream for each chosen prompt; the reference predicts the whole training set
    candidates: PositiveInt = 8
    target: Share = 0.5  # alpha: the desired success rate
    selection_temperature: PositiveFloat = 1e-3  # tau
    attention_temperature: PositiveFloat = 1.0  # divides the attention's scores


class DOTS(RolloutReplay):
    """Difficulty-targeted online data selection with rollout replay (Sun et al. 2506.05316, sections 3.1 to 3.3;
    ASTRAL-Group/data-efficient-llm-rl, ``ray_trainer_teacher_replay.py``).

    Every mu steps K reference prompts are drawn and rolled out by the current policy; these rollouts count but are not
    trained on. The success rate of every candidate x is predicted as sum_i a_i r_i, the attention-weighted mean of the
    references' mean rewards with a = softmax(z_x . z_i / sqrt(d) / temperature), and calibrated,
    p = sigmoid(w logit(.) + b). The prompts of the next mu steps are drawn without replacement with probabilities
    proportional to exp(-|p - alpha| / tau).

    The reference trains an adapter for z, and a calibration of the mean and deviation of r, on the rollouts of other
    models. Here nothing is trained in advance: z is the frozen embedding of the model before training
    (``Sampler.embed``), standardised over all prompts of the selection, and w >= 0 and b are fitted to the references
    at each selection (Platt scaling), each predicted from all others. If embeddings say nothing, w is near 0 and the
    choice nearly uniform. Candidates come from the stream, not the whole training set, and count as drawn.

    Metrics: ``reference_correlation`` and ``reference_error`` (mean absolute) of predictions and mean rewards over the
    references, each predicted from the others, before w and b; ``prediction_correlation`` and ``prediction_error``,
    after w and b, over the trained prompts, whose predictions are similar by choice.
    """

    Config = DOTSConfig
    config: DOTSConfig
    summary = "prompts of medium predicted difficulty from a reference set, and rollout replay"
    source = "Sun et al. 2506.05316; ASTRAL-Group/data-efficient-llm-rl"
    cost = "0.75 x rollouts"

    def __init__(self, config: DOTSConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.queue: list[tuple[Prompt, float]] = []  # chosen for the coming steps, each with its predicted success rate
        self.predicted: list[float] = []  # success rates of this step's prompts
        self.references = max(3, round(config.reference_share * batch_size))
        self._quality = (math.nan, math.nan)

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        self._quality = (math.nan, math.nan)
        if (step - 1) % self.config.every == 0:
            self.queue = self._select(step, sampler)
        count = self.count(step)
        chosen, self.queue = self.queue[:count], self.queue[count:]
        self.predicted = [p for _, p in chosen]
        return [prompt for prompt, _ in chosen]

    def _select(self, step: int, sampler: Sampler) -> list[tuple[Prompt, float]]:
        """Choose the prompts of the next mu steps, in random order, with their predicted success rates."""
        c = self.config
        wanted = sum(self.count(s) for s in range(step, step + c.every))
        groups = sampler.regenerate(sampler.draw(self.references))
        candidates = distinct(sampler.draw(c.candidates * wanted), wanted)
        vectors = standardised(sampler.embed([g.prompt for g in groups] + candidates))
        references, others = vectors[: len(groups)], vectors[len(groups) :]
        rewards = np.array([g.mean for g in groups])
        left_out = attend(references, references, rewards, c.attention_temperature, skip_self=True)
        self._quality = agreement(left_out, rewards)
        predicted = calibrated(
            attend(others, references, rewards, c.attention_temperature), *fit_platt(left_out, rewards)
        )
        rng = self.random("dots", step)
        # taking the largest log p + Gumbel noise draws without replacement
        scores = -np.abs(predicted - c.target) / c.selection_temperature + rng.gumbel(size=len(candidates))
        chosen = np.argsort(-scores, kind="stable")[:wanted]
        return [(candidates[i], float(predicted[i])) for i in rng.permutation(chosen)]

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        batch = super().build_batch(step, fresh, sampler)
        correlation, error = agreement(np.array(self.predicted), np.array([g.mean for g in fresh]))
        batch.metrics |= {
            "predicted_mean": float(np.mean(self.predicted)),
            "prediction_correlation": correlation,
            "prediction_error": error,
            "reference_correlation": self._quality[0],
            "reference_error": self._quality[1],
        }
        return batch

    # ------------------------------------------------------------------ checkpoints
    def state(self) -> tuple[State, list[Group]]:
        return {"queue": [[prompt.id, value] for prompt, value in self.queue]}, list(self.kept)

    def restore(self, state: State, groups: list[Group], prompt: Callable[[str], Prompt]) -> None:
        super().restore(state, groups, prompt)
        self.queue = [(prompt(name), value) for name, value in state["queue"]]


def standardised(vectors: np.ndarray) -> np.ndarray:
    """Scale each dimension to mean 0 and deviation 1, float64 [n, d]: what all prompts share carries no signal."""
    vectors = np.asarray(vectors, dtype=np.float64)
    return (vectors - vectors.mean(0)) / np.maximum(vectors.std(0), 1e-8)


def attend(
    queries: np.ndarray, references: np.ndarray, values: np.ndarray, temperature: float, skip_self: bool = False
) -> np.ndarray:
    """Return each query's mean of the K references' values, weighted by softmax(query . reference / sqrt(d) /
    temperature), float64 [n]; with ``skip_self`` query i leaves out reference i."""
    scores = queries @ references.T / math.sqrt(references.shape[1]) / temperature
    if skip_self:
        np.fill_diagonal(scores, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights @ values / weights.sum(1)


def fit_platt(predicted: np.ndarray, realised: np.ndarray) -> tuple[float, float]:
    """Fit (w, b) of sigmoid(w logit(predicted) + b) by the least cross-entropy to ``realised``; w >= 0.

    By Newton's method; (1, 0) weighs as much as ``PRIOR`` observations, so that few references change little.
    """
    x = logit(predicted)
    features = np.stack([x, np.ones_like(x)])
    theta = prior = np.array([1.0, 0.0])
    for free in (slice(0, 2), slice(1, 2)):
        for _ in range(50):
            p = sigmoid(theta @ features)
            gradient = features @ (p - realised) + PRIOR * (theta - prior)
            hessian = (features * p * (1 - p)) @ features.T + PRIOR * np.eye(2)
            change = np.zeros(2)
            change[free] = np.linalg.solve(hessian[free, free], gradient[free])
            theta = theta - change / max(1.0, float(np.abs(change).max()))
            if np.abs(change).max() < 1e-10:
                break
        if theta[0] >= 0:
            break
        theta = np.array([0.0, theta[1]])  # the references contradict the attention: only their mean remains
    return float(theta[0]), float(theta[1])


def calibrated(predicted: np.ndarray, w: float, b: float) -> np.ndarray:
    return sigmoid(w * logit(predicted) + b)


def logit(p: np.ndarray) -> np.ndarray:
    p = np.clip(p, MARGIN, 1 - MARGIN)
    return np.log(p / (1 - p))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


def agreement(predicted: np.ndarray, realised: np.ndarray) -> tuple[float, float]:
    """Return (correlation, mean absolute difference); the correlation is nan if either input is constant."""
    error = float(np.abs(predicted - realised).mean())
    if min(np.ptp(predicted), np.ptp(realised)) < 1e-9:
        return math.nan, error
    return float(np.corrcoef(predicted, realised)[0, 1]), error
