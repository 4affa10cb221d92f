"""Describes every column of the tables of a run, by table. docs/running.md prints these lines.

``NAME_xN`` stands for ``NAME_x1`` to ``NAME_x3``, the values over the responses of one origin in a step's batch: X1
(fresh), X2 (retried), X3 (replayed). A method without the quantity has nan there, or no such column where the line
names methods. ``verl`` marks columns that only this engine has. A project's method may add columns.
"""

from __future__ import annotations

from bapo.store import files

#: steps.parquet: what methods report of a step in ``Batch.metrics``
OF_METHODS = {
    "generation_batches": "rollouts of a batch that the step took (DAPO: up to its limit)",
    "reevaluated_prompts": "hard prompts that BAPO sampled again",
    "c2": "lower end of eq. 8's range of accuracies for X3, 0 to 1",
    "c3": "its upper end",
    "r_tot": "the mean reward that eq. 8 follows",
    "bad_buffer": "prompts in BAPO's B_bad",
    "high_buffer": "groups in BAPO's B_high",
    "replayed_responses": "stored responses in the batch (ARPO, ExGRPO, RePO)",
    "replay_buffer": "groups that are stored (FIFO replay, FreshPER, DOTS-RR)",
    "replay_age": "steps since they were sampled, mean over the batch (FIFO replay, FreshPER)",
    "recent": "groups that are stored (Remix-GRPO)",
    "queue": "groups that wait (methods on a stale queue)",
    "replayed_prompts": "prompts that are answered again (Prompt Replay)",
    "prompt_buffer": "prompts that are stored (Prompt Replay)",
    "experience_questions": "prompts with a stored right response (ExGRPO)",
    "retired_questions": "prompts that are always solved, and left out (ExGRPO)",
    "demonstrations": "responses of an expert in the batch (LUFFY, ReLIFT)",
    "buffered": "expert's responses that wait (ReLIFT)",
    "resumed_groups": "groups that a step goes on with (partial rollouts)",
    "waiting_groups": "groups that are not finished (partial rollouts)",
    "earlier_tokens": "share of the batch's tokens from earlier steps (partial rollouts)",
    "predicted_mean": "accuracy that the step's prompts were expected to have (DOTS)",
    "prediction_correlation": "of expected and seen accuracies (DOTS)",
    "prediction_error": "mean distance of the two (DOTS)",
    "reference_correlation": "the same on prompts whose accuracy is known (DOTS)",
    "reference_error": "the same on prompts whose accuracy is known (DOTS)",
    "clip_low": "1 minus the lower end of the clip (bapo_xi)",
    "clip_high": "the upper end minus 1 (bapo_xi)",
    "positive_share": "share of the loss from positive advantages (bapo_xi)",
}

#: steps.parquet: a row a training step
STEP = {
    "step": "from 1",
    "policy_version": "steps of updates in the policy that this step trains",
    "rollout_version": "steps of updates in the policy that sampled",
    "staleness": "policy_version - rollout_version",
    "batch_age": "steps of updates behind the policy of the batch's oldest group",
    "reward_mean": "mean reward of the new samples, 0 to 1",
    "groups_fresh": "prompts that were sampled",
    "groups_none_correct": "those whose responses are all wrong",
    "groups_all_correct": "those whose responses are all right",
    "batch_groups": "groups that were trained on",
    "x1": "of these, fresh",
    "x2": "of these, hard prompts that were sampled again",
    "x3": "of these, replayed",
    "updates": "optimiser steps",
    "loss": "mean over the updates",
    "gradient_norm": "before clipping, mean over the updates",
    "clip_fraction": "share of tokens whose ratio was clipped",
    "kl": "estimate of the KL divergence to the method's target, nats a token",
    "entropy": "of the policy, nats a token, mean over the batch",
    "cut_off": "share of responses that reached the length limit without an end",
    "response_length": "of the fresh responses, mean tokens",
    "tv_xN": "total variation distance to the policy that sampled, by its estimate from whole responses",
    "surrogate_xN": "ratio times advantage of whole responses, eq. 22",
    "clipped_xN": "share of a response's tokens whose ratio was clipped",
    "clipped_upper_xN": "of responses with a positive advantage",
    "clipped_lower_xN": "of responses with a negative advantage",
    "ratio_p99_xN": "99th percentile of whole responses' ratios; nan with verl",
    "ratio_max_xN": "their maximum",
    "ess_xN": "effective sample size as a share of the responses, 1/n to 1",
    "k1": "constant of Theorem 3.2 for X1",
    "k2": "for X2",
    "k3": "for X3",
    "value_loss": "of a critic's updates",
    "value_clip_fraction": "share of values that were clipped",
    "explained_variance": "of the returns by the values, at most 1",
    "critic_gradient_norm": "before clipping",
    "learning_rate": "of the last update",
    "fresh_rollouts": "responses to the step's prompts",
    "regenerated_rollouts": "responses to prompts that were sampled again",
    "generated_tokens": "tokens of both",
    "trained_tokens": "tokens of prompts and responses in updates",
    "overloaded": "responses that the machine was too busy to grade, counted as wrong",
    "mismatch_mean": "gap of the sampler's log-probabilities to the trainer's, nats; verl, after a refresh",
    "mismatch_max": "its maximum; verl",
    "forward_flops": "operations of forward passes, also those of updates: 2 a parameter and token",
    "backward_flops": "operations of backward passes: 4 a parameter and token",
    "seconds_rollout": "wall time of sampling",
    "seconds_regenerate": "of sampling again",
    "seconds_reward": "of grading",
    "seconds_update": "of the updates",
    "seconds_push": "of weights on their way to the rollout engine; verl",
    "seconds_compare": "of comparing log-probabilities; verl",
    "seconds_probe": "of the probe, which no cost counts",
    "seconds_total": "of the whole step",
    "memory_peak_gb": "most GB of a GPU that tensors took since the job began; verl",
} | OF_METHODS

#: groups.parquet: a row a group of a step, used or not
GROUP = {
    "step": "from 1",
    "prompt_id": "of the problem",
    "origin": "fresh, re-evaluated (X2), replayed (X3) or demonstration (an expert's)",
    "version": "steps of updates in the policy that sampled the group",
    "generated_step": "the step that sampled it",
    "rewards": "of its responses, a list",
    "replayed": "how many of its responses this step did not sample",
    "mean": "of its rewards",
    "used": "whether it was trained on",
    "reason": "why it was not",
}

#: probe.parquet: a row a probed prompt of a step; step 0 is the model before training
PROBE = {
    "step": "training steps before it",
    "set": "train, or probe for held-out problems",
    "prompt_id": "of the problem",
    "correct": "responses that are right",
    "samples": "responses",
    "mean": "mean reward",
}

#: eval/BENCHMARK.parquet: a row a response
SAMPLE = {
    "problem_id": "of the problem",
    "sample": "its number, from 0",
    "correct": "whether the grader accepts it",
    "parsed": "whether an answer was found in it",
    "reason": "the grader's, for a response that is not correct",
    "tokens": "of the response",
    "seed": "that it was drawn with",
    "response": "its text",
    "second_correct": "whether another grader accepts it, where one was asked; empty if it had no time",
}

EVALUATION = "eval/BENCHMARK.parquet"
TABLES = {files.STEPS: STEP, files.GROUPS: GROUP, files.PROBE: PROBE, EVALUATION: SAMPLE}


def markdown() -> str:
    """Return a table of columns for each table, with the name of its file on top."""
    return "\n".join(
        "\n".join([f"| `{table}` | |", "|---|---|", *(f"| `{name}` | {line} |" for name, line in lines.items()), ""])
        for table, lines in TABLES.items()
    )
