"""AReaL's schedule, the queue of a resumed run, and the decoupled loss."""

from __future__ import annotations

from functools import partial

import pytest
from support.scripted import NoSampler, ScriptedSampler, build, group, ids, loss_inputs

from bapo.algorithm.rollouts import FRESH, REPLAYED

B = 2


areal = partial(build, "areal", B)


def steps(method, first, last, sampler):
    """(versions, origins) of the batches of the steps first..last; each policy's version is its step - 1."""
    found = []
    for step in range(first, last + 1):
        fresh = [group(p.id, 4, step) for p in method.draw_prompts(step, sampler)]
        batch = method.build_batch(step, fresh, NoSampler())
        found.append(([g.version for g in batch.groups], {g.origin for g in batch.groups}, ids(batch.groups)))
    return found


def stream():
    return ScriptedSampler(stream=[f"p{i:02d}" for i in range(40)])


@pytest.mark.parametrize("eta", [0, 1, 3])
def test_a_step_trains_on_groups_of_the_policy_eta_steps_before(eta):
    found = steps(areal(staleness=eta), 1, 7, stream())
    assert [versions for versions, _, _ in found] == [[max(0, t - 1 - eta)] * B for t in range(1, 8)]
    assert found[0][1] == {FRESH} and (eta == 0 or found[1][1] == {REPLAYED})
    assert [name for _, _, names in found for name in names] == [f"p{i:02d}" for i in range(7 * B)]  # in order, once


def test_the_queue_holds_eta_batches():
    method = areal(staleness=3)
    steps(method, 1, 5, stream())
    assert len(method.kept) == 3 * B


def test_the_loss_is_the_decoupled_one():
    """pi / pi_k clipped, times min(pi_k / alpha, cap): one token each, log-probabilities chosen for round ratios."""

    def loss(algorithm: str, **options: float) -> float:
        method = build(algorithm, 1, kl_to="none", entropy_coef=0.0, **options)
        assert method.needs_step_policy
        given = loss_inputs([[0.22], [0.30]], [[0.10], [0.04]], [1.0, 1.0], pi_k=[[0.20], [0.20]])
        return method.loss(given)[0].item()

    # row 1: ratio 1.1, weight min(2, 3) = 2 -> -2.2; row 2: ratio 1.5 clipped to 1.2, weight min(5, 3) = 3 -> -3.6
    for algorithm in ("areal", "bapo_released"):
        assert loss(algorithm, ratio_cap=3.0) == pytest.approx((-2.2 - 3.6) / 2, abs=1e-5)
        assert loss(algorithm, ratio_cap=10.0) == pytest.approx((-2.2 - 6.0) / 2, abs=1e-5)
