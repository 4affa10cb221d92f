"""The constants and bounds of Theorem 3.2 against hand arithmetic, and the theorem itself on enumerable policies."""

import math

import numpy as np
import pytest

from bapo.algorithm import theory


def test_constants_at_table_3():
    # sigma^2 = 7/64 = 1/8 * 7/8 = 0.109375; sigma = 0.330719; (1 - 0.330719) / 0.330719 = 2.023716
    assert theory.k1(8) == pytest.approx(2.023716, abs=1e-6)
    assert theory.k2(1 / 8) == pytest.approx(2.023716, abs=1e-6)
    # c2 = 0.275, c3 = 0.4 (r_tot = 0.4): min(0.199375, 0.24); sigma = 0.446514; K = 1.239572
    assert theory.k3(0.275, 0.4) == pytest.approx(1.239572, abs=1e-5)
    # the worse end on either side: 0.9 * 0.1 = 0.09, sigma 0.3: 0.7 / 0.3 = 2.3333
    assert [theory.k3(0.5, 0.9), theory.k3(0.1, 0.5)] == pytest.approx([7 / 3, 7 / 3])


def test_infinite_constants():
    assert theory.stability(0.0) == theory.stability(1.0) == math.inf
    assert theory.k2(0.0) == math.inf
    assert theory.k3(0.0, 0.25) == math.inf  # Table 2's fixed range (0, 0.25)


def test_printed_k2_is_not_the_worst_case():
    # c1 = 1/8, G = 8: 7/8 is admitted, and 7/8 * 1/8 = c1 (1 - c1): the printed ">" of eq. 30 is an equality there
    assert theory.k2_worst(1 / 8, 8) == pytest.approx(theory.k2(1 / 8))
    # c1 = 1/4: printed 1/4 * 3/4 = 0.1875, K = 1.309401; but mu = 7/8 is admitted, K = 2.023716
    assert theory.k2(1 / 4) == pytest.approx(1.309401, abs=1e-6)
    assert theory.k2_worst(1 / 4, 8) == pytest.approx(2.023716, abs=1e-6)
    # G = 16: 15/16 * 1/16 = 0.0585938, sigma 0.242061, K = 3.131182
    assert theory.k2_worst(1 / 8, 16) == pytest.approx(3.131182, abs=1e-5)
    # G = 8, c1 = 0: admitted 1/8 .. 7/8, symmetric; the printed K2 is inf
    assert theory.k2_worst(0.0, 8) == pytest.approx(2.023716, abs=1e-6)
    assert theory.k2_worst(0.5, 4) == pytest.approx(theory.stability(0.75))  # only 3/4

    for c1 in (7 / 8, 0.9):  # nothing is admitted
        with pytest.raises(ValueError, match="c1"):
            theory.k2_worst(c1, 8)


def test_lower_bound_of_one_subset():
    assert theory.lower_bound(0.5, 2.0, 0.05) == pytest.approx(0.3)  # 0.5 - 2 * 2 * 0.05
    assert theory.lower_bound(0.5, 2.0, 0.05, factor=1) == pytest.approx(0.4)
    assert theory.lower_bound(0.5, math.inf, 0.1) == -math.inf
    assert theory.lower_bound(0.5, math.inf, 0.0) == 0.5


def test_theorem_3_2_holds_exactly_on_small_policies():
    """J(pi) - J(pi_t) >= L - 2 K TV(pi, alpha) - 2 TV(pi_t, alpha) with true expectations, K from alpha's own sigma."""
    rng = np.random.default_rng(1)
    reward = np.array([0.0, 0.0, 1.0, 1.0])
    slack, slack_with_one = [], []
    for _ in range(500):
        alpha, pi, pi_t = rng.dirichlet(np.full(4, 0.7), 3) * 0.98 + 0.005
        mu = alpha @ reward
        sigma = math.sqrt(mu * (1 - mu))
        gain = (pi / alpha * (reward - mu) / sigma) @ alpha
        assert gain == pytest.approx((pi @ reward - mu) / sigma)  # eq. 24
        tv, tv_t, k = 0.5 * abs(pi - alpha).sum(), 0.5 * abs(pi_t - alpha).sum(), theory.stability(mu)
        improvement = pi @ reward - pi_t @ reward
        slack.append(improvement - (theory.lower_bound(gain, k, tv) - 2 * tv_t))
        # rewards in [0, 1] would allow a factor 1 instead of 2
        slack_with_one.append(improvement - (theory.lower_bound(gain, k, tv / 2) - tv_t))
    assert min(slack) >= -1e-9
    assert -1e-9 <= min(slack_with_one) < 0.1


def test_the_ceiling_by_hand():
    assert theory.ceiling(2.0, 0.1) == pytest.approx(-0.1)  # (1 - K) TV
    assert theory.ceiling(math.inf, 0.1, factor=1) == pytest.approx(0.1)
    assert theory.ceiling(math.inf, 0.0) == 0.0  # no policy has moved
