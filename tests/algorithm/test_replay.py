"""The three buffers: order, capacity, age, removal, restoring."""

from dataclasses import replace

import numpy as np
import pytest
from support.scripted import group

from bapo.algorithm.replay import HardPrompt, HardPrompts, HighQuality, ResponseCache
from bapo.algorithm.rollouts import Prompt, Samples


def test_a_replacement_leaves_the_order_as_it_is():
    hard = HardPrompts(4)
    for name in "abcd":
        hard.add(HardPrompt(name, Prompt(name)))
    hard.replace(HardPrompt("b", Prompt("b"), 0.5))
    assert [(e.key, e.mean) for e in hard] == [("a", 0.0), ("b", 0.5), ("c", 0.0), ("d", 0.0)]


def test_removal_is_of_the_very_group_not_of_its_prompt():
    high = HighQuality(3)
    first, second = group("a", 4, 1), group("a", 4, 2)
    high.extend([first, second])
    high.remove([first])
    assert [g.step for g in high] == [2]


def test_cache_keeps_the_last_16_single_responses_of_each_prompt():
    cache = ResponseCache(16)
    for step in (1, 2, 3):
        cache.extend([group("a", step, step)])  # 8 each: 1, then 2, then 3 correct
    cache.extend([group("b", 5, 3)])
    kept = cache.of("a")
    assert len(kept) == 16 and len(cache.of("b")) == 8 and cache.of("c") == []
    assert [g.step for g in kept] == 8 * [2] + 8 * [3]
    assert [g.rewards.tolist() for g in kept[:3]] == [[1.0], [1.0], [0.0]]  # 2 of 8 correct at step 2
    assert all(g.size == 1 and g.samples.tokens.shape == (1, 2) for g in kept)


@pytest.mark.parametrize("bad", [[0.0, 1.5], [-1.0, 1.0], [0.0, float("nan")]])
def test_rewards_outside_the_unit_interval_are_refused(bad):
    with pytest.raises(ValueError, match=r"prompt p.*\[0, 1\]"):
        replace(group("p", 0, 1), rewards=np.array(bad))


def test_rewards_must_be_a_vector():
    with pytest.raises(ValueError, match="vector"):
        replace(group("p", 0, 1), rewards=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="vector"):
        replace(group("p", 0, 1), rewards=np.zeros(0))


def test_samples_of_different_width_are_padded_on_the_right():
    narrow = Samples(np.array([[1, 2]]), np.array([2]), np.array([[-0.1, -0.2]]))
    wide = Samples(np.array([[3, 4, 5]]), np.array([3]), np.array([[-0.3, -0.4, -0.5]]))
    both = Samples.concatenate([narrow, wide])
    assert both.tokens.tolist() == [[1, 2, 0], [3, 4, 5]]
    assert both.lengths.tolist() == [2, 3]
    assert both.logprobs.tolist() == [[-0.1, -0.2, 0.0], [-0.3, -0.4, -0.5]]


def test_selected_responses_keep_reward_and_tokens_together():
    g = group("a", 3)
    part = g.select([6, 0])
    assert part.rewards.tolist() == [0.0, 1.0]
    assert (part.samples.logprobs == g.samples.logprobs[[6, 0]]).all()
    assert part.step == g.step and part.prompt.id == "a"
    marks = np.arange(8) == 6
    marked = replace(g, off_policy=marks, unfinished=~marks, earlier=np.arange(8)).select([6, 0])
    assert (marked.off_policy.tolist(), marked.unfinished.tolist()) == ([True, False], [False, True])
    assert marked.earlier.tolist() == [6, 0]
