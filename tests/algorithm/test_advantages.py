"""Group-relative advantages against equation 2 and verl's formula, worked out by hand."""

import numpy as np
import pytest

from bapo.algorithm.advantages import group_relative

ONE_OF_EIGHT = [1, 0, 0, 0, 0, 0, 0, 0]


def test_equation_2_population_with_eps_under_the_root():
    # mean 1/8; variance 1/8 * 7/8 = 0.109375; sqrt(0.109375 + 0.000001) = 0.3307204
    # 0.875 / 0.3307204 = 2.645739;  -0.125 / 0.3307204 = -0.377963
    a = group_relative(np.array(ONE_OF_EIGHT))
    assert a.dtype == np.float32
    assert a == pytest.approx([2.645739] + 7 * [-0.377963], abs=2e-6)


@pytest.mark.parametrize(
    ("std", "inside", "first"),
    [
        ("population", True, 2.532511),  # 0.875 / sqrt(0.109375 + 0.01) = 0.875 / 0.3455069
        ("population", False, 2.568101),  # 0.875 / (0.3307189 + 0.01)
        ("unbiased", True, 2.381448),  # 0.875 / sqrt(0.125 + 0.01) = 0.875 / 0.3674235
        ("unbiased", False, 2.406799),  # 0.875 / (0.3535534 + 0.01)
    ],
)
def test_the_four_formulas_differ_for_a_visible_eps(std, inside, first):
    assert group_relative(np.array(ONE_OF_EIGHT), std, 0.01, inside)[0] == pytest.approx(first, abs=2e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, np.float32(0.1)])
@pytest.mark.parametrize("std", ["population", "unbiased"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_equal_rewards_give_exact_zeros(value, std, size):
    assert (group_relative(np.full(size, value, dtype=np.float32), std, 0.0, False) == 0).all()
