"""How far the rollout engine's log-probabilities are from the trainer's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

from bapo.algorithm.rollouts import FRESH, Group, Prompt, Samples
from bapo.engines.verl import sampler
from bapo.engines.verl.worker import CURRENT, DELAYED


def group(name: str, logprobs: list[list[float]], unfinished: bool = False) -> Group:
    lengths = np.array([len(row) for row in logprobs], dtype=np.int32)
    values = np.zeros((len(logprobs), lengths.max()), dtype=np.float32)
    for row, given in zip(values, logprobs, strict=True):
        row[: len(given)] = given
    samples = Samples(np.ones(values.shape, dtype=np.int32), lengths, values)
    made = Group(Prompt(name, None), np.zeros(len(logprobs), dtype=np.float32), 1, 0, samples, FRESH)
    made.unfinished = np.array([True] * len(logprobs)) if unfinished else None
    return made


class Scoring(sampler.StepSampler):
    """A sampler whose trainer gives every token 0.25 less than the rollout engine did, and 1 less under pi_theta."""

    def __init__(self, fresh: list[Group]) -> None:
        self.chosen: list[str] = []
        workers = SimpleNamespace(choose_scored_policy=self.chosen.append)
        super().__init__(SimpleNamespace(actor_rollout_wg=workers), step=3, budget=None)
        self._fresh, self.scored = fresh, 0

    def _scored(self, groups: list[Group]) -> tuple[list[np.ndarray], int]:
        self.scored = len(groups)
        gap = 0.25 if self.chosen[-1] == DELAYED else 1.0
        return [g.samples.logprobs - gap for g in groups], 10


def test_a_delayed_policys_responses_are_scored_by_that_policy() -> None:
    step = Scoring([group("a", [[-1.0, -2.0], [-0.5]])])
    assert step.mismatch(delayed=True) == {"mismatch_mean": 0.25, "mismatch_max": 0.25}
    assert step.chosen == [DELAYED, CURRENT]  # whoever scores next means the current policy
    assert step.mismatch(delayed=False)["mismatch_max"] == 1.0
    assert step.ledger.forwards == 0 and not step.seconds  # no cost of the method's


@pytest.mark.parametrize(("finished", "scored"), [(0, 0), (1, 1), (32, 2), (40, 3), (256, 16)])
def test_one_whole_group_in_sixteen_is_scored(finished: int, scored: int) -> None:
    step = Scoring([group("cut", [[-1.0]], unfinished=True), *(group(str(i), [[-1.0]]) for i in range(finished))])
    assert bool(step.mismatch(delayed=True)) == bool(finished)
    assert step.scored == scored


def test_what_lies_behind_a_responses_end_does_not_count() -> None:
    one, other = np.array([[-1.0, 9.0]]), np.array([[-1.5, 0.0]])
    found = sampler.mismatch_of([(one, other, np.array([1]))])
    assert found == {"mismatch_mean": 0.5, "mismatch_max": 0.5}
