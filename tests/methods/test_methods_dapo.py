"""DAPO's dynamic sampling: which groups are kept, when it stops, what it says it generated."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.scripted import NoSampler, ScriptedSampler, build, fresh, ids

from bapo.algorithm.rollouts import FRESH, Group, Prompt
from bapo.errors import UserError

B = 4


dapo = partial(build, "dapo", B)


def sampler(corrects):
    """The prompts p0, p1, ... with the given numbers of correct responses."""
    names = [f"p{i}" for i in range(len(corrects))]
    return ScriptedSampler({n: [c] for n, c in zip(names, corrects, strict=True)}, names)


def test_a_full_batch_needs_nothing_more():
    batch = dapo().build_batch(1, fresh(1, [1, 4, 7, 3]), NoSampler())
    assert ids(batch.groups) == ["1a", "1b", "1c", "1d"]
    assert batch.metrics == {"generation_batches": 1} and batch.rejected == []


def test_it_draws_until_the_batch_is_full_and_cuts_it_to_b():
    s = sampler([8, 8, 0, 5, 2, 3, 4, 1])
    batch = dapo().build_batch(1, fresh(1, [0, 8, 3, 8]), s)
    # 1 of the first four, 1 of p0 .. p3, then 4 of p4 .. p7, of which 2 still fit
    assert ids(batch.groups) == ["1c", "p3", "p4", "p5"]
    assert batch.metrics == {"generation_batches": 3}
    assert s.asked == [["p0", "p1", "p2", "p3"], ["p4", "p5", "p6", "p7"]]
    reasons = dict.fromkeys(["1a", "1b", "1d", "p0", "p1", "p2"], "equal rewards")
    assert {g.prompt.id: why for g, why in batch.rejected} == reasons | dict.fromkeys(["p6", "p7"], "batch full")
    assert {g.origin for g in batch.groups} == {FRESH}  # the policy has not moved since the rollout


@pytest.mark.parametrize(("options", "batches"), [({}, 4), ({"max_generation_batches": 2}, 2)])
def test_at_the_limit_it_trains_on_what_there_is(options, batches):
    s = sampler([0] * 3 + [4] + [0] * 16)
    batch = dapo(**options).build_batch(1, fresh(1, [0, 0, 2, 0]), s)
    assert ids(batch.groups) == ["1c", "p3"]
    assert batch.metrics == {"generation_batches": batches}
    assert len(s.asked) == batches - 1
    assert len(batch.groups) + len(batch.rejected) == B * batches  # every generated group is accounted for


def test_an_empty_batch_is_possible():
    batch = dapo(max_generation_batches=1).build_batch(1, fresh(1, [0, 8, 0, 8]), NoSampler())
    assert batch.groups == [] and batch.metrics == {"generation_batches": 1}


def test_at_limit_raise_says_what_to_change():
    with pytest.raises(UserError, match=r"step 7: only 1 of 4 .*at_limit=train"):
        dapo(at_limit="raise").build_batch(7, fresh(7, [0, 0, 2, 0]), sampler([0] * 12))
    full = dapo(at_limit="raise").build_batch(7, fresh(7, [1, 1, 2, 1]), NoSampler())
    assert len(full.groups) == 4


def test_equal_rewards_that_are_not_exact_in_binary():
    # the float32 standard deviation of seven times 0.3 is not zero
    equal = Group(Prompt("equal"), np.full(7, 0.3, dtype=np.float32), 1, 0)
    assert equal.rewards.std() > 0
    batch = dapo(max_generation_batches=1).build_batch(1, [equal, *fresh(1, [1])], NoSampler())
    assert ids(batch.groups) == ["1a"]
