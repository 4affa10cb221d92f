"""Which of a batch's rows verl already has, and what a response that goes on becomes; no Ray."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

from bapo.algorithm.rollouts import Group, Prompt, Samples
from bapo.engines.verl.rows import Live, Rows, StepRows, samples_of
from bapo.engines.verl.sampler import beginning, with_grown


def group(name: str, keys: list[str], rewards: list[float]) -> Group:
    n = len(rewards)
    samples = Samples(np.ones((n, 1), dtype=np.int32), np.ones(n, dtype=np.int32), np.zeros((n, 1), dtype=np.float32))
    return Group(Prompt(name), np.array(rewards), 1, 0, Rows.of(samples, keys))


class Kept(StepRows):
    """Writes down what would be put into TransferQueue, and what would be removed."""

    def __init__(self, live: dict[str, Live]) -> None:
        super().__init__(None, None, None)
        self.live, self.put_again, self.removed = live, [], []

    def put(self, groups: list[Group]) -> list[tuple[str, dict]]:
        self.put_again += groups
        return [(f"new{k}_{i}_0", {"number": i}) for k, g in enumerate(groups, start=1) for i in range(g.size)]

    def discard(self, keys: list[str]) -> None:
        self.removed += keys


def test_only_rows_that_say_what_the_group_says_are_trained_on_as_they_are() -> None:
    """Coin flips for rewards, another prompt's responses, a mixture and a second pass need rows of their own."""
    live = {f"{u}_{i}_0": Live({"of": u}, f"p-{u}", float(i)) for u in "abcde" for i in (0, 1)}
    rows = Kept(live)
    same, second = group("p-a", ["a_0_0", "a_1_0"], [0, 1]), group("p-a", ["a_0_0", "a_1_0"], [0, 1])
    flipped = group("p-b", ["b_0_0", "b_1_0"], [1, 1])
    elsewhere = group("p-x", ["c_0_0", "c_1_0"], [0, 1])
    mixed = group("p-d", ["d_0_0", ""], [0, 1])
    found = rows.batch([same, flipped, second, elsewhere, mixed])
    assert rows.put_again == [flipped, second, elsewhere, mixed]
    assert found.keys == ["a_0_0", "a_1_0", *(f"new{k}_{i}_0" for k in (1, 2, 3, 4) for i in (0, 1))]
    assert found.tags[:3] == [{"of": "a"}, {"of": "a"}, {"number": 0}]
    assert sorted(rows.removed) == sorted(key for key in live if not key.startswith("a"))


def test_a_response_that_went_on_takes_its_place_in_the_group() -> None:
    samples = samples_of([np.array([5, 6]), np.array([7])], [np.array([-0.5, -0.25]), np.array([-1.0])])
    before = Group(Prompt("p"), np.array([0.0, 1.0]), 1, 0, Rows.of(samples, ["", ""]))
    begun = beginning(before.samples, 0)
    assert (begun.tokens, begun.logprobs, begun.number) == ([5, 6], [-0.5, -0.25], 0)
    whole = samples_of([np.array([5, 6, 8, 9])], [np.array([-0.5, -0.25, -2.0, -3.0])])
    grown = Group(Prompt("p"), np.array([1.0]), 2, 1, Rows.of(whole, ["u_0_0"]))
    after = with_grown(before, {0: grown})
    assert after.samples.tokens.tolist() == [[5, 6, 8, 9], [7, 0, 0, 0]]
    assert after.samples.lengths.tolist() == [4, 1] and after.samples.keys == ["u_0_0", ""]
    assert after.samples.logprobs.tolist() == [[-0.5, -0.25, -2.0, -3.0], [-1.0, 0, 0, 0]]
    assert after.rewards.tolist() == [1.0, 1.0] and (after.step, after.version) == (1, 0)
    assert before.rewards.tolist() == [0.0, 1.0] and before.samples.lengths.tolist() == [2, 1]  # as it was
    assert replace(after, unfinished=np.array([False, False])).finished
