"""Trust regions for stale responses, by hand: M2PO's mask, the clip of Xi's BAPO, mu-GRPO's veto."""

from __future__ import annotations

import numpy as np
import pytest
from support.scripted import ScriptedSampler, build, group, loss_inputs

from bapo.algorithm.rollouts import Group
from bapo.methods.trust_regions import smallest


class ScoringSampler(ScriptedSampler):
    """The current policy gives each token the log-probability under alpha plus ``moved`` [G, T]."""

    def __init__(self, moved: list[list[float]]) -> None:
        super().__init__()
        self.moved = np.array(moved, dtype=np.float32)

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        return [g.samples.logprobs + self.moved for g in groups]


@pytest.mark.parametrize(
    ("values", "mean", "kept"),
    [
        ([0.0, 0.01, 0.04], 0.04, [1, 1, 1]),
        ([0.25, 0.01, 0.0, 0.04], 0.04, [0, 1, 1, 1]),  # the mean of all is 0.075, of the three smallest 0.0167
        ([0.5, 0.05, 0.03], 0.04, [0, 1, 1]),  # exactly at the bound
        ([0.5, 0.25], 0.04, [0, 0]),
    ],
)
def test_m2po_keeps_the_most_tokens_whose_second_moment_is_small(values, mean, kept):
    assert smallest(np.array(values), mean).tolist() == [bool(k) for k in kept]


def test_m2po_masks_across_the_whole_batch_and_behind_no_end():
    m = build("m2po", 2, staleness=0, threshold=0.04)
    groups = [group("a", 1, size=2), group("b", 1, size=2)]
    groups[0].samples.lengths[1] = 1  # its second token is padding
    # log r of the 7 tokens: 0.5 twice and 0.1 five times, whose mean square is 0.01; one 0.5 makes it (0.05 + 0.25) / 6
    batch = m.build_batch(1, groups, ScoringSampler([[0.1, 0.5], [0.1, 0.1]]))
    assert batch.metrics["masked_tokens"] == pytest.approx(2 / 7)
    assert batch.metrics["second_moment"] == pytest.approx((2 * 0.25 + 5 * 0.01) / 7, abs=1e-6)
    own = m.advantages(batch.groups[0])
    assert own[0, 0] > 0 and own[1, 0] == pytest.approx(-own[0, 0])
    assert own[0, 1] == own[1, 1] == 0
    assert (m.advantages(batch.groups[1])[1] < 0).all()


def test_m2po_has_no_clip_and_divides_by_all_tokens():
    m = build("m2po", 2)
    given = loss_inputs([[0.75, 0.1]], [[0.25, 0.1]], [[1.0, 0.0]])
    value, metrics = m.loss(given)
    assert value.item() == pytest.approx(-(3.0 + 0.0) / 2)
    value.backward()
    assert given.logprobs.grad.tolist() == [[pytest.approx(-1.5), 0.0]]
    assert metrics["clip_fraction"] == 0 and "kl" not in metrics


# ---------------------------------------------------------------- the other BAPO


@pytest.mark.parametrize(
    ("wrong", "moves", "clip"),
    [
        # the right response: min(3, 1.2) + 1 = 2.2; the wrong one: max(0.5, 0.6) + 1.5 = 2.1, less
        ([0.5, 1.5], 0, (0.4, 0.2)),
        # 1 + 1.48 = 2.48: c_low rises six times without an effect on these tokens, then c_high to 1.5
        ([1.0, 1.48], 12, (0.1, 0.5)),
        # 1 + 9: even c_high = 3 gives 4 only
        ([1.0, 9.0], 42, (0.1, 2.0)),
    ],
)
def test_the_other_bapo_moves_its_clip_until_positive_advantages_are_half(wrong, moves, clip):
    m = build("bapo_xi", 1, staleness=0)
    batch = m.build_batch(1, [group("a", 1, size=2)], ScoringSampler(np.log([[3.0, 1.0], wrong])))
    assert m.phase == moves and m.clip(moves) == pytest.approx(clip)
    assert batch.metrics["clip_high"] == pytest.approx(clip[1])
    positive = min(3.0, 1 + clip[1]) + 1
    negative = sum(max(r, 1 - clip[0]) for r in wrong)
    assert batch.metrics["positive_share"] == pytest.approx(positive / (positive + negative), abs=1e-6)


def test_the_other_bapo_without_advantages_moves_nothing():
    m = build("bapo_xi", 1, staleness=0)
    m.build_batch(1, [group("a", 0, size=2)], ScoringSampler([[1.0, 0.0], [0.0, 0.0]]))
    assert m.phase == 0


@pytest.mark.parametrize(("phase", "right", "wrong"), [(0, -1.2, 0.6), (12, -1.5, 0.9), (42, -2.0, 0.9)])
def test_the_clip_of_the_other_bapo_is_the_phases(phase, right, wrong):
    m = build("bapo_xi", 1)
    given = loss_inputs([[0.8], [0.2]], [[0.4], [0.4]], [1.0, -1.0], phase=phase)  # ratios 2 and 0.5
    value, metrics = m.loss(given)
    assert value.item() == pytest.approx((right + wrong) / 2)
    assert metrics["clip_fraction"].item() == (1.0 if phase < 42 else 0.5)
    dual = build("bapo_xi", 1, dual_clip=3.0)  # a wrong response of ratio 5 costs 3 at most
    assert dual.loss(loss_inputs([[0.5]], [[0.1]], [-1.0], phase=phase))[0].item() == pytest.approx(3.0)


# ---------------------------------------------------------------- mu-GRPO


def test_mu_grpo_generates_with_one_policy_a_stage():
    m = build("mu_grpo", 4, v=3)
    assert m.delays_rollout_policy and [t for t in range(1, 9) if m.syncs_rollout_policy(t)] == [1, 4, 7]


def test_the_veto_drops_what_follows_a_token_that_became_improbable_in_negative_responses():
    m = build("mu_grpo", 4, entropy_coef=0.0)
    ratios = [0.4, 0.02, 0.8]  # over 0.4: 1, 0.05 and 2
    given = loss_inputs([ratios, ratios], [[0.4] * 3] * 2, [-1.0, 0.5])
    value, metrics = m.loss(given)
    negative, positive = (1.0 + 0.1 + 0.0) / 3, -0.5 * (1.0 + 0.05 + 2.0) / 3  # 0.05 is clipped at 0.1
    assert value.item() == pytest.approx((negative + positive) / 2)
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 6)
    value.backward()
    assert given.logprobs.grad[0].tolist() == [pytest.approx(1 / 6), 0.0, 0.0]
    assert (given.logprobs.grad[1] < 0).all()


def test_a_token_at_the_veto_triggers_nothing():
    m = build("mu_grpo", 4, entropy_coef=0.0, veto=0.5, clip_low=0.25)
    given = loss_inputs([[0.25, 0.5]], [[0.5, 0.5]], [-1.0])
    assert m.loss(given)[0].item() == pytest.approx((0.75 + 1.0) / 2)
