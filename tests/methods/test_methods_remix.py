"""AReaL and Remix-GRPO: which policies' groups a batch holds, how often it is trained on, the losses by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.scripted import NoSampler, ScriptedSampler, build, fresh, group, ids, loss_inputs

from bapo.algorithm import batch
from bapo.algorithm.rollouts import FRESH, REPLAYED
from bapo.experiments.compose import compose_config

B, AREAL = 5, 2


areal = partial(build, "areal", AREAL)
STALE = ("areal", "grpo_stale")


def remix(**options):
    return build("remix", B, **{"switch_step": 4, **options})


def run(method, first, last, sampler):
    """The batches of the steps first..last, each drawn from ``sampler``."""
    found = []
    for step in range(first, last + 1):
        drawn = method.draw_prompts(step, sampler)
        found.append(method.build_batch(step, [group(p.id, 4, step) for p in drawn], NoSampler()).groups)
    return found


def stream():
    return ScriptedSampler(stream=[f"p{i:02d}" for i in range(60)])


def test_two_of_five_groups_come_from_the_last_two_policies_until_the_switch():
    batches = run(remix(), 1, 6, stream())
    assert [len(b) for b in batches] == [B] * 6
    assert [sum(g.origin == REPLAYED for g in b) for b in batches] == [0, 2, 2, 2, 0, 0]
    for step, groups in enumerate(batches, start=1):
        assert {g.step for g in groups if g.origin == FRESH} == {step}
        assert {step - g.step for g in groups if g.origin == REPLAYED} <= {1, 2}
    drawn = [g.prompt.id for b in batches for g in b if g.origin == FRESH]
    assert drawn == [f"p{i:02d}" for i in range(5 + 3 * 3 + 2 * 5)]  # replayed groups are not generated


def test_something_is_always_generated():
    method = remix(replay_share=0.99, policies=1)
    run(method, 1, 1, stream())
    assert len(method.draw_prompts(2, stream())) == 1
    assert {g.step for g in run(method, 2, 3, stream())[1] if g.origin == REPLAYED} == {2}  # it made only one group


def test_older_policies_are_forgotten():
    method = remix(policies=1, switch_step=50)
    run(method, 1, 3, stream())
    method.draw_prompts(4, stream())
    assert {g.step for g in method.kept} == {3}
    run(method, 51, 51, stream())
    assert method.kept == []


def test_each_mini_batch_twice_in_another_order(tiny_world):
    train = compose_config(tiny_world).train
    groups = fresh(2, [1, 2, 3, 4, 5, 6, 7, 4])
    parts = batch.mini_batches(remix(), train, 7, 2, groups)
    once = batch.mini_batches(remix(update_to_data=1), train, 7, 2, groups)
    assert [ids(p) for p in parts[:2]] == [ids(p) for p in once] and len(parts) == 4
    first, second = ids(parts[0] + parts[1]), ids(parts[2] + parts[3])
    assert sorted(second) == sorted(ids(groups)) and second != first
    assert len(batch.mini_batches(remix(), train, 7, 5, groups)) == 2  # after the switch


def test_the_anchor_weight():
    known = {1: 1.0, 50: 1.0, 51: 0.9, 60: 0.9, 61: 0.8, 80: 0.7, 100: 0.5, 101: 0.5, 900: 0.5}
    assert {t: round(remix(switch_step=50).anchor_weight(t), 2) for t in known} == known
    method = remix(switch_step=0, kl_decay=0.3, kl_floor=0.2)
    assert [round(method.anchor_weight(t), 2) for t in (1, 11, 21, 31)] == [0.7, 0.4, 0.2, 0.2]


def test_the_divergence_is_the_mixture():
    given = loss_inputs([[0.5]], [[0.5]], [1.0], reference=[[0.25]], pi_k=[[0.4]], step=11)
    by_hand = [r - np.log(r) - 1 for r in (0.25 / 0.5, 0.4 / 0.5)]
    expected = 0.9 * by_hand[0] + 0.1 * by_hand[1]
    assert remix(switch_step=1).divergence(given).item() == pytest.approx(expected, abs=1e-6)


def test_it_asks_for_both_policies_and_for_the_reset():
    method = remix()
    assert method.needs_reference and method.needs_step_policy
    assert [method.resets_reference(s) for s in (1, 4, 5, 6)] == [False, False, True, False]
    assert [remix(switch_step=1).resets_reference(s) for s in (1, 2, 3)] == [False, True, False]
    assert not any(remix(switch_step=0).resets_reference(s) for s in range(1, 5))


# ------------------------------------------------------------------------------------------------ AReaL


@pytest.mark.parametrize("name", STALE)
@pytest.mark.parametrize("eta", [0, 1, 3])
def test_a_step_trains_on_groups_of_the_policy_eta_steps_before(eta, name):
    batches = run(build(name, AREAL, staleness=eta), 1, 7, stream())
    assert [[g.version for g in b] for b in batches] == [[max(0, t - 1 - eta)] * AREAL for t in range(1, 8)]
    assert {g.origin for g in batches[0]} == {FRESH} and (eta == 0 or {g.origin for g in batches[1]} == {REPLAYED})
    assert ids(g for b in batches for g in b) == [f"p{i:02d}" for i in range(7 * AREAL)]  # in order, once


def test_the_queue_holds_eta_batches():
    method = areal(staleness=3)
    run(method, 1, 5, stream())
    assert len(method.kept) == 3 * AREAL


def test_the_loss_is_the_decoupled_one():
    """pi / pi_k clipped, times min(pi_k / alpha, cap): one token each, log-probabilities chosen for round ratios."""

    def loss(algorithm: str, **options: float) -> float:
        method = build(algorithm, 1, kl_to="none", entropy_coef=0.0, clip_high=0.2, **options)
        assert method.needs_step_policy != method.keeps_step_logprobs
        given = loss_inputs([[0.22], [0.30]], [[0.10], [0.04]], [1.0, 1.0], pi_k=[[0.20], [0.20]])
        return method.loss(given)[0].item()

    # row 1: ratio 1.1, weight min(2, 3) = 2 -> -2.2; row 2: ratio 1.5 clipped to 1.2, weight min(5, 3) = 3 -> -3.6
    for algorithm in ("areal", "bapo_released"):
        assert loss(algorithm, ratio_cap=3.0) == pytest.approx((-2.2 - 3.6) / 2, abs=1e-5)
        assert loss(algorithm, ratio_cap=10.0) == pytest.approx((-2.2 - 6.0) / 2, abs=1e-5)
