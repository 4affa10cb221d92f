"""RL-ZVP: advantages from entropy where all answers of a group are right or all wrong, by hand."""

from __future__ import annotations

import pytest
from support.late import LATE
from support.scripted import build, group, loss_inputs

if LATE:
    import torch


@pytest.mark.parametrize(("correct", "marked", "advantage"), [(2, True, 0.1), (0, True, -0.1), (1, False, 1.0)])
def test_groups_with_equal_rewards_are_marked(correct: int, marked: bool, advantage: float) -> None:
    m, own = build("rl_zvp", 4), group("a", correct, size=2)
    assert m.second_part(own).tolist() == [marked, marked]
    assert m.advantages(own)[0] == pytest.approx(advantage, abs=1e-5)


def test_unsure_tokens_of_right_answers_gain_most_and_of_wrong_ones_lose_least() -> None:
    m = build("rl_zvp", 4)
    entropy = torch.tensor([[0.5, 1.0, 9.0], [0.2, 0.6, 9.0], [0.5, 2.0, 9.0]], requires_grad=True)
    same, mask = [[0.5] * 3] * 3, [[1.0, 1.0, 0.0]] * 3  # the third token is padding
    given = loss_inputs(same, same, [0.1, -0.1, -1.0], mask, [True, True, False], entropy=entropy)
    value, _ = m.loss(given)
    right, wrong, mixed = (0.05, 0.1), (-0.04, 0.0), (-1.0, -1.0)
    assert value.item() == pytest.approx(-sum((*right, *wrong, *mixed)) / 6)
    value.backward()
    expected = [[-a / 6 for a in row] + [0.0] for row in (right, wrong, mixed)]
    torch.testing.assert_close(given.logprobs.grad, torch.tensor(expected))
    assert entropy.grad is None
