"""BAPO's hooks against Algorithm 1 and equations 5 to 8, with scripted rewards; every batch is worked out by hand.

Most scenarios keep the mean reward of a step at 1/2 (B = 6 groups of 8, 24 correct in all). Then eq. 8 gives
c2 = 0.125 + 0.5 * 0.375 = 0.3125 and c3 = 0.25 + 0.5 * 0.375 = 0.4375, so that only 3/8 counts as "high-quality".
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.scripted import NoSampler, ScriptedSampler, build, fresh, ids, loss_inputs, parts, with_bad

from bapo import methods
from bapo.algorithm.rollouts import FRESH, REPLAYED
from bapo.methods.bapo import BAPO

B = 6
MIXED = [0, 1, 3, 4, 8, 8]  # a .. f: X1 = b c d, B_bad gains a b, B_high gains c
NO_SIGNAL = [0, 0, 0, 8, 8, 8]  # X1 = nothing, B_bad gains a b c
FULL = [3, 3, 3, 5, 5, 5]  # X1 = all six, B_high gains a b c


def bapo(algorithm: str = "bapo", batch_size: int = B, seed: int = 1, **options) -> BAPO:
    return build(algorithm, batch_size, seed, **options)


def bad(method: BAPO) -> list[str]:
    return [e.prompt.id for e in method.bad]


def reasons(batch) -> dict[str, str]:
    return {g.prompt.id: why for g, why in batch.rejected}


def test_ten_steps_of_algorithm_1():
    method = bapo()
    # step 5 re-evaluates 3 = B/2 prompts, the oldest: 2a improves to 2/8, 2b is solved, 3a stays at 1/8
    # step 10 likewise: 7a stays at 0, 7b improves to 7/8, 8a to 3/8
    sampler = ScriptedSampler({"2a": [2], "2b": [8], "3a": [1], "7a": [0], "7b": [7], "8a": [3]})
    seen = {}
    for step in range(1, 11):
        sampler.step = step
        seen[step] = method.build_batch(step, fresh(step, MIXED), sampler)

    # each step replays the groups of 3/8 that the three steps before left, as far as X1 and X2 leave room
    x2 = {5: ["2a"], 10: ["7b", "8a"]}
    for step, batch in seen.items():
        x3 = [f"{s}c" for s in range(max(1, step - 3), step)]
        room = 3 - len(x2.get(step, []))
        assert parts(batch)[:2] == ([f"{step}b", f"{step}c", f"{step}d"], x2.get(step, [])), step
        replayed = parts(batch)[2]
        assert replayed == x3 if room >= len(x3) else len(replayed) == room and set(replayed) < set(x3), step
        assert batch.metrics["c2"] == 0.3125 and batch.metrics["c3"] == 0.4375 and batch.metrics["r_tot"] == 0.5
        assert batch.metrics["reevaluated_prompts"] == (3 if step in (5, 10) else 0)
        assert batch.metrics["high_buffer"] == min(step, 4) + (step == 10)  # 8a came back with 3/8
        assert batch.metrics["bad_buffer"] == min(2 * step, 6)
    assert sampler.asked == [["2a", "2b", "3a"], ["7a", "7b", "8a"]]

    # why the others are not in the batch
    assert reasons(seen[4]) == {"4a": "no signal in X1", "4e": "no signal in X1", "4f": "no signal in X1"}
    assert reasons(seen[5])["2b"] == "all correct" and reasons(seen[5])["3a"] == "not improved"
    # 7b and 8a have left B_bad, 7a went to the back; then 10a and 10b came in
    assert bad(method) == ["8b", "9a", "9b", "7a", "10a", "10b"]


def test_x1_keeps_one_to_seven_of_eight():
    batch = bapo(batch_size=9).build_batch(1, fresh(1, range(9)), NoSampler())
    assert parts(batch)[0] == ["1b", "1c", "1d", "1e", "1f", "1g", "1h"]  # 1/8 and 7/8 included
    assert reasons(batch) == {"1a": "no signal in X1", "1i": "no signal in X1"}
    # 1/5 and 4/5 are not exact in binary, and G = 5 stores float32 rewards
    batch = bapo().build_batch(1, fresh(1, range(6), size=5), NoSampler())
    assert parts(batch)[0] == ["1b", "1c", "1d", "1e"]


@pytest.mark.parametrize(("c1", "stored"), [(0.0, ["1a"]), (0.125, ["1a", "1b"]), (0.25, ["1a", "1b", "1c"])])
def test_prompts_up_to_c1_are_stored_as_hard(c1, stored):
    method = bapo(c1=c1)
    method.build_batch(1, fresh(1, [0, 1, 2, 5, 8, 8]), NoSampler())
    assert bad(method) == stored


@pytest.mark.parametrize("m", [1, 2, 5])
def test_m_re_evaluates_only_when_t_mod_m_is_0(m):
    method = bapo(m=m, max_reevaluated=1)
    sampler = ScriptedSampler({f"{t}{c}": [0] * 20 for t in range(1, 12) for c in "abc"})
    asked_at = []
    for step in range(1, 12):
        before = len(sampler.asked)
        method.build_batch(step, fresh(step, NO_SIGNAL), sampler)
        if len(sampler.asked) > before:
            asked_at.append(step)
    first = 2 if m == 1 else m  # at step 1 the buffer is still empty
    assert asked_at == [t for t in range(first, 12) if t % m == 0]


@pytest.mark.parametrize(
    ("admission", "correct", "admitted", "stays"),
    [
        # eq. 6: c1 < mu < 1
        ("improved", 0, False, True),
        ("improved", 1, False, True),  # mu = c1 is no improvement
        ("improved", 2, True, False),
        ("improved", 7, True, False),
        ("improved", 8, False, False),  # solved: leaves B_bad, but gives no signal
        # eq. 5: mu > c1
        ("above-c1", 1, False, True),
        ("above-c1", 2, True, False),
        ("above-c1", 8, True, False),
    ],
)
def test_x2_admission(admission, correct, admitted, stays):
    method = with_bad(["p"], x2_admission=admission)
    batch = method.build_batch(5, fresh(5, [8] * 6), ScriptedSampler({"p": [correct]}))
    assert parts(batch)[1] == (["p"] if admitted else [])
    assert ("p" in bad(method)) == stays
    assert batch.metrics["reevaluated_prompts"] == 1


@pytest.mark.parametrize(
    ("first", "asked", "left"),
    [
        (False, [["old"]], ["5a", "5b", "5c"]),  # this step's hard prompts wait for the next time
        (True, [["old", "5a", "5b"]], ["5c"]),  # they follow behind the older ones, within the cap of 3
    ],
)
def test_stored_first_re_evaluates_this_steps_hard_prompts(first, asked, left):
    method = with_bad(["old"], stored_first=first)
    sampler = ScriptedSampler({"old": [4], "5a": [4], "5b": [4]})
    method.build_batch(5, fresh(5, NO_SIGNAL), sampler)
    assert sampler.asked == asked
    assert bad(method) == left


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 3),
        ({"max_reevaluated": 2}, 2),
        ({"max_reevaluated": 50}, 6),
        ({"batch_size": 1, "bad_capacity": 6}, 1),  # half of one is one
    ],
)
def test_max_reevaluated_is_half_the_batch_by_default(options, count):
    method = with_bad("abcdef", **options)
    sampler = ScriptedSampler({p: [0] for p in "abcdef"})
    method.build_batch(5, fresh(5, [8] * 6), sampler)
    assert sampler.asked == [list("abcdef")[:count]]


@pytest.mark.parametrize(("first", "drawn"), [(True, ["1b"]), (False, [])])
def test_stored_first_replays_what_x1_left_out_and_nothing_twice(first, drawn):
    options = {"online_filter": "gaussian", "filter_mean": 0.5, "filter_std": 0.01, "filter_share": 0.3}
    method = bapo(stored_first=first, high_admission="informative", x3_filter="none", **options)
    batch = method.build_batch(1, fresh(1, [4, 2, 8]), NoSampler())  # X1 keeps 4/8 alone
    assert (parts(batch)[0], parts(batch)[2]) == (["1a"], drawn)


@pytest.mark.parametrize(
    ("second", "x1", "x3"),
    [
        ([3, 3, 3, 7, 8, 0], 4, 2),  # room 6 - 4 = 2 of the 4 stored
        ([8, 8, 8, 0, 0, 0], 0, 4),  # room 6, but only 4 are stored
        ([3, 3, 3, 5, 5, 5], 6, 0),  # no room
    ],
)
def test_x3_fills_what_is_left_of_the_batch(second, x1, x3):
    method = bapo()
    method.build_batch(1, fresh(1, [3, 3, 3, 3, 4, 8]), NoSampler())  # B_high: 1a 1b 1c 1d
    batch = method.build_batch(2, fresh(2, second), NoSampler())
    got = parts(batch)
    assert len(got[0]) == x1 and len(got[2]) == x3
    assert len(set(got[2])) == x3 and set(got[2]) <= {"1a", "1b", "1c", "1d"}  # without replacement
    assert {g.prompt.id for g in method.high if g.step == 1} == {"1a", "1b", "1c", "1d"}  # to be replayed again


def test_x2_takes_room_before_x3_and_the_batch_may_overflow():
    # X1 = 5b 5c 5d; X2 = 2, so room for 1 of the 3; X2 = 6, so 9 > B: nothing fresh is thrown away
    for improved, sizes in (("ab", [3, 2, 1]), ("abcdef", [3, 6, 0])):
        method = with_bad("abcdef", max_reevaluated=6)
        method.build_batch(4, fresh(4, FULL), NoSampler())  # B_high: 4a 4b 4c
        answers = {name: [4 * (name in improved)] for name in "abcdef"}
        batch = method.build_batch(5, fresh(5, MIXED), ScriptedSampler(answers))
        assert [len(p) for p in parts(batch)] == sizes


def test_a_replayed_group_comes_again_unless_it_is_removed():
    for remove, again in ((True, []), (False, ["1c"])):
        method = bapo(remove_replayed=remove)
        method.build_batch(1, fresh(1, MIXED), NoSampler())
        assert parts(method.build_batch(2, fresh(2, NO_SIGNAL), NoSampler()))[2] == ["1c"]
        assert parts(method.build_batch(3, fresh(3, NO_SIGNAL), NoSampler()))[2] == again


@pytest.mark.parametrize(("high_steps", "from_steps"), [(3, {2, 3, 4}), (1, {4}), (4, {1, 2, 3, 4})])
def test_high_steps_is_the_age_limit(high_steps, from_steps):
    method = bapo(high_steps=high_steps, batch_size=12)
    for step in range(1, 5):
        method.build_batch(step, fresh(step, FULL + FULL), NoSampler())  # 12 in X1: no room, 6 stored a step
    batch = method.build_batch(5, fresh(5, NO_SIGNAL + NO_SIGNAL), NoSampler())
    assert len(parts(batch)[2]) == min(12, 6 * len(from_steps))
    replayed = {g.step for g in batch.groups}
    assert replayed <= from_steps
    assert {g.step for g in method.high} | replayed == from_steps


def test_a_full_buffer_keeps_its_newest_groups():
    method = bapo(high_capacity=2)
    method.build_batch(1, fresh(1, FULL), NoSampler())
    assert ids(method.high) == ["1b", "1c"]
    assert sorted(parts(method.build_batch(2, fresh(2, NO_SIGNAL), NoSampler()))[2]) == ["1b", "1c"]


@pytest.mark.parametrize(("admission", "stored"), [("thresholds", ["1c"]), ("informative", ["1b", "1c", "1d", "1e"])])
def test_which_groups_are_stored_as_high_quality(admission, stored):
    method = bapo(high_admission=admission)
    method.build_batch(1, fresh(1, [0, 1, 3, 5, 7, 8]), NoSampler())  # r_tot = 1/2
    assert ids(method.high) == stored


def test_stored_accuracy_is_compared_with_this_steps_thresholds():
    method = bapo(high_admission="informative")
    method.build_batch(1, fresh(1, [0, 1, 2, 3, 8, 7]), NoSampler())
    # r_tot = 0: c2 = 1/8, c3 = 2/8, both ends included; 3/8 and 7/8 are out
    batch = method.build_batch(2, fresh(2, [0] * 6), NoSampler())
    assert (batch.metrics["c2"], batch.metrics["c3"]) == (0.125, 0.25)
    assert parts(batch) == ([], [], ["1b", "1c"])


def test_replayed_groups_come_back_untouched_but_for_their_label():
    method = bapo()
    stored = fresh(1, MIXED)[2]
    method.build_batch(1, [stored, *fresh(1, [0, 1, 4, 8, 8])], NoSampler())
    before = stored.samples.logprobs.copy()
    [back] = method.build_batch(2, fresh(2, NO_SIGNAL), NoSampler()).groups
    assert back.origin == REPLAYED and stored.origin == FRESH
    assert back.samples is stored.samples and (back.samples.logprobs == before).all()
    assert (back.rewards == stored.rewards).all() and (back.step, back.version) == (1, 0)


def test_the_choice_is_random_even_and_a_function_of_seed_and_step():
    config = bapo().config

    def chosen(seed, step=2):
        method = BAPO(config, B, seed)
        method.build_batch(step - 1, fresh(1, [3, 3, 3, 3, 4, 8]), NoSampler())
        for g in method.high:
            g.step = step - 1
        return tuple(parts(method.build_batch(step, fresh(2, [3, 3, 3, 7, 8, 0]), NoSampler()))[2])

    picks = [chosen(seed) for seed in range(300)]
    assert len(set(picks)) == 6  # all pairs of the four
    counts = {name: sum(name in p for p in picks) for name in ("1a", "1b", "1c", "1d")}
    assert all(110 <= n <= 190 for n in counts.values()), counts  # 150 +- 4.6 standard deviations
    assert [chosen(seed) for seed in range(20)] == picks[:20]
    assert [chosen(seed, 3) for seed in range(20)] != picks[:20]


@pytest.mark.parametrize(
    ("v", "phase", "steps"),
    [
        (5, "literal", [5, 10, 15]),  # the initial policy serves steps 1 .. 4
        (5, "first", [1, 6, 11]),  # every policy serves 5 steps
        (3, "literal", [3, 6, 9, 12, 15]),
        (1, "literal", list(range(1, 16))),
        (1, "first", list(range(1, 16))),
    ],
)
@pytest.mark.parametrize("algorithm", ["bapo", "grpo_delayed"])
def test_steps_that_refresh_the_rollout_policy(algorithm, v, phase, steps):
    method = methods.build({"algorithm": algorithm, "v": v, "sync_phase": phase}, B, 1)
    assert [t for t in range(1, 16) if method.syncs_rollout_policy(t)] == steps
    assert method.delays_rollout_policy == (v > 1)


@pytest.mark.parametrize(("algorithm", "x2", "x3"), [("without_x2", 0, 1), ("without_x3", 1, 0), ("x1", 0, 0)])
def test_an_ablation_lacks_its_part_of_every_batch(algorithm, x2, x3):
    method = bapo(f"bapo_{algorithm}")
    sampler = ScriptedSampler({f"{t}{c}": [4, 4] for t in range(1, 40) for c in "ab"}) if x2 else NoSampler()
    for step in range(1, 16):
        sizes = [len(part) for part in parts(method.build_batch(step, fresh(step, MIXED), sampler))]
        assert sizes == [3, x2 * 3 * (step % 5 == 0), x3 * min(3, step - 1)]
        assert all(g.step >= step - 3 for g in method.high)  # groups that nobody replays are forgotten all the same


def test_ratio_and_kl_are_to_the_stored_log_probabilities():
    method = bapo(kl_coef=0.1, entropy_coef=0.0, dual_clip=0)
    assert method.config.kl_to == "rollout" and not method.needs_reference and not method.needs_step_policy
    now, stored = [[0.55, 0.5], [0.25, 0.5]], [[0.5, 0.5], [0.5, 0.25]]
    unread = [[1e-4] * 2] * 2  # the reference's probabilities
    given = loss_inputs(now, stored, [1.0, -1.0], second_part=[False, True], reference=unread)
    loss, metrics = method.loss(given)
    # ratios 1.1, 1 | 0.5, 2: surrogate -1.1, -1 | 0.8 (clipped), 2
    # KL alpha/pi - 1 - log(alpha/pi): 10/11: 0.004401, 0 | 2: 0.306853, 0.5: 0.193147
    surrogate = ((-1.1 - 1) / 2 + (0.8 + 2) / 2) / 2
    kl = (10 / 11 - 1 - math.log(10 / 11) + 1 - math.log(2) + 0.5 - 1 + math.log(2)) / 4
    assert loss.item() == pytest.approx(surrogate + 0.1 * kl, abs=1e-6)
    assert metrics["kl"].item() == pytest.approx(kl, abs=1e-6)
    assert metrics["clip_fraction"].item() == 0.25
    loss.backward()
    # d/dlog pi: surrogate -rho A (0 where clipped), KL 1 - alpha/pi; each over 2 tokens and 2 sequences
    expected = np.array([[-1.1 + 0.1 / 11, -1.0], [0.1 * -1.0, 2 + 0.1 * 0.5]]) / 4
    assert given.logprobs.grad.numpy() == pytest.approx(expected, abs=1e-6)
