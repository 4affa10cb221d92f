"""What holds for every input: losses, advantages, filters, buffers, thresholds and random numbers, by Hypothesis."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from support.late import LATE
from support.scripted import group, ids

from bapo import methods, seeds
from bapo.algorithm.advantages import gae, group_relative, relative_to, whiten
from bapo.algorithm.batch import informative, linear_threshold, mini_batches, next_average_reward, online_filter
from bapo.algorithm.replay import HardPrompt, HardPrompts, HighQuality, ResponseCache
from bapo.algorithm.rollouts import Prompt, above, between
from bapo.algorithm.theory import k1, k2_worst, k3, stability

if LATE:
    import torch

    from bapo.algorithm.losses import (
        LossInputs,
        aggregate,
        clipped_surrogate,
        clipped_value_loss,
        importance_ratio,
        low_variance_kl,
        sum_of_parts,
    )

shares = st.floats(0, 1)
logprob = st.floats(-40, 0, width=32)
advantage = st.floats(-5, 5, width=32)
seed = st.integers(0, 2**32)
corrects = st.lists(st.integers(0, 8), min_size=1, max_size=24)  # right answers of each group of 8


def fresh(counts, step=1):
    return [group(f"p{i}", count, step) for i, count in enumerate(counts)]


def close(left, right):
    return np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-5)


def batch(draws, rows, tokens):
    """Return a mini-batch [rows, tokens] with random numbers, masks and marks of replay."""
    rng = np.random.default_rng(draws)
    lengths = rng.integers(1, tokens + 1, size=rows)
    values, mask = rng.normal(size=(rows, tokens)), np.arange(tokens) < lengths[:, None]
    return torch.tensor(values), torch.tensor(mask, dtype=torch.float64), torch.tensor(rng.random(rows) < 0.5)


@given(logprob, logprob)
def test_the_ratio_is_positive_finite_and_the_inverse_of_its_mirror(now, before):
    a, b = torch.tensor(now), torch.tensor(before)
    there, back = importance_ratio(a, b).item(), importance_ratio(b, a).item()
    assert 0 < there < math.inf and there * back == pytest.approx(1, rel=1e-5)
    assert (there >= 1) == (now >= before)


@given(logprob, advantage, st.floats(0.05, 0.5), st.floats(0.05, 0.5))
def test_the_clipped_loss_is_never_below_the_unclipped_one_and_flat_where_it_is_active(log_ratio, value, low, high):
    x = torch.tensor([[log_ratio + 20]], dtype=torch.float64).clamp(-3, 3).requires_grad_()
    ratio = x.exp()
    loss, active = clipped_surrogate(ratio, torch.tensor([[value]], dtype=torch.float64), low, high)
    loss.sum().backward()
    assert loss.item() >= -value * ratio.item() - 1e-9
    inside = 1 - low <= ratio.item() <= 1 + high
    assert not (inside and active.item())
    assert x.grad.item() == pytest.approx(0 if active.item() else -value * ratio.item())


@given(st.floats(0, 30), advantage, st.floats(1.1, 5))
def test_the_dual_clip_bounds_only_negative_advantages(ratio, value, dual):
    inputs = torch.tensor([[ratio]], dtype=torch.float64), torch.tensor([[value]], dtype=torch.float64), 0.2, 0.2
    plain, bounded = clipped_surrogate(*inputs)[0].item(), clipped_surrogate(*inputs, dual)[0].item()
    assert bounded == pytest.approx(min(plain, -value * dual) if value < 0 else plain)


@given(st.floats(0, 5), advantage, st.floats(0, 5))
def test_a_centre_of_one_is_the_plain_interval_and_any_interval_holds_its_centre(ratio, value, centre):
    r, a = torch.tensor([[ratio]], dtype=torch.float64), torch.tensor([[value]], dtype=torch.float64)
    one = torch.ones_like(r)
    assert clipped_surrogate(r, a, 0.2, 0.28, centre=one)[0] == pytest.approx(clipped_surrogate(r, a, 0.2, 0.28)[0])
    at = torch.full_like(r, centre)
    loss, active = clipped_surrogate(at, a, 0.2, 0.2, centre=at)
    assert loss.item() == pytest.approx(-value * centre) and not active.item()


@given(logprob, logprob)
def test_the_estimated_kl_is_not_negative_bounded_and_zero_for_equal_policies(now, other):
    kl = low_variance_kl(torch.tensor(now, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)).item()
    assert -1e-12 <= kl <= 10
    assert low_variance_kl(torch.tensor(now), torch.tensor(now)).item() == 0


@given(seed, st.integers(1, 8), st.integers(1, 9), st.sampled_from(["sequence-mean", "token-mean"]))
def test_micro_batches_add_up_however_a_mini_batch_is_split(draws, rows, tokens, kind):
    values, mask, replayed = batch(draws, rows, tokens)
    cuts = sorted({0, rows, *np.random.default_rng(draws).integers(0, rows + 1, size=3).tolist()})
    slices = [slice(a, b) for a, b in pairwise(cuts)]
    parts = [aggregate(values[s], mask[s], kind, rows, int(mask.sum())) for s in slices]
    close(sum(parts), aggregate(values, mask, kind))

    def summed(part, whole):
        rows_of = tuple(int((whole == k).sum()) for k in (False, True))
        tokens_of = tuple(int(mask[whole == k].sum()) for k in (False, True))
        return sum_of_parts(
            values[part],
            LossInputs(
                values[part], values[part], values[part][:, 0], mask[part], whole[part], torch.ones(rows)[part],
                part_sequences=rows_of, part_tokens=tokens_of,
            ),
            kind,
            (1.0, 0.5),
        )  # fmt: skip

    close(sum(summed(s, replayed) for s in slices), summed(slice(None), replayed))


@given(seed, st.integers(1, 8), st.integers(2, 9), st.sampled_from(["sequence-mean", "token-mean"]))
def test_a_mean_ignores_what_the_mask_hides_and_does_not_depend_on_the_order(draws, rows, tokens, kind):
    values, mask, _ = batch(draws, rows, tokens)
    order = torch.tensor(np.random.default_rng(draws).permutation(rows))
    whole = aggregate(values, mask, kind)
    close(aggregate(values[order], mask[order], kind), whole)
    close(aggregate(values + 1e6 * (1 - mask), mask, kind), whole)
    assert values[mask > 0].min() - 1e-9 <= whole <= values[mask > 0].max() + 1e-9
    close(aggregate(2 * values + 3, mask, kind), 2 * whole + 3)


@given(advantage, advantage, advantage, st.floats(0.05, 2))
def test_the_clipped_value_loss_is_never_below_the_plain_one(value, old, target, clip):
    tensors = [torch.tensor([x], dtype=torch.float64) for x in (value, old, target)]
    plain, (clipped, active) = clipped_value_loss(*tensors, 0.0)[0].item(), clipped_value_loss(*tensors, clip)
    assert clipped.item() >= plain - 1e-12 and bool(active.item()) == (clipped.item() > plain)
    if abs(value - old) <= clip:
        assert clipped.item() == pytest.approx(plain)


@given(st.lists(shares, min_size=2, max_size=16), st.sampled_from(["population", "unbiased", "none"]), st.booleans())
def test_group_advantages_are_centred_and_keep_the_order_of_the_rewards(rewards, std, inside):
    values = group_relative(np.array(rewards), std, eps_inside=inside)
    assert abs(values.sum(dtype=np.float64)) < 1e-4 * len(rewards)
    order = np.argsort(rewards, kind="stable")
    assert (np.diff(values[order]) >= -1e-6).all()
    if max(rewards) - min(rewards) > 0.01 and std == "population":
        assert 0.9 < values.std(dtype=np.float64) <= 1 + 1e-6
    close(group_relative(1 - np.array(rewards), std, eps_inside=inside), -values)


@given(st.integers(1, 8), st.floats(0.05, 0.95))
def test_an_advantage_relative_to_a_stored_mean_has_the_sign_of_the_difference(right, mean):
    values = relative_to(np.array([1.0] * right + [0.0] * (8 - right)), mean)
    assert (values[:right] > 0).all() and (values[right:] < 0).all()


@given(seed, st.integers(1, 5), st.integers(1, 8))
def test_gae_with_lambda_one_is_the_return_less_the_value_and_whitening_centres_it(draws, rows, tokens):
    values, mask, _ = (np.asarray(x) for x in batch(draws, rows, tokens))
    rewards = np.random.default_rng(draws + 1).normal(size=(rows, tokens)) * mask
    advantages, returns = gae(rewards, values, mask)
    assert advantages.dtype == returns.dtype == np.float32
    ahead = np.cumsum(rewards[:, ::-1], 1)[:, ::-1] * mask
    close(returns, ahead)
    close(advantages, (ahead - values) * mask)
    white = whiten(values, mask)[mask > 0]
    assert len(white) < 2 or (abs(white.mean()) < 1e-5 and white.std(ddof=1) == pytest.approx(1, abs=1e-3))


@given(corrects, shares, seed)
def test_filters_keep_the_order_and_choose_what_they_say(counts, share, draws):
    groups, rng = fresh(counts), np.random.default_rng(draws)
    signal = [g for g in groups if any(g.rewards != g.rewards[0])]
    assert signal == [g for g in groups if informative(g)]
    drawn = online_filter(groups, "gaussian", 0.5, 0.2, share, rng)
    assert len(drawn) == min(len(signal), round(share * len(groups)))
    assert drawn == [g for g in signal if any(g is d for d in drawn)]
    kept = online_filter(groups, "uniform", 0.5, 0.2, share, rng)
    assert len(kept) == round(share * len(groups)) and kept == [g for g in groups if any(g is k for k in kept)]


@given(corrects, st.integers(1, 5), st.sampled_from(["fewer-updates", "smaller-mini-batches"]), seed)
def test_mini_batches_hold_every_group_once(counts, size, underfilled, step):
    train = OmegaConf.create({"batch_size": size * 3, "mini_batch_size": size, "underfilled": underfilled})
    method, groups = methods.build({"algorithm": "grpo"}, batch_size=size * 3, seed=1), fresh(counts)
    parts = mini_batches(method, train, 1, step, groups)
    assert sorted(ids([g for part in parts for g in part])) == sorted(ids(groups)) and all(parts)
    if underfilled == "fewer-updates":
        assert all(len(part) == size for part in parts[:-1])
    else:
        assert len(parts) == min(3, len(groups)) and max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(1, 6), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40))
def test_hard_prompts_are_a_bounded_queue_without_doubles(capacity, commands):
    hard, model = HardPrompts(capacity), []
    for adds, number in commands:
        key = str(number)
        model = [k for k in model if k != key]
        if adds:
            hard.add(HardPrompt(key, Prompt(key)))
            model = [*model, key][-capacity:]
        else:
            hard.discard(key)
        assert [e.key for e in hard] == model


@given(st.integers(1, 4), st.none() | st.integers(1, 9), st.lists(st.integers(0, 3), max_size=20))
def test_high_quality_holds_the_newest_groups_within_age_and_capacity(steps, capacity, sizes):
    high, model = HighQuality(steps, capacity), []
    for step, size in enumerate(sizes, 1):
        high.drop_stale(step)
        model = [g for g in model if g.step >= step - steps]
        assert list(high) == model
        added = fresh([4] * size, step)
        high.extend(added)
        model = [*model, *added][-capacity:] if capacity else [*model, *added]
        assert list(high) == model


@given(st.integers(1, 20), st.lists(st.integers(0, 8), min_size=1, max_size=5))
def test_the_response_cache_keeps_the_newest_responses(capacity, counts):
    cache = ResponseCache(capacity)
    for step, count in enumerate(counts):
        cache.extend([group("p", count, step)])
    rewards = [r for step, count in enumerate(counts) for r in group("p", count, step).rewards]
    assert [g.rewards[0] for g in cache.of("p")] == rewards[-capacity:]


@given(shares, shares, shares, shares)
def test_thresholds_stay_in_their_range_and_fall_as_the_mirror_of_rising(average, other, a, b):
    low, high = min(a, b), max(a, b)
    rising, falling = (linear_threshold(average, low, high, way) for way in ("rising", "falling"))
    assert low - 1e-9 <= min(rising, falling) and max(rising, falling) <= high + 1e-9
    assert rising + falling == pytest.approx(low + high)
    if other > average:
        assert linear_threshold(other, low, high) >= rising


@given(shares, shares, shares)
def test_a_moving_average_lies_between_past_and_present(previous, mean, decay):
    average = next_average_reward(previous, mean, "moving-average", decay)
    assert min(previous, mean) - 1e-12 <= average <= max(previous, mean) + 1e-12
    assert next_average_reward(None, mean, "moving-average", decay) == mean


@given(st.floats(0.001, 0.999), st.integers(2, 32), shares, shares)
def test_the_constants_are_at_least_one_and_bound_every_mean_they_speak_of(mu, size, a, b):
    assert stability(mu) >= 1 - 1e-12 and stability(mu) == pytest.approx(stability(1 - mu), rel=1e-6)
    means = [k / size for k in range(1, size)]
    assert max(map(stability, means)) == pytest.approx(k1(size))
    low, high = min(a, b), max(a, b)
    inside = [m for m in means if between(m, low, high)]
    assume(low > 0 and high < 1)
    assert all(stability(m) <= k3(low, high) * (1 + 1e-3) for m in inside)
    admitted = [m for m in means if above(m, low)]
    if admitted:
        assert max(map(stability, admitted)) == pytest.approx(k2_worst(low, size))


@given(seed, st.lists(st.text(max_size=8), min_size=1, max_size=12), st.integers(1, 20))
def test_a_uniform_number_depends_on_its_own_names_alone(draws, names, length):
    key = seeds.key64(draws, "sample", 3)
    prompts, samples = np.array(seeds.prompt_keys(names), dtype=np.uint64), np.arange(len(names)) % 4
    together = seeds.uniforms(key, prompts, samples, length)
    assert ((together > 0) & (together < 1)).all()
    row = draws % len(names)
    alone = seeds.uniforms(key, prompts[row : row + 1], samples[row : row + 1], length + 5)
    assert (alone[0, :length] == together[row]).all()
    assert len(set(seeds.prompt_keys(names))) == len(names)
