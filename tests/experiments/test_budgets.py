"""Runs that end with another run's rollouts, updates or operations, and the variants that ask for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.late import LATE

from bapo.errors import UserError
from bapo.experiments import budgets
from bapo.experiments.budgets import Budget
from bapo.experiments.compose import compose_config, run_config
from bapo.experiments.identity import base_identity, train_identity
from bapo.experiments.places import options, run_directory
from bapo.experiments.settings import read_settings
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
    with pytest.raises(UserError, match=r"train\.batch_size=64: larger than the 63 problems of train\.epochs=3"):
        budgets.steps(epochs, 63)


def test_probes_are_spread_over_the_budget_and_end_with_the_run():
    steps = Budget("steps", 150, 150)
    assert [s for s in range(1, 151) if steps.probes(s - 1, s, s, 4)] == [50, 100, 150]
    rollouts = Budget("rollouts", 1000, 99)  # 30 a step: 333 and 667 are passed in steps 12 and 23, 1000 in step 34
    assert [s for s in range(1, 35) if rollouts.probes(30 * (s - 1), 30 * s, s, 4)] == [12, 23, 34]
    assert [s for s in range(1, 7) if Budget("steps", 6, 6).probes(s - 1, s, s, 1)] == [6]


def test_a_variant_is_laid_over_the_method_and_names_its_folder():
    config = compose_config(["method=bapo+rollouts", "model=qwen2-112k+hard", "seed=3"])
    assert (config.method.name, config.model.name) == ("bapo+rollouts", "qwen2-112k+hard")
    assert config.method.title.endswith(", equal rollouts") and config.model.title.endswith(", hard")
    assert (config.train.budget.unit, config.train.budget.like) == ("rollouts", "grpo")
    assert str(run_directory(config)).endswith("countdown/qwen2-112k+hard/bapo+rollouts/seed3")
    assert str(budgets.like_directory(config)).endswith("countdown/qwen2-112k+hard/grpo/seed3")
    plain = compose_config(["method=bapo", "model=qwen2-112k", "seed=3"])
    assert config.base.iterations < plain.base.iterations and base_identity(config) != base_identity(plain)


def test_every_variant_changes_the_meaning_of_a_run_and_has_a_title():
    own = {"grpo_v5": ["one_centre", "kl_rollout"], "repo": ["replay_variance"], "remix": ["share_20"]}
    hosts = {name: method for method, names in own.items() for name in names}
    for name in options("variant"):
        method = hosts.get(name, "bapo")
        plain, varied = compose_config([f"method={method}"]), compose_config([f"method={method}+{name}"])
        assert varied.variant[name], name
        assert train_identity(plain) != train_identity(varied), name
        # nothing but the variant's own keys: the same keys, and the same problems
        assert varied.data == plain.data, name


def test_several_variants_are_laid_one_over_the_other():
    config = compose_config(["method=bapo+rollouts+sync_first"])
    assert config.train.budget.unit == "rollouts" and config.method.sync_phase == "first"
    assert config.method.name == "bapo+rollouts+sync_first"


def test_two_variants_of_a_choice_must_not_set_the_same_key():
    with pytest.raises(UserError, match=r"'rollouts' and 'updates' both set train\.budget\.like; keep one of them"):
        compose_config(["method=bapo+rollouts+updates"])
    with pytest.raises(UserError, match=r"model=qwen2-112k\+hard\+very_hard: the variants 'hard' and 'very_hard' both"):
        compose_config(["model=qwen2-112k+hard+very_hard"])


def test_an_unknown_variant_is_named_with_those_there_are(tmp_path):
    with pytest.raises(UserError, match=r"method=bapo\+rolouts: unknown variant 'rolouts' \(did you mean 'rollouts'"):
        compose_config(["method=bapo+rolouts"])
    with pytest.raises(UserError, match="unknown variant 'x'"):
        read_settings({"methods": ["bapo+x"]})
    assert read_settings({"methods": ["bapo+rollouts"]}).methods == ("bapo+rollouts",)


def test_a_variant_of_a_method_must_not_change_the_base_model():
    with pytest.raises(UserError, match=r"method=bapo\+hard: its variant changes the problems or the base model"):
        run_config("laptop", "countdown", "qwen2-112k", "bapo+hard", 1)
    run_config("laptop", "countdown", "qwen2-112k+hard", "bapo", 1)


def test_a_budget_needs_both_its_unit_and_the_run_that_sets_it():
    for override in ("train.budget.unit=rollouts", "train.budget.like=grpo"):
        with pytest.raises(UserError, match=r"train\.budget\.like"):
            compose_config([override])
    with pytest.raises(UserError, match=r"train\.budget\.unit=hours: must be"):
        compose_config(["train.budget.unit=hours", "train.budget.like=grpo"])


def test_the_budget_is_part_of_the_identity_only_where_there_is_one():
    plain = compose_config([])
    assert train_identity(plain) == train_identity(compose_config(["train.budget.most=3"]))
    one, other = (compose_config([f"method=bapo+{v}"]) for v in ("rollouts", "updates"))
    assert train_identity(one) != train_identity(other)


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
        assert found["budget"] == {
            "unit": config.train.budget.unit,
            "amount": amount,
            "spent": spending,
            "reached": spending >= amount,
        }
    assert "budget" not in grpo


def test_a_run_that_ends_at_its_limit_says_that_its_budget_is_not_reached(tiny_world, grpo):
    found = train(
        compose_config(
            [
                *tiny_world,
                "method=bapo+rollouts",
                "seed=7",
                "train.steps=1",
                "train.budget.most=2",
                "method.name=bapo_short",
            ]
        )
    )
    amount = grpo["totals"]["rollouts"]
    assert found["steps"] == 2 and found["totals"]["rollouts"] < amount
    assert found["budget"] == {
        "unit": "rollouts",
        "amount": amount,
        "spent": found["totals"]["rollouts"],
        "reached": False,
    }


def test_what_a_summary_says_of_a_budget():
    # 80 and 64 rollouts
    assert budgets.outcome(Budget("rollouts", 144, 2), ROWS)["reached"]
    assert budgets.outcome(Budget("rollouts", 145, 2), ROWS) == {
        "unit": "rollouts",
        "amount": 145,
        "spent": 144.0,
        "reached": False,
    }
    assert budgets.outcome(Budget("flops", 27 * (1 + 1e-15), 9), ROWS)["reached"]  # it ended before its limit of steps
    assert budgets.outcome(Budget("steps", 2, 2), ROWS) is None


def test_without_the_other_run_one_sentence_says_so(tiny_world):
    with pytest.raises(UserError, match=r"train\.budget\.like=grpo: .*seed8 holds no finished run"):
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
