"""Every option of every method has a test that names it: adding one without a test fails here."""

from __future__ import annotations

import ast
import dataclasses
from functools import lru_cache

import pytest
from support.paths import ROOT

from bapo import methods
from bapo.methods import MethodConfig

COMMON = {
    "algorithm": "test_methods_options.py::test_every_method_builds_from_its_algorithm_alone",
    "name": "experiments/test_config.py::test_labels_do_not_change_the_identity",
    "title": "experiments/test_config.py::test_labels_do_not_change_the_identity",
    "kind": "experiments/test_config.py::test_labels_do_not_change_the_identity",
    "clip_low": "test_methods_grpo.py::test_clip_low_clip_high_and_aggregation",
    "clip_high": "test_methods_grpo.py::test_clip_low_clip_high_and_aggregation",
    "dual_clip": "test_methods_grpo.py::test_dual_clip",
    "clip_centre": "test_methods_grpo.py::test_delayed_grpo_with_the_plain_interval",
    "ratio": "test_methods_grpo.py::test_truncated_ratio_of_the_authors_code",
    "ratio_cap": "test_methods_grpo.py::test_truncated_ratio_of_the_authors_code",
    "kl_coef": "test_methods_grpo.py::test_kl_coef_and_kl_to",
    "kl_to": "test_methods_grpo.py::test_kl_coef_and_kl_to",
    "entropy_coef": "test_methods_grpo.py::test_entropy_coef",
    "aggregation": "test_methods_grpo.py::test_clip_low_clip_high_and_aggregation",
    "advantage_std": "test_methods_grpo.py::test_advantage_options",
    "advantage_eps": "test_methods_grpo.py::test_advantage_options",
    "advantage_eps_inside": "test_methods_grpo.py::test_advantage_options",
}
BAPO = {
    "v": "test_methods_bapo.py::test_steps_that_refresh_the_rollout_policy",
    "m": "test_methods_bapo.py::test_m_re_evaluates_only_when_t_mod_m_is_0",
    "sync_phase": "test_methods_bapo.py::test_steps_that_refresh_the_rollout_policy",
    "c1": "test_methods_bapo.py::test_c1",
    "c2_range": "test_methods_bapo.py::test_fixed_thresholds_of_table_2",
    "c3_range": "test_methods_bapo.py::test_fixed_thresholds_of_table_2",
    "threshold_direction": "test_methods_bapo.py::test_threshold_direction",
    "average_reward": "test_methods_bapo.py::test_average_reward_of_the_batch_or_moving",
    "average_decay": "test_methods_bapo.py::test_average_reward_of_the_batch_or_moving",
    "bad_capacity": "test_methods_bapo.py::test_bad_capacity",
    "max_reevaluated": "test_methods_bapo.py::test_max_reevaluated_is_half_the_batch_by_default",
    "reevaluation_order": "test_methods_bapo.py::test_reevaluation_order",
    "insert_before_reevaluation": "test_methods_bapo.py::test_insert_before_reevaluation",
    "x2_admission": "test_methods_bapo.py::test_x2_admission",
    "online_filter": "test_methods_bapo.py::test_online_filters",
    "filter_mean": "test_methods_bapo.py::test_online_filters",
    "filter_std": "test_methods_bapo.py::test_online_filters",
    "filter_share": "test_methods_bapo.py::test_online_filters",
    "keep_promoted": "test_methods_bapo.py::test_keep_promoted",
    "prompt_identity": "test_methods_bapo.py::test_prompt_identity_a_draw",
    "x2_weight": "test_methods_bapo.py::test_x2_weight",
    "high_eviction": "test_methods_bapo.py::test_high_eviction_on_overflow_only",
    "x3_choice": "test_methods_bapo.py::test_x3_choice_by_re_evaluation_returns_the_old_responses",
    "high_steps": "test_methods_bapo.py::test_high_steps_is_the_age_limit",
    "high_capacity": "test_methods_bapo.py::test_high_capacity",
    "high_admission": "test_methods_bapo.py::test_high_admission",
    "remove_replayed": "test_methods_bapo.py::test_remove_replayed",
    "store_promoted": "test_methods_bapo_readings.py::test_store_promoted",
    "x3_filter": "test_methods_bapo_readings.py::test_x3_filter_by_eq_7_takes_what_the_thresholds_have_left_behind",
    "failed_prompt": "test_methods_bapo_readings.py::test_failed_prompt_has_its_turn_or_keeps_its_place",
    "x2_policy": "test_methods_bapo_readings.py::test_x2_policy_is_handed_to_the_sampler",
    "expectations": "test_methods_bapo_readings.py::test_expectations_separate_is_the_sum_of_eq_3",
    "average_span": "test_methods_bapo_code.py::test_average_span_stretches_r_tot",
    "quota_share": "test_methods_bapo_code.py::test_quota_filter_by_hand",
    "quota_std": "test_methods_bapo_code.py::test_quota_filter_by_hand",
    "x2_within_room": "test_methods_bapo_code.py::test_x2_within_room",
    "x3_from_this_step": "test_methods_bapo_code.py::test_x3_from_this_step_takes_what_x1_left",
    "advantage_reference": "test_methods_bapo_code.py::test_advantage_reference_is_the_latest_mean",
}
PPO = {
    "gamma": "test_methods_ppo.py::test_gamma_and_gae_lambda",
    "gae_lambda": "test_methods_ppo.py::test_gamma_and_gae_lambda",
    "whiten_advantages": "test_methods_ppo.py::test_whiten_advantages",
    "value_clip": "test_methods_ppo.py::test_the_value_loss_is_averaged_as_the_policys",
    "critic_rate_ratio": "engines/torch/test_critic.py::test_warm_up_and_rate_are_relative_to_the_policys",
    "critic_warmup": "test_methods_ppo.py::test_critic_warmup_delays_the_policy",
}
DOTS_RR = {
    "fresh_share": "test_methods_replay.py::test_fresh_share",
    "capacity": "test_methods_replay.py::test_the_buffer_is_bounded_and_drops_the_oldest",
    "first_steps": "test_methods_replay.py::test_it_generates_sigma_of_the_batch_after_the_first_steps",
}
OWN = {
    "grpo": {},
    "dapo": {
        "max_generation_batches": "test_methods_dapo.py::test_at_the_limit_it_trains_on_what_there_is",
        "at_limit": "test_methods_dapo.py::test_at_limit_raise_says_what_to_change",
    },
    "grpo_delayed": {
        "v": "test_methods_bapo.py::test_steps_that_refresh_the_rollout_policy",
        "sync_phase": "test_methods_bapo.py::test_steps_that_refresh_the_rollout_policy",
    },
    "repo": {
        "strategy": "test_methods_repo.py::test_options_of_retrieval",
        "capacity": "test_methods_repo.py::test_options_of_retrieval",
        "min_cached": "test_methods_repo.py::test_options_of_retrieval",
        "replays": "test_methods_repo.py::test_options_of_retrieval",
        "off_policy_weight": "test_methods_repo.py::test_loss_is_on_plus_weight_times_off",
    },
    "bapo": BAPO,
    "bapo_without_x2": BAPO,
    "bapo_without_x3": BAPO,
    "bapo_x1": BAPO,
    "bapo_duplicates": BAPO,
    "bapo_shuffled": BAPO,
    "grpo_random_reward": {"chance": "test_methods_controls.py::test_the_chance_of_a_random_reward"},
    "gspo": {},
    "mopps": {
        "candidates": "test_methods_mopps.py::test_it_takes_the_prompts_nearest_to_one_half_of_rho_times_b",
        "memory": "test_methods_mopps.py::test_memory_one_forgets_nothing",
        "prior_successes": "test_methods_mopps.py::test_memory_one_forgets_nothing",
        "prior_failures": "test_methods_mopps.py::test_the_thompson_samples_are_those_of_the_posterior",
        "target": "test_methods_mopps.py::test_another_target_finds_other_prompts",
    },
    "arpo": {
        "capacity": "test_methods_replay.py::test_this_steps_responses_come_too_late_and_the_oldest_are_forgotten",
        "positive": "test_methods_replay.py::test_what_is_failed_and_what_is_kept",
        "max_std": "test_methods_replay.py::test_what_is_failed_and_what_is_kept",
        "max_mean": "test_methods_replay.py::test_what_is_failed_and_what_is_kept",
    },
    "dots_rr": DOTS_RR,
    "dots": DOTS_RR
    | {
        "every": "test_methods_dots.py::test_a_selection_serves_every_steps",
        "reference_share": "test_methods_dots.py::test_a_selection_serves_every_steps",
        "candidates": "test_methods_dots.py::test_a_selection_serves_every_steps",
        "target": "test_methods_dots.py::test_target_and_selection_temperature",
        "selection_temperature": "test_methods_dots.py::test_target_and_selection_temperature",
        "attention_temperature": "test_methods_dots.py::test_the_attention_by_hand",
    },
    "partial_rollouts": {
        "share": "test_methods_partial_rollouts.py::test_share_is_the_budget_of_a_step",
        "segments": "test_methods_partial_rollouts.py::test_segments_current_gives_earlier_tokens_no_advantage",
    },
    "areal": {"staleness": "test_methods_areal.py::test_a_step_trains_on_groups_of_the_policy_eta_steps_before"},
    "remix": {
        "replay_share": "test_methods_remix.py::test_replay_share_and_policies",
        "policies": "test_methods_remix.py::test_replay_share_and_policies",
        "update_to_data": "test_methods_remix.py::test_each_mini_batch_twice_in_another_order",
        "switch_step": "test_methods_remix.py::test_the_anchor_weight",
        "kl_decay": "test_methods_remix.py::test_kl_decay_and_kl_floor",
        "kl_floor": "test_methods_remix.py::test_kl_decay_and_kl_floor",
    },
    "luffy": {
        "demonstrations": "test_methods_luffy.py::test_demonstrations_is_how_many_places_the_solution_takes",
        "shape": "test_methods_luffy.py::test_the_loss_by_hand",
        "on_policy_clip": "test_methods_luffy.py::test_the_loss_by_hand",
    },
    "exgrpo": {
        "experience_ratio": "test_methods_exgrpo.py::test_experience_ratio",
        "start_reward": "test_methods_exgrpo.py::test_replay_starts_after_the_first_batch_above_start_reward",
        "bucket_std": "test_methods_exgrpo.py::test_questions_come_from_buckets_by_the_gaussian",
        "capacity": "test_methods_exgrpo.py::test_what_is_kept",
        "shape": "test_methods_exgrpo.py::test_the_loss_by_hand",
        "on_policy_clip": "test_methods_exgrpo.py::test_the_loss_by_hand",
    },
    "relift": {
        "buffer_share": "test_methods_relift.py::test_buffer_share",
        "on_policy_clip": "test_methods_relift.py::test_the_policy_part_of_the_loss",
    },
    "ppo": PPO,
    "ba_ppo": BAPO | PPO,
}


TESTS = ROOT / "tests"


@lru_cache
def functions(file: str) -> dict[str, str]:
    """The source, decorators included, of every function of a test file."""
    text = (TESTS / file if "/" in file else TESTS / "methods" / file).read_text()
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


@pytest.mark.parametrize("algorithm", sorted(methods._BUILT_IN))
def test_every_option_is_exercised(algorithm):
    fields = {f.name for f in dataclasses.fields(methods.get(algorithm).Config)}
    assert fields == set(COMMON) | set(OWN[algorithm])
    for option, where in {**COMMON, **OWN[algorithm]}.items():
        file, _, name = where.partition("::")
        assert option in functions(file)[name], f"{where} does not mention {option}"


def test_the_table_lists_every_method():
    assert set(OWN) <= set(methods.table())
    assert all(issubclass(c, methods.Method) and c.summary and c.source for c in methods.table().values())


@pytest.mark.parametrize("algorithm", sorted(methods._BUILT_IN))
def test_every_method_builds_from_its_algorithm_alone(algorithm):
    method = methods.build({"algorithm": algorithm}, batch_size=4, seed=1)
    assert type(method) is methods.get(algorithm)
    # two algorithms that are not named never share a folder
    assert methods.checked({"algorithm": algorithm}).name == algorithm


def test_defaults_are_the_papers_table_3():
    c = MethodConfig()
    assert (c.kl_coef, c.entropy_coef, c.clip_low, c.clip_high) == (0.001, 0.001, 0.2, 0.2)
    b = methods.checked({"algorithm": "bapo"})
    assert (b.v, b.m, b.c1, b.c2_range, b.c3_range) == (5, 5, 1 / 8, [1 / 8, 4 / 8], [2 / 8, 5 / 8])
    assert (b.sync_phase, b.threshold_direction, b.average_reward) == ("literal", "rising", "batch")
    assert (b.x2_admission, b.high_steps, b.kl_to, b.aggregation) == ("improved", 3, "rollout", "sequence-mean")


# ---------------------------------------------------------------- errors common to all


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({}, "method.algorithm has no value: name one of .*bapo.*repo"),
        (None, "method.algorithm has no value"),
        ({"algorithm": "bappo"}, "method.algorithm=bappo: unknown algorithm; allowed: .*bapo, .*bapo_without_x2"),
        ({"algorithm": "grpo", "v": 5}, "method.v: grpo has no such parameter; allowed: advantage_eps"),
        ({"algorithm": "bapo", "vv": 5}, r"method.vv: bapo has no such parameter .*'v'.*; allowed: .*, v, x2_"),
        ({"algorithm": "bapo", "v": "five"}, "method.v: Value 'five' of type 'str' could not be converted to Integer"),
        ({"algorithm": "bapo", "v": 2.5}, "method.v: Value '2.5' of type 'float'"),
        ({"algorithm": "bapo", "c1": None}, "method.c1"),
        ({"algorithm": "bapo", "c2_range": 0.25}, "method.c2_range"),
        ({"algorithm": "bapo", "remove_replayed": "perhaps"}, "method.remove_replayed: Value 'perhaps'"),
    ],
)
def test_errors_name_the_key_and_what_is_allowed(node, message):
    with pytest.raises(methods.MethodError, match=message):
        methods.checked(node)


def test_checked_fills_in_every_default_and_changes_nothing_given():
    node = methods.checked({"algorithm": "bapo", "v": 3, "name": "bapo_v3", "high_capacity": 8})
    assert (node.v, node.name, node.high_capacity, node.m) == (3, "bapo_v3", 8, 5)
    assert set(node) == {f.name for f in dataclasses.fields(methods.get("bapo").Config)}
    assert methods.checked(node) == node
