"""Which of a batch's rows verl already has, what a resumed response becomes, how far the engines are apart; no Ray."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

from bapo.algorithm.rollouts import FRESH, Group, Prompt
from bapo.engines.verl.step_sampler import RolloutWeights, VerlStepSampler
from bapo.engines.verl.transfer_rows import FinishedRows, StepRows, samples_of
from bapo.engines.verl.worker import CURRENT, DELAYED


def group(name: str, logprobs: list[list[float]], rewards: list[float] | None = None) -> Group:
    samples = samples_of([np.ones(len(row)) for row in logprobs], [np.array(row) for row in logprobs])
    return Group(Prompt(name), np.array(rewards or [0.0] * len(logprobs), dtype=np.float32), 1, 0, samples, FRESH)


class RecordingRows(StepRows):
    """Writes down what would be put into TransferQueue, and what would be removed."""

    def __init__(self, groups: dict[str, Group]) -> None:
        super().__init__(None, None, None)
        for uid, g in groups.items():
            tags = {f"{uid}_{i}_0": {"of": uid} for i in range(g.size)}
            g.samples.rows = tuple(tags)
            self.finished[g.samples.rows] = FinishedRows(g.prompt.id, g.rewards.tolist(), tags)
        self.put_again: list[Group] = []
        self.removed: list[str] = []

    def put(self, groups: list[Group]) -> list[tuple[str, dict]]:
        self.put_again += groups
        return [(f"new{k}_{i}_0", {"number": i}) for k, g in enumerate(groups, start=1) for i in range(g.size)]

    def discard(self, keys: list[str]) -> None:
        self.removed += keys


def test_only_rows_that_say_what_the_group_says_are_trained_on_as_they_are() -> None:
    """Coin flips for rewards, another prompt's responses, a part of a group and a second pass get rows of their own."""
    live = {uid: group(f"p-{uid}", [[-1.0], [-2.0]], [0.0, 1.0]) for uid in "abcde"}
    rows = RecordingRows(live)
    flipped = replace(live["b"], rewards=np.array([1.0, 1.0], dtype=np.float32))
    elsewhere, part = replace(live["c"], prompt=Prompt("p-x")), live["d"].select([0])
    found = rows.batch([live["a"], flipped, replace(live["a"]), elsewhere, part])
    assert [g.prompt.id for g in rows.put_again] == ["p-b", "p-a", "p-x", "p-d"]
    new = ["new1_0_0", "new1_1_0", "new2_0_0", "new2_1_0", "new3_0_0", "new3_1_0", "new4_0_0"]
    assert found.keys == ["a_0_0", "a_1_0", *new]
    assert found.tags[:3] == [{"of": "a"}, {"of": "a"}, {"number": 0}]
    assert sorted(rows.removed) == [f"{uid}_{i}_0" for uid in "bcde" for i in (0, 1)]


class Scoring(VerlStepSampler):
    """A sampler whose workers give every token 0.25 less than the rollout engine did, and 1 less under pi_theta."""

    def __init__(self, fresh: list[Group]) -> None:
        self.acted: list[str] = []
        workers = SimpleNamespace(act_as=self.acted.append)
        super().__init__(SimpleNamespace(weights=SimpleNamespace(workers=workers)), step=3, budget=None)
        self._fresh, self.scored = fresh, 0

    def _score(self, groups: list[Group]) -> tuple[list[np.ndarray], int]:
        self.scored = len(groups)
        gap = 0.25 if self.acted[-1] == DELAYED else 1.0
        # what lies behind a response's end does not count
        inside = [np.arange(g.samples.tokens.shape[1]) < g.samples.lengths[:, None] for g in groups]
        return [np.where(i, g.samples.logprobs - gap, 9.0) for g, i in zip(groups, inside, strict=True)], 10


@pytest.mark.parametrize(("sleeps", "calls"), [(True, "2 sleep 2 sleep 3 sleep"), (False, "2 sleep 3")])
def test_an_engine_that_never_sleeps_is_pushed_other_weights_alone(sleeps: bool, calls: str) -> None:
    """verl's ``sleep_replicas`` waits for the requests of an engine that does not sleep, too."""
    made: list[str] = []
    manager = SimpleNamespace(
        sleep_replicas=lambda: made.append("sleep"), update_weights=lambda version: made.append(str(version))
    )
    weights = RolloutWeights(SimpleNamespace(act_as=lambda _: None), manager, sleeps)
    for version in (2, 2, 3):
        weights.load(version, 3)
        weights.sleep()
    assert made == calls.split()


def test_a_delayed_policys_responses_are_scored_by_that_policy() -> None:
    step = Scoring([group("a", [[-1.0, -2.0], [-0.5]])])
    assert step.mismatch(delayed=True) == {"mismatch_mean": 0.25, "mismatch_max": 0.25}
    assert step.acted == [DELAYED, CURRENT]  # whoever scores next means the current policy
    assert step.mismatch(delayed=False)["mismatch_max"] == 1.0
    assert step.costs.forward_tokens == 0 and not any(step.costs.seconds.values())  # no cost of the method's


@pytest.mark.parametrize(("finished", "scored"), [(0, 0), (1, 1), (40, 3)])
def test_one_whole_group_in_sixteen_is_scored(finished: int, scored: int) -> None:
    cut = replace(group("cut", [[-1.0]]), unfinished=np.array([True]))
    step = Scoring([cut, *(group(str(i), [[-1.0]]) for i in range(finished))])
    assert bool(step.mismatch(delayed=True)) == bool(finished)
    assert step.scored == scored
