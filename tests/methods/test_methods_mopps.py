"""MoPPS: posteriors by hand, which prompts are drawn, and what a resumed run knows."""

from __future__ import annotations

from functools import partial

import numpy as np
from support.scripted import NoSampler, ScriptedSampler, build, group

from bapo import seeds

B = 4


mopps = partial(build, "mopps", B)


def stream(count):
    return ScriptedSampler(stream=[f"p{i:02d}" for i in range(count)])


def test_the_posterior_forgets_and_counts():
    method = mopps(memory=0.5)
    method.build_batch(1, [group("a", 6), group("b", 0)], NoSampler())
    assert method.posteriors == {"a": (0.5 * 1 + 0.5 * 1 + 6, 1 + 2), "b": (1.0, 9.0)}
    method.build_batch(2, [group("a", 8)], NoSampler())
    assert method.posteriors["a"] == (0.5 * 7 + 0.5 + 8, 0.5 * 3 + 0.5)  # (12, 2)


def test_memory_one_forgets_nothing():
    method = mopps(memory=1.0, prior_successes=2.0)
    for correct in (3, 5):
        method.build_batch(1, [group("a", correct)], NoSampler())
    assert method.posterior("a") == (2 + 3 + 5, 1 + 5 + 3)
    assert method.posterior("never seen") == (2.0, 1.0)


def test_it_takes_the_prompts_nearest_to_one_half_of_rho_times_b():
    method = mopps(candidates=3)
    for i in range(12):  # sharp posteriors: p03, p07, p08 and p11 are near 1/2, the others at the ends
        half = i in (3, 7, 8, 11)
        method.posteriors[f"p{i:02d}"] = (4000.0, 4000.0) if half else (8000.0, 80.0) if i % 2 else (80.0, 8000.0)
    sampler = stream(100)
    assert sorted(p.id for p in method.draw_prompts(5, sampler)) == ["p03", "p07", "p08", "p11"]
    assert len(sampler.stream) == 100 - 12  # three candidates a place


def test_another_target_finds_other_prompts():
    method = mopps(candidates=2, target=1.0)
    for i in range(8):
        method.posteriors[f"p{i:02d}"] = (10_000.0 * (i + 1), 10_000.0 * (8 - i))
    assert [p.id for p in method.draw_prompts(1, stream(8))] == ["p07", "p06", "p05", "p04"]  # the nearest first


def test_the_thompson_samples_are_those_of_the_posterior():
    method = mopps(candidates=2, prior_successes=3.0, prior_failures=2.0)  # Beta(3, 2) for every prompt
    expected = seeds.generator(1, "mopps", 9).beta(np.full(8, 3.0), np.full(8, 2.0))
    nearest = np.argsort((expected - 0.5) ** 2)[:B]
    assert [p.id for p in method.draw_prompts(9, stream(8))] == [f"p{i:02d}" for i in nearest]


def test_a_prompt_is_a_candidate_once():
    sampler = ScriptedSampler(stream=["a", "b", "a", "c", "d", "a", "b", "e"])
    drawn = [p.id for p in mopps(candidates=2).draw_prompts(1, sampler)]
    assert len(drawn) == len(set(drawn)) == B


def test_fewer_problems_than_places_come_twice():
    sampler = ScriptedSampler(stream=["a", "b", "a", "b", "a", "b", "a", "b"])
    assert len(mopps(candidates=2).draw_prompts(1, sampler)) == B
