"""Equation 8, both directions, and the average reward in it."""

import pytest

from bapo.algorithm.batch import linear_threshold, next_average_reward

C2, C3 = (0.125, 0.5), (0.25, 0.625)  # Table 3


@pytest.mark.parametrize(
    ("r_tot", "c2", "c3"),
    [
        (0.0, 0.125, 0.25),
        (0.4, 0.275, 0.4),  # 0.125 + 0.4 * 0.375; 0.25 + 0.4 * 0.375
        (0.5, 0.3125, 0.4375),
        (1.0, 0.5, 0.625),
    ],
)
def test_rising_as_printed(r_tot, c2, c3):
    assert linear_threshold(r_tot, *C2) == pytest.approx(c2)
    assert linear_threshold(r_tot, *C3, "rising") == pytest.approx(c3)
    # Table 3's two ranges have the same width, so the window is always one bin of G = 8 wide
    assert linear_threshold(r_tot, *C3) - linear_threshold(r_tot, *C2) == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    ("r_tot", "c2", "c3"),
    [
        (0.0, 0.5, 0.625),
        (0.4, 0.35, 0.475),  # 0.125 + 0.6 * 0.375; 0.25 + 0.6 * 0.375
        (1.0, 0.125, 0.25),
    ],
)
def test_falling_from_easier_to_harder(r_tot, c2, c3):
    assert linear_threshold(r_tot, *C2, "falling") == pytest.approx(c2)
    assert linear_threshold(r_tot, *C3, "falling") == pytest.approx(c3)


def test_equal_ends_give_a_fixed_threshold():
    assert linear_threshold(0.7, 0.375, 0.375) == pytest.approx(0.375)
    assert linear_threshold(0.7, 0.375, 0.375, "falling") == pytest.approx(0.375)


def test_average_of_the_batch_forgets():
    assert next_average_reward(None, 0.5, "batch", 0.9) == 0.5
    assert next_average_reward(0.5, 0.1, "batch", 0.9) == 0.1


def test_moving_average_starts_at_the_first_batch():
    first = next_average_reward(None, 0.5, "moving-average", 0.9)
    assert first == 0.5
    second = next_average_reward(first, 0.1, "moving-average", 0.9)
    assert second == pytest.approx(0.46)  # 0.9 * 0.5 + 0.1 * 0.1
    assert next_average_reward(second, 1.0, "moving-average", 0.75) == pytest.approx(0.595)  # 0.345 + 0.25
