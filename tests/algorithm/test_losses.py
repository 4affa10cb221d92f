"""The loss functions against equation 1 and verl's formulas, token by token and by hand."""

import math

import pytest
from support.late import LATE

if LATE:
    import torch

    from bapo.algorithm.losses import (
        LOG_RATIO_LIMIT,
        aggregate,
        clipped_surrogate,
        importance_ratio,
        low_variance_kl,
        sequence_weights,
    )

    VALUES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 99.0, -99.0]])
    MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])


def surrogate(ratio, advantage, low=0.2, high=0.2, dual=0.0, centre=None):
    """Loss, clip flag and d loss / d log-ratio of one token."""
    x = torch.tensor([[math.log(ratio)]], requires_grad=True)
    centre = None if centre is None else torch.tensor([[centre]])
    loss, active = clipped_surrogate(x.exp(), torch.tensor([[float(advantage)]]), low, high, dual, centre)
    loss.sum().backward()
    return loss.item(), active.item(), x.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped", "gradient"),
    [
        # A > 0: -min(rho A, min(rho, 1.2) A); the gradient of -rho A in log rho is -rho A
        (1.1, 1, -1.1, 0, -1.1),
        (1.5, 1, -1.2, 1, 0.0),
        (0.5, 1, -0.5, 0, -0.5),  # below the interval but the minimum is the unclipped term
        (1.0, 2, -2.0, 0, -2.0),
        # A < 0: -min(rho A, max(rho, 0.8) A)
        (1.1, -1, 1.1, 0, 1.1),
        (1.5, -1, 1.5, 0, 1.5),
        (0.5, -1, 0.8, 1, 0.0),
        (0.9, -2, 1.8, 0, 1.8),
        (1.5, 0, 0.0, 0, 0.0),
    ],
)
def test_equation_1(ratio, advantage, loss, clipped, gradient):
    assert surrogate(ratio, advantage) == pytest.approx((loss, clipped, gradient), abs=1e-6)


def test_the_two_sides_of_the_interval_are_separate():
    assert surrogate(1.25, 1, high=0.28)[:2] == pytest.approx((-1.25, 0))  # DAPO's clip-higher lets it through
    assert surrogate(1.5, 1, high=0.28)[:2] == pytest.approx((-1.28, 1))
    assert surrogate(0.75, -1, low=0.3)[:2] == pytest.approx((0.75, 0))
    assert surrogate(0.6, -1, low=0.3)[:2] == pytest.approx((0.7, 1))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (5.0, -2, 6.0, 0.0),  # -rho A = 10, bounded by 3 * 2
        (2.5, -2, 5.0, 5.0),  # below the bound
        (5.0, 2, -2.4, 0.0),  # positive advantages keep the ordinary clip, 1.2 * 2
    ],
)
def test_the_dual_clip_bounds_negative_advantages_alone(ratio, advantage, loss, gradient):
    value, _, slope = surrogate(ratio, advantage, dual=3.0)
    assert (value, slope) == pytest.approx((loss, gradient), abs=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "centre", "loss", "clipped"),
    [
        # centre 2: [1.8, 2.2]
        (2.1, 1, 2.0, -2.1, 0),
        (2.5, 1, 2.0, -2.2, 1),
        (1.5, -1, 2.0, 1.8, 1),
        (1.5, 1, 2.0, -1.5, 0),
        # centre 0.1: [max(0.1 - 0.2, 0), 0.3] = [0, 0.3]
        (0.5, 1, 0.1, -0.3, 1),
        (0.05, -1, 0.1, 0.05, 0),
    ],
)
def test_interval_centred_at_the_step_policy(ratio, advantage, centre, loss, clipped):
    assert surrogate(ratio, advantage, centre=centre)[:2] == pytest.approx((loss, clipped), abs=1e-6)


def test_lower_end_of_a_centred_interval_is_not_negative():
    # a negative "ratio" cannot occur; it only makes the lower end visible: max(0.1 - 0.2, 0) = 0, so -min(0.05, 0) = 0
    ratio, advantage, centre = (torch.tensor([[x]]) for x in (-0.05, -1.0, 0.1))
    loss, active = clipped_surrogate(ratio, advantage, 0.2, 0.2, centre=centre)
    assert loss.item() == 0.0 and active.item() == 1.0


def test_log_ratio_is_clamped():
    now, before = torch.tensor([-1.0, -40.0, -0.5], requires_grad=True), torch.tensor([-40.0, -1.0, -0.25])
    ratio = importance_ratio(now, before)
    assert LOG_RATIO_LIMIT == 20.0
    assert ratio.tolist() == pytest.approx([math.exp(20), math.exp(-20), math.exp(-0.25)], rel=1e-5)
    ratio.sum().backward()
    assert now.grad.tolist() == pytest.approx([0.0, 0.0, math.exp(-0.25)])


def test_weights_of_whole_responses_are_clamped_and_the_cap_itself_is_kept():
    step, before = torch.tensor([[15.0, 10.0], [-15.0, -10.0], [0.0, 0.0]]), torch.zeros(3, 2)
    mask = torch.ones(3, 2)
    whole = sequence_weights(step, before, mask, "truncate", cap=1e12)  # logs 25, -25 and 0
    assert whole.tolist() == pytest.approx([math.exp(20), math.exp(-20), 1.0], rel=1e-5)
    masked = sequence_weights(step, before, mask, "mask", cap=1.0)
    assert masked.tolist() == pytest.approx([0.0, math.exp(-20), 1.0])


def test_low_variance_kl():
    # pi = 1/2, other = 1/4: d = log(1/2); 0.5 + 0.693147 - 1 = 0.193147
    # pi = 1/4, other = 1/2: d = log 2;    2 - 0.693147 - 1 = 0.306853
    pi = torch.tensor([0.5, 0.25, 0.3]).log().requires_grad_()
    kl = low_variance_kl(pi, torch.tensor([0.25, 0.5, 0.3]).log())
    assert kl.tolist() == pytest.approx([0.193147, 0.306853, 0.0], abs=1e-6)
    kl.sum().backward()
    assert pi.grad.tolist() == pytest.approx([0.5, -1.0, 0.0], abs=1e-6)  # 1 - other/pi


def test_low_variance_kl_is_cut_at_10():
    kl = low_variance_kl(torch.tensor([-6.0, -3.0]), torch.tensor([-1.0, -1.0]))
    assert kl.tolist() == pytest.approx([10.0, math.exp(2) - 3])  # e^5 - 6 = 142 is cut; e^2 - 3 = 4.389


def test_means_over_sequences_and_over_tokens():
    assert aggregate(VALUES, MASK, "sequence-mean").item() == 3.0  # (6/3 + 4/1) / 2
    assert aggregate(VALUES, MASK, "token-mean").item() == 2.5  # (6 + 4) / 4
    assert aggregate(VALUES, MASK, "sequence-mean", nominal_sequences=4).item() == 1.5  # (2 + 4) / 4
    assert aggregate(VALUES, MASK, "token-mean", nominal_tokens=8).item() == 1.25  # 10 / 8
    # each kind looks at its own denominator only
    assert aggregate(VALUES, MASK, "token-mean", nominal_sequences=4).item() == 2.5
    assert aggregate(VALUES, MASK, "sequence-mean", nominal_tokens=8).item() == 3.0


def test_an_empty_response_counts_as_zero():
    mask = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    assert aggregate(VALUES, mask, "sequence-mean").item() == 1.0  # (2 + 0) / 2
    assert aggregate(VALUES, torch.zeros(2, 3), "token-mean").item() == 0.0
