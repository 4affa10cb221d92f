"""RePO: retrieval against a brute force of the reference's rules, the cache's timing, the two-part loss; and ARPO."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from support.late import LATE
from support.scripted import NoSampler, build, group, loss_inputs, rewards

from bapo.algorithm.rollouts import FRESH, REPLAYED
from bapo.methods.repo import choose

if LATE:
    import torch


repo, new_arpo = partial(build, "repo", 2), partial(build, "arpo", 4)


def widest(scores: list[int], k: int) -> list[int]:
    """The reference's max_variance_k: in the order of combinations, a subset wins by a larger variance, or by the same
    variance and a larger sum. k^2 var = k sum(x^2) - sum(x)^2 is exact."""
    best, winner = (-1, -1), None
    for subset in combinations(range(len(scores)), k):
        right = sum(scores[i] for i in subset)
        if (key := (k * right - right**2, right)) > best:
            best, winner = key, subset
    return list(winner)


@pytest.mark.parametrize("k", [2, 3, 4, 5, 8])
def test_variance_equals_the_brute_force(k):
    rng = np.random.default_rng(k)
    for share in (0.1, 0.25, 0.5, 0.75, 1.0):
        for _ in range(24):
            scores = (rng.random(8) < share).astype(np.float32)
            assert choose(scores, k, "variance") == widest(scores.astype(int).tolist(), k), scores


@pytest.mark.parametrize(
    ("strategy", "chosen"),
    [
        ("full-scope", [0, 1, 2, 3, 4, 5]),  # variance: 2 right sum to more than 1 right
        ("recency", [3, 4, 5]),
        ("reward", [1, 2, 4]),  # ties in the cache's order, as sorted(reverse=True) leaves them
        ("variance", [0, 1, 2]),
    ],
)
def test_the_four_strategies(strategy, chosen):
    assert choose(np.array([0, 1, 1, 0, 1, 1.0]), 3, strategy) == chosen


@pytest.mark.parametrize("strategy", ["full-scope", "recency", "reward", "variance"])
def test_a_short_cache_gives_all_of_it(strategy):
    assert sorted(choose(np.array([1, 0, 1.0]), 8, strategy)) == [0, 1, 2]


def test_replay_starts_once_16_responses_are_kept_and_excludes_this_steps():
    m = repo()
    for step, correct in ((1, 1), (2, 2), (3, 3), (4, 4)):
        batch = m.build_batch(step, [group("p", correct, step)], NoSampler())
        old = [g for g in batch.groups if g.origin == REPLAYED]
        assert batch.groups[0].origin == FRESH
        if step < 3:
            assert old == [] and batch.metrics["replayed_responses"] == 0
        else:
            # the newest 8 of the 16 are the whole group of the step before
            assert len(old) == 1 and batch.metrics["replayed_responses"] == 8
            assert (old[0].rewards == rewards(correct - 1)).all()
            assert (old[0].step, old[0].version) == (step - 1, step - 2)
            assert (old[0].samples.logprobs == group("p", correct - 1, step - 1).samples.logprobs).all()


@pytest.mark.parametrize(
    ("options", "correct", "size", "version"),
    [
        # kept: step 1 (version 0) with 8 right, step 2 (version 1) with 2 right, each group's right ones first;
        # a merged group counts as its oldest response
        ({"strategy": "full-scope"}, 10, 16, 0),
        ({"strategy": "recency"}, 2, 8, 1),
        ({"strategy": "reward"}, 8, 8, 0),
        ({"strategy": "variance"}, 4, 8, 0),
        ({"strategy": "recency", "replays": 7}, 1, 7, 1),
        ({"strategy": "recency", "replays": 12}, 6, 12, 0),
        ({"strategy": "full-scope", "capacity": 12, "min_cached": 12}, 6, 12, 0),
        ({"strategy": "full-scope", "min_cached": 2}, 10, 16, 0),
    ],
)
def test_options_of_retrieval(options, correct, size, version):
    m = repo(**options)
    m.build_batch(1, [group("p", 8, 1)], NoSampler())
    m.build_batch(2, [group("p", 2, 2)], NoSampler())
    old = m.build_batch(3, [group("p", 0, 3)], NoSampler()).groups[1]
    assert (old.size, old.rewards.sum(), old.version) == (size, correct, version)


def test_fresh_and_replayed_advantages_are_separate_unbiased_and_with_1e_4():
    m = repo(strategy="recency", min_cached=4, capacity=4, replays=4)
    m.build_batch(1, [group("p", 2, 1, size=4)], NoSampler())
    new, old = m.build_batch(2, [group("p", 1, 2, size=4)], NoSampler()).groups
    # fresh 1 0 0 0: squares 0.75, / 3 = 0.25, std 0.5: 0.75 / 0.5001, -0.25 / 0.5001
    assert m.advantages(new).tolist() == pytest.approx([1.499700] + 3 * [-0.499900], abs=1e-6)
    # replayed 1 1 0 0: std sqrt(1/3) = 0.5773503: 0.5 / 0.5774503
    assert m.advantages(old).tolist() == pytest.approx([0.865875] * 2 + [-0.865875] * 2, abs=1e-6)


def rows(index=(0, 1, 2), **more):
    """Fresh rows with ratios 1, 1 and 0.5 (one token), a replayed row with ratios 1.5, 1; some of them."""
    now, reference = [[0.5, 0.5], [0.25, 0.9], [0.75, 0.5]], [[0.25, 0.5], [0.5, 0.5], [0.25, 0.125]]
    columns = now, [[0.5] * 2] * 3, [1.0, -1.0, 1.0], [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [False, False, True]
    picked = ([column[i] for i in index] for column in columns)
    return loss_inputs(*picked, reference=[reference[i] for i in index], **more)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        # fresh: (-1 - 1)/2 = -1 and 0.8 (clipped): mean -0.1; replayed: (-1.2 - 1)/2 = -1.1
        ({}, -0.1 + -1.1),
        ({"off_policy_weight": 0.5}, -0.1 + 0.5 * -1.1),
        ({"off_policy_weight": 0.0}, -0.1),
        # fresh (-1 - 1 + 0.8)/3 = -0.4; replayed (-1.2 - 1)/2 = -1.1
        ({"aggregation": "token-mean"}, -0.4 + -1.1),
    ],
)
def test_loss_is_on_plus_weight_times_off(options, value):
    m = repo(entropy_coef=0.0, **options)
    assert not m.needs_reference
    assert m.loss(rows())[0].item() == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("kind", ["sequence-mean", "token-mean"])
def test_micro_batches_add_up_to_the_mini_batch(kind):
    m = repo(entropy_coef=0.0, aggregation=kind, off_policy_weight=0.7)
    whole = m.loss(rows())[0].item()
    for part in ([0], [1], [2]), ([0, 2], [1]):
        total = 0.0
        for index in part:
            total += m.loss(rows(index, part_sequences=(2, 1), part_tokens=(3, 2)))[0].item()
        assert total == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("kl_to", ["reference", "rollout"])
def test_kl_is_on_fresh_rows_only(kl_to):
    m = repo(entropy_coef=0.0, kl_to=kl_to, kl_coef=0.5)
    assert m.needs_reference == (kl_to == "reference")
    given = rows()
    given.advantages = torch.zeros(3)
    stored = given.behaviour_logprobs.clone(), given.reference_logprobs.clone()
    value, _ = m.loss(given)
    value.backward()
    # other/pi, fresh rows: reference 1/2, 1 | 2; rollout 1, 1 | 2; the KL is x - 1 - ln x, its gradient 1 - x
    x = [0.5, 1.0, 2.0] if kl_to == "reference" else [1.0, 1.0, 2.0]
    kl = [v - 1 - math.log(v) for v in x]
    assert value.item() == pytest.approx(0.5 * ((kl[0] + kl[1]) / 2 + kl[2]) / 2, abs=1e-6)
    gradient = given.logprobs.grad
    assert gradient[2].tolist() == [0.0, 0.0]  # the replayed row: exactly nothing
    assert gradient[0, 0].item() == pytest.approx(0.5 * (1 - x[0]) / 4, abs=1e-6)
    assert gradient[1, 0].item() == pytest.approx(0.5 * (1 - 2.0) / 2, abs=1e-6)
    # the inputs are read, not changed
    assert torch.equal(given.behaviour_logprobs, stored[0]) and torch.equal(given.reference_logprobs, stored[1])


# ---------------------------------------------------------------- ARPO


def test_a_failed_group_gets_one_stored_correct_response_in_its_first_place():
    arpo = new_arpo()
    first = group("a", 2, step=1)
    assert arpo.build_batch(1, [first], NoSampler()).groups == [first]
    failed = group("a", 0, step=7)
    batch = arpo.build_batch(2, [failed], NoSampler())
    (helped,) = batch.groups
    assert helped.rewards.tolist() == [1, 0, 0, 0, 0, 0, 0, 0] and helped.size == failed.size
    assert batch.metrics == {"replayed_responses": 1}
    # the stored response with its own log-probabilities, then the group's others with theirs
    assert any(np.array_equal(helped.samples.logprobs[0], first.samples.logprobs[i]) for i in (0, 1))
    assert np.array_equal(helped.samples.logprobs[1:], failed.samples.logprobs[1:])
    assert helped.origin == FRESH and helped.step == 7
    assert helped.replayed.tolist() == [True] + [False] * 7 and failed.off_policy is None
    assert failed.rewards.sum() == 0  # the log's group is untouched
    # (r - mean) / std with mean 1/8: the stored response is pushed up, the failures down
    assert arpo.advantages(helped)[0] > 2 > 0 > arpo.advantages(helped)[1]


def test_only_failed_groups_are_helped_and_only_by_their_own_prompt():
    arpo = new_arpo()
    arpo.build_batch(1, [group("a", 8), group("b", 1)], NoSampler())
    groups = [group("b", 1, 2), group("c", 0, 2)]  # not failed; no stored response
    assert arpo.build_batch(2, groups, NoSampler()).groups == groups


def test_this_steps_responses_come_too_late_and_the_oldest_are_forgotten():
    arpo = new_arpo(capacity=2)
    failed, solved = group("a", 0), group("a", 3)
    assert arpo.build_batch(1, [failed, solved], NoSampler()).groups == [failed, solved]
    kept = arpo.kept.of("a")
    assert [k.samples.logprobs[0, 0] for k in kept] == [solved.samples.logprobs[i, 0] for i in (1, 2)]


def test_what_is_failed_and_what_is_kept():
    # rewards of 0.25 are kept where positive is below that, and a group of them is failed where max_mean is above it
    strict, loose = new_arpo(positive=0.5, max_mean=0.2), new_arpo(positive=0.1, max_mean=0.3, max_std=0.01)
    for arpo in (strict, loose):
        arpo.build_batch(1, [replace(group("a", 0), rewards=np.full(8, 0.25))], NoSampler())
    assert not strict.kept.of("a") and len(loose.kept.of("a")) == 8
    again = replace(group("a", 0, 2), rewards=np.full(8, 0.25))
    assert loose.build_batch(2, [again], NoSampler()).groups[0] is not again
    spread = replace(again, rewards=np.repeat([0.125, 0.375], 4))
    for bound, failed in (({"max_mean": 0.25}, again), ({"max_mean": 0.3, "max_std": 0.125}, spread)):
        arpo = new_arpo(positive=0.1, **bound)  # its mean, or its spread, is not below
        arpo.build_batch(1, [replace(failed, step=1)], NoSampler())
        assert arpo.kept.of("a") and arpo.build_batch(2, [failed], NoSampler()).groups[0] is failed
    at = new_arpo(positive=0.25)
    at.build_batch(1, [again], NoSampler())
    assert not at.kept.of("a")  # not above
