"""Runs that end with another run's rollouts, updates or operations, and the variants that ask for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.late import LATE

from bapo.errors import UserError
from bapo.experiments import budgets
from bapo.experiments.budgets import Budget
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import train_identity
from bapo.experiments.places import run_directory
from bapo.store.files import PROBE, STEPS, read_table

if LATE:
    from bapo.engines.torch.trainer import train


ROWS = [
    {"fresh_rollouts": 64, "regenerated_rollouts": 16, "updates": 2, "forward_flops": 10.0, "backward_flops": 5.0},
    {"fresh_rollouts": 64, "regenerated_rollouts": 0, "updates": 1, "forward_flops": 8.0, "backward_flops": 4.0},
]


@pytest.mark.parametrize(("unit", "spent"), [("steps", 2), ("rollouts", 144), ("updates", 3), ("flops", 27)])
def test_what_steps_have_spent(unit, spent):
    assert Budget(unit, 100, 10).spent(ROWS) == spent


def test_a_run_ends_with_the_first_step_that_reaches_the_amount_or_after_the_most_steps():
    budget = Budget("rollouts", 160, 5)
    assert [budget.finished(80 * step, step) for step in (1, 2, 3)] == [False, True, True]
    assert not budget.finished(10, 4) and budget.finished(10, 5)


def test_how_many_steps_a_configuration_asks_for():
    assert budgets.steps(compose_config(["train.steps=7", "train.epochs=null", "train.batch_size=64"]), 10) == 7
    epochs = compose_config(["train.steps=null", "train.epochs=3", "train.batch_size=64"])
    assert budgets.steps(epochs, 130) == 6  # a batch that is not full is no step
    with pytest.raises(UserError, match=r"train\.batch_size=64: .*63 .*train\.epochs=3"):
        budgets.steps(epochs, 63)


def test_probes_are_spread_over_the_budget_and_end_with_the_run():
    steps = Budget("steps", 150, 150)
    assert [s for s in range(1, 151) if steps.probes(s - 1, s, s, 4)] == [50, 100, 150]
    rollouts = Budget("rollouts", 1000, 99)  # 30 a step: 333 and 667 are passed in steps 12 and 23, 1000 in step 34
    assert [s for s in range(1, 35) if rollouts.probes(30 * (s - 1), 30 * s, s, 4)] == [12, 23, 34]
    assert [s for s in range(1, 7) if Budget("steps", 6, 6).probes(s - 1, s, s, 1)] == [6]


@pytest.fixture(scope="module")
def grpo(tiny_world):
    return train(compose_config([*tiny_world, "method=grpo", "seed=7"]))


def test_runs_end_with_what_the_other_run_used(tiny_world, grpo):
    for unit in ("rollouts", "updates", "compute"):
        config = compose_config([*tiny_world, f"method=bapo+{unit}", "seed=7"])
        found = train(config)
        columns = budgets.UNITS[config.train.budget.unit]
        amount = sum(grpo["totals"][c] for c in columns)
        steps = read_table(run_directory(config) / STEPS)
        spent = steps[list(columns)].sum(axis=1).cumsum()
        assert found["steps"] == len(steps)
        assert spent.iloc[-1] >= amount or found["steps"] == 24  # most: 4 times 6 steps
        assert (spent.iloc[:-1] < amount).all()
        probe = read_table(run_directory(config) / PROBE)
        assert {0, found["steps"]} <= set(probe["step"])
        assert found["identity"] == budgets.identity(config) != train_identity(config)
        spending = float(spent.iloc[-1])
        said = {"unit": config.train.budget.unit, "amount": amount, "spent": spending, "reached": spending >= amount}
        assert found["budget"] == said
    assert "budget" not in grpo


def test_a_run_is_not_its_own_budget() -> None:
    """It would be moved aside as a run of another configuration, and then be missing."""
    config = compose_config(["method=grpo", "train.budget.unit=rollouts", "train.budget.like=grpo"])
    with pytest.raises(UserError, match=r"train\.budget\.like=grpo: is the run itself"):
        budgets.identity(config)


def test_what_a_summary_says_of_a_budget():
    # 80 and 64 rollouts
    assert budgets.outcome(Budget("rollouts", 144, 2), ROWS)["reached"]
    missed = {"unit": "rollouts", "amount": 145, "spent": 144.0, "reached": False}
    assert budgets.outcome(Budget("rollouts", 145, 2), ROWS) == missed
    assert budgets.outcome(Budget("flops", 27 * (1 + 1e-15), 9), ROWS)["reached"]  # it ended before its limit of steps
    assert budgets.outcome(Budget("steps", 2, 2), ROWS) is None


def test_without_the_other_run_one_sentence_says_so(tiny_world):
    with pytest.raises(UserError, match=r"train\.budget\.like=grpo: .*seed8 "):
        train(compose_config([*tiny_world, "method=bapo+rollouts", "seed=8"]))


@given(st.integers(1, 500), st.integers(1, 60), st.lists(st.integers(1, 40), min_size=60, max_size=60))
def test_every_budget_has_its_probes_and_ends(amount: int, points: int, costs: list[int]) -> None:
    budget, spent, probes = Budget("updates", amount, 60), 0, 0
    for step, cost in enumerate(costs, 1):
        probes += budget.probes(spent, spent + cost, step, points)
        spent += cost
        if budget.finished(spent, step):
            break
    assert budget.finished(spent, step) and (spent >= amount or step == 60)
    assert 1 <= probes <= max(1, points - 1)  # the one before the first step is not counted here
