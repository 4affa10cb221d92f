"""Trust regions for stale responses, by hand: the clips of M2PO and Xi's BAPO, mu-GRPO's veto; and controls."""

from __future__ import annotations

from math import exp, inf, log

import numpy as np
import pytest
from support.scripted import ScriptedSampler, build, group, loss_inputs

from bapo import methods
from bapo.algorithm.rollouts import Group
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.methods.m2po import largest_cap


class ScoringSampler(ScriptedSampler):
    """The current policy gives each token the log-probability under alpha plus ``moved`` [G, T]."""

    def __init__(self, moved: list[list[float]]) -> None:
        super().__init__()
        self.moved = np.array(moved, dtype=np.float32)

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        return [g.samples.logprobs + self.moved for g in groups]


@pytest.mark.parametrize(
    ("squares", "cap"),
    [
        ([], inf),
        ([0.01, 0.06], inf),  # a mean of 0.035 needs no cap
        # capped at 0.01, 0.04, 0.09 their sum is 0.04, 0.01 + 3 * 0.04 = 0.13, 0.05 + 2 * 0.09 = 0.23; 4 * 0.04 = 0.16
        ([0.36, 0.01, 0.09, 0.04], 0.2),
        ([1.0], 0.0),  # the smallest is too large
        ([0.01] * 18 + [0.25, 1.0], 0.5),  # 0.18 + 2 * 0.25 = 0.68 < 0.8; 0.18 + 0.25 + 1 is more
    ],
)
def test_m2pos_cap_leaves_a_second_moment_below_the_threshold(squares, cap):
    import torch

    assert largest_cap(torch.tensor(squares), 0.04) == pytest.approx(cap)


#: 18 tokens at log r = 0.1, one at 0.5, one at 1: their cap is 0.5, whose clip [0.61, 1.65] is wider than [0.7, 1.5]
LOGS = [0.1] * 18 + [0.5, 1.0]
SMALL, HALF = 18 * exp(0.1), 2 * exp(0.5)


@pytest.mark.parametrize(
    ("logs", "advantages", "mask", "loss", "clipped"),
    [
        ([[log(1.2)]], [1.0], None, -1.2, 0),  # (log r)^2 = 0.033: no clip
        ([[log(3)]], [1.0], None, -1.5, 1),  # 1.2, the cap is 0
        ([[log(0.2)]], [-1.0], None, 0.7, 1),
        ([[log(3)]], [-1.0], None, 3.0, 0),  # what moved against its advantage does not count; there is no dual clip
        ([[log(0.2)]], [1.0], None, -0.2, 0),
        ([[log(1.2), 2.0]], [1.0], [[1.0, 0.0]], -1.2, 0),  # nor does what lies behind the end
        ([LOGS], [1.0], None, -(SMALL + HALF) / 20, 1 / 20),
        ([[-x for x in LOGS]], [-1.0], None, (18 * exp(-0.1) + 2 * exp(-0.5)) / 20, 1 / 20),
        ([LOGS, [-1.0] * 20], [1.0, 0.5], None, -(SMALL + HALF + 10 * exp(-1)) / 40, 1 / 40),  # a second row, unmoved
    ],
)
def test_m2po_clips_by_the_tokens_that_moved_as_their_advantage_wants(logs, advantages, mask, loss, clipped):
    m = build("m2po", 2)
    now = (0.1 * np.exp(np.array(logs, dtype=np.float32))).tolist()
    given = loss_inputs(now, [[0.1] * len(row) for row in logs], advantages, mask)
    value, metrics = m.loss(given)
    assert value.item() == pytest.approx(loss, rel=1e-5)
    assert metrics["clip_fraction"].item() == pytest.approx(clipped) and "kl" not in metrics
    assert not m.needs_step_policy


def test_a_token_behind_m2pos_clip_has_no_gradient():
    given = loss_inputs([[0.1 * exp(x) for x in LOGS]], [[0.1] * 20], [1.0])
    build("m2po", 2).loss(given)[0].backward()
    assert given.logprobs.grad[0].tolist() == pytest.approx([-exp(0.1) / 20] * 18 + [-exp(0.5) / 20, 0.0], abs=1e-6)


def test_m2po_decides_on_the_rows_of_a_micro_batch():
    """LOGS in two parts: the first needs no clip, and the second a tighter one than the whole."""
    m = build("m2po", 2)
    given = [loss_inputs([[0.1 * exp(x) for x in part]], [[0.1] * len(part)], [1.0]) for part in (LOGS[:11], LOGS[11:])]
    losses = [m.loss(each)[0].item() for each in given]
    # of the second, capped at 0.1 the sum is 0.09; at 0.5 it is 0.57, above 9 * 0.04: the cap is 0.1, the clip 1.5
    assert losses == pytest.approx([-exp(0.1), -(7 * exp(0.1) + 2 * 1.5) / 9], rel=1e-5)


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
    assert batch.phase == moves and m.clip(moves) == pytest.approx(clip)
    assert batch.metrics["clip_high"] == pytest.approx(clip[1])
    positive = min(3.0, 1 + clip[1]) + 1
    negative = sum(max(r, 1 - clip[0]) for r in wrong)
    assert batch.metrics["positive_share"] == pytest.approx(positive / (positive + negative), abs=1e-6)


def test_the_other_bapo_without_advantages_moves_nothing():
    m = build("bapo_xi", 1, staleness=0)
    batch = m.build_batch(1, [group("a", 0, size=2)], ScoringSampler([[1.0, 0.0], [0.0, 0.0]]))
    assert batch.phase == 0


def test_the_other_bapo_has_a_bound_that_moves():
    with pytest.raises(UserError, match=r"method\.clip_low_least="):
        build("bapo_xi", 1, clip_low_least=0.4, clip_high_most=0.2)


@pytest.mark.parametrize(("phase", "right", "wrong"), [(0, -1.2, 0.6), (12, -1.5, 0.9), (42, -2.0, 0.9)])
def test_the_clip_of_the_other_bapo_is_the_phases(phase, right, wrong):
    m = build("bapo_xi", 1)
    given = loss_inputs([[0.8], [0.2]], [[0.4], [0.4]], [1.0, -1.0], phase=phase)  # ratios 2 and 0.5
    value, metrics = m.loss(given)
    assert value.item() == pytest.approx((right + wrong) / 2)
    assert metrics["clip_fraction"].item() == (1.0 if phase < 42 else 0.5)
    dual = build("bapo_xi", 1, dual_clip=3.0)  # a wrong response of ratio 5 costs 3 at most
    assert dual.loss(loss_inputs([[0.5]], [[0.1]], [-1.0], phase=phase))[0].item() == pytest.approx(3.0)


def test_mu_grpo_generates_with_one_policy_a_stage():
    m = build("mu_grpo", 4, v=3)
    assert m.delays_rollout_policy and [t for t in range(1, 9) if m.syncs_rollout_policy(t)] == [1, 4, 7]


def test_the_veto_drops_what_follows_a_token_that_became_improbable_in_negative_responses():
    m = build("mu_grpo", 4, entropy_coef=0.0)
    ratios = [0.4, 0.00002, 0.8]  # over 0.4: 1, 0.00005 and 2
    given = loss_inputs([ratios, ratios], [[0.4] * 3] * 2, [-1.0, 0.5])
    value, metrics = m.loss(given)
    negative, positive = (1.0 + 0.00005 + 0.0) / 3, -0.5 * (1.0 + 0.00005 + 2.0) / 3
    assert value.item() == pytest.approx((negative + positive) / 2)
    assert metrics["clip_fraction"].item() == pytest.approx(1 / 6)
    value.backward()
    assert given.logprobs.grad[0].tolist() == pytest.approx([1 / 6, 0.00005 / 6, 0.0])
    assert (given.logprobs.grad[1] < 0).all()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [(6.0, 1.0, -5.0), (6.0, -1.0, 6.0), (0.01, 1.0, -0.01), (0.01, -1.0, 0.01)],  # [0, 5]
)
def test_the_clip_of_mu_grpo_is_wide(ratio, advantage, loss):
    m = build("mu_grpo", 4, entropy_coef=0.0)
    assert m.loss(loss_inputs([[0.1 * ratio]], [[0.1]], [advantage]))[0].item() == pytest.approx(loss)


def test_a_token_at_the_veto_triggers_nothing():
    m = build("mu_grpo", 4, entropy_coef=0.0, veto=0.5, clip_low=0.25)
    given = loss_inputs([[0.25, 0.5]], [[0.5, 0.5]], [-1.0])
    assert m.loss(given)[0].item() == pytest.approx((0.75 + 1.0) / 2)


@pytest.mark.parametrize(
    ("control", "method", "same"),
    [
        ("grpo_stale", "m2po", ("staleness",)),
        ("grpo_stale", "bapo_xi", ("staleness",)),
        ("grpo_v40", "mu_grpo", ("v", "sync_phase")),
    ],
)
def test_a_control_has_the_responses_of_its_method_and_the_loss_of_grpo(control, method, same):
    stale, other, grpo = (compose_config([f"method={name}"]).method for name in (control, method, "grpo"))
    assert [getattr(stale, key) for key in same] == [getattr(other, key) for key in same]
    own = ("algorithm", "name", "title", "kind")
    assert {k: getattr(stale, k) for k in grpo.model_dump() if k not in own} == {
        k: v for k, v in grpo.model_dump().items() if k not in own
    }
    given = loss_inputs([[0.2], [0.3]], [[0.1], [0.4]], [1.0, -1.0], reference=[[0.2], [0.2]])
    values = [methods.build(config, 2, 1).loss(given)[0].item() for config in (stale, grpo)]
    assert values[0] == values[1]
