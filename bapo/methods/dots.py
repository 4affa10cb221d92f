"""DOTS: prompts of predicted difficulty near 0.5, half of each batch replayed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from bapo.algorithm.rollouts import FRESH, Group, Prompt
from bapo.methods.base import Batch, Sampler, Share, State
from bapo.methods.dots_rr import RolloutReplay, RolloutReplayConfig
from bapo.methods.parts.difficulty import agreement, attend, calibrated, distinct, fit_platt, standardised


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
    title = "+DOTS"
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
        groups = sampler.regenerate(sampler.draw(self.references), FRESH)
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
        state, groups = super().state()
        return state | {"queue": [[prompt.id, value] for prompt, value in self.queue]}, groups

    def restore(self, state: State, groups: list[Group], prompt: Callable[[str], Prompt]) -> None:
        super().restore(state, groups, prompt)
        self.queue = [(prompt(name), value) for name, value in state["queue"]]
