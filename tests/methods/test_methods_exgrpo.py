"""ExGRPO: what is kept and retired, which questions and responses come back, and the loss by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from support.scripted import G, NoSampler, ScriptedSampler, build, ids, loss_inputs, rewards

from bapo.algorithm.rollouts import FRESH, Group, Prompt, Samples
from bapo.engines.shared.costs import StepCosts
from bapo.engines.shared.records import Recorder
from bapo.errors import UserError
from bapo.experiments.budgets import Budget
from bapo.experiments.schema import ProbeConfig
from bapo.methods.exgrpo import allocate

B = 4


exgrpo = partial(build, "exgrpo", B)


def solved(name: str, correct: int, step: int = 1, texts: Sequence[int] = range(G)) -> Group:
    """A group whose response i is [texts[i], 5] with log-probabilities that tell steps and responses apart."""
    tokens = np.array([[t, 5] for t in texts], dtype=np.int32)
    logprobs = -(step + np.arange(2 * G, dtype=np.float32).reshape(G, 2) / 100)
    samples = Samples(tokens, np.full(G, 2, dtype=np.int32), logprobs)
    return Group(Prompt(name), rewards(correct), step, step - 1, samples)


class Scorer(ScriptedSampler):
    """Gives the response [t, 5] the log-probabilities -costs[t] / 2 each; 3 a token where nothing is said of it."""

    def __init__(self, costs: dict[int, float] | None = None, stream: Sequence[str] = ()) -> None:
        super().__init__(stream=stream)
        self.costs = costs or {}
        self.scored: list[tuple[str, list[int]]] = []

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        self.scored += [(g.prompt.id, g.samples.tokens[:, 0].tolist()) for g in groups]
        costs = [[self.costs.get(int(t), 6.0) / 2 for t in g.samples.tokens[:, 0]] for g in groups]
        return [-np.repeat(np.array(c, dtype=np.float32)[:, None], 2, axis=1) for c in costs]


def started(**options):
    """A method whose replay has begun and which keeps nothing yet."""
    method = exgrpo(start_reward=0.5, **options)
    method.build_batch(1, [solved("easy", 7)], NoSampler())
    return method


def test_replay_starts_after_the_first_batch_above_start_reward():
    method = exgrpo(start_reward=0.5)
    for step, correct in ((1, 2), (2, 4)):  # 0.5 is not above 0.5
        method.build_batch(step, [solved("a", correct, step)], NoSampler())
        assert not method.mixing
    batch = method.build_batch(3, [solved("a", 4, 3), solved("b", 5, 3)], NoSampler())
    assert method.mixing and batch.metrics["experience_questions"] == 0  # this batch itself is not kept
    method.build_batch(4, [solved("a", 1, 4)], NoSampler())  # nor does it stop again
    assert method.mixing and method.correct == {"a": 1}


def test_right_responses_are_kept_until_a_question_is_solved():
    method = started(capacity=3)
    method.build_batch(2, [solved("a", 2), solved("none", 0), solved("all", 8)], NoSampler())
    assert method.correct == {"a": 2} and list(method.retired) == ["all"]
    assert [g.samples.tokens[0, 0] for g in method.kept.of("a")] == [0, 1]  # the correct ones alone
    # the same text is kept once, with its first log-probabilities; the question changes its bucket
    method.build_batch(3, [solved("a", 4, 3, texts=[1, 8, 9, 9, 4, 5, 6, 7])], NoSampler())
    assert method.correct == {"a": 4}
    assert [(g.samples.tokens[0, 0], g.step) for g in method.kept.of("a")] == [(1, 1), (8, 3), (9, 3)]  # the newest 3
    method.build_batch(4, [solved("a", 0, 4)], NoSampler())  # all wrong: nothing changes
    assert method.correct == {"a": 4} and len(method.kept.of("a")) == 3
    method.build_batch(5, [solved("a", 8, 5)], NoSampler())
    assert method.correct == {} and list(method.kept) == [] and list(method.retired) == ["all", "a"]
    method.build_batch(6, [solved("a", 3, 6)], NoSampler())  # retired for good
    assert method.correct == {} and list(method.kept) == []


def test_a_share_of_the_batch_is_kept_questions():
    stream = [f"p{i}" for i in range(40)]
    for ratio, count in ((0.5, 2), (0.25, 1), (0.0, 0), (1.0, 3)):  # only three questions have kept responses
        method = started(experience_ratio=ratio)
        method.build_batch(2, [solved(n, 3) for n in "abc"], NoSampler())
        drawn = [p.id for p in method.draw_prompts(3, Scorer(stream=stream))]
        assert len(drawn) == B and len(set(drawn) & set("abc")) == count and drawn[count:] == stream[: B - count]


def test_retired_and_chosen_questions_are_passed_over_in_the_stream():
    method = started(experience_ratio=0.25)
    method.build_batch(2, [solved("kept", 3), solved("done", 8)], NoSampler())
    sampler = Scorer(stream=["done", "x", "kept", "y", "z", "w"])
    assert [p.id for p in method.draw_prompts(3, sampler)] == ["kept", "x", "y", "z"] and sampler.stream == ["w"]
    # where nothing else is left, retired questions are taken
    assert [p.id for p in method.draw_prompts(4, Scorer(stream=["done"] * 12))] == ["kept", "done", "done", "done"]


def test_questions_come_from_buckets_by_the_gaussian():
    method = started(bucket_std=2.0)
    method.build_batch(2, [solved(f"{k}-{i}", k) for k in (2, 4) for i in range(50)], NoSampler())
    picked = [method.questions(step, 1)[0] for step in range(600)]
    share = sum(name.startswith("4-") for name in picked) / len(picked)
    # exp(0) against exp(-(2 - 4)^2 / (2 * 2^2)) = exp(-1/2): 0.622, standard error 0.02
    assert share == pytest.approx(1 / (1 + np.exp(-0.5)), abs=0.07)
    assert len(set(picked)) > 80  # uniform within a bucket
    assert all(len(set(method.questions(step, 60))) == 60 for step in (1, 2))  # each at most once
    assert method.questions(7, 5) == method.questions(7, 5) != method.questions(8, 5)


def test_what_a_bucket_lacks_comes_from_the_others():
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = allocate(6, np.array([1.0, 1e-9, 1e-3]), np.array([2, 3, 4]), rng)
        assert counts.sum() == 6 and (counts <= [2, 3, 4]).all() and counts[0] == 2 and counts[2] == 4
    assert allocate(3, np.zeros(2), np.array([2, 1]), rng).tolist() == [2, 1]  # weights that are 0 in floating point
    assert allocate(0, np.array([]), np.array([]), rng).tolist() == []


def test_the_surest_response_under_the_current_policy_comes_back_in_the_last_place():
    method = started(experience_ratio=0.25)
    method.build_batch(2, [solved("a", 4, 2)], NoSampler())
    sampler = Scorer({1: 4.0, 2: 1.0}, stream=["x", "y", "z"])
    prompts = method.draw_prompts(5, sampler)
    assert sampler.scored == [("a", [0, 1, 2, 3])]
    batch = method.build_batch(5, [solved(p.id, 2, 5, texts=range(20, 28)) for p in prompts], sampler)
    mixed = batch.groups[0]
    assert ids(batch.groups) == ["a", "x", "y", "z"] and mixed.origin == FRESH
    assert batch.metrics["replayed_responses"] == 1
    assert mixed.off_policy.tolist() == [False] * 7 + [True] and all(g.off_policy is None for g in batch.groups[1:])
    assert mixed.rewards.tolist() == [1, 1, 0, 0, 0, 0, 0, 1] and mixed.samples.tokens[7].tolist() == [2, 5]
    # its own log-probabilities, of the step that sampled it, whose policy is the group's oldest
    assert mixed.samples.logprobs[7].tolist() == pytest.approx([-2.04, -2.05])
    assert (mixed.step, mixed.version) == (5, 1)
    assert method.advantages(mixed).tolist() == [0.625, 0.625] + [-0.375] * 5 + [0.625]
    # the fresh correct ones enter; the replayed one is in already, under its own log-probabilities
    assert [g.samples.tokens[0, 0] for g in method.kept.of("a")] == [0, 1, 2, 3, 20, 21]
    assert method.correct["a"] == 3
    # each under the policy that sampled it: step 2's is version 1, step 5's version 4
    assert [g.version for g in method.kept.of("a")] == [1, 1, 1, 1, 4, 4]
    # batch_age: of step 5, whose policy is version 4, the oldest is three steps old
    recorder = Recorder(SimpleNamespace(probe=ProbeConfig()), method, Budget("steps", 9, 9))
    recorder.begin_row(5, 4, batch.groups, batch, 1, StepCosts(), {})
    assert recorder.row["batch_age"] == 3
    # what was chosen for one step is not replayed in the next
    assert method.build_batch(6, [solved("a", 1, 6)], NoSampler()).groups[0].off_policy is None
    name = next(iter(batch.metrics))
    with pytest.raises(UserError, match=f"exgrpo: the loss and its batch both measure {name}"):
        recorder.begin_row(5, 4, batch.groups, batch, 1, StepCosts(), {name: 0.5})


def inputs(replays: int, phase: int = 1):
    """A fresh response (ratios 1 and 1.6) and, where ``replays``, a replayed one (0.4 and 0.9), else a fresh one."""
    now, stored, marks = [[0.5, 0.8], [0.2, 0.45]], [[0.5] * 2] * 2, [False, bool(replays)]
    return loss_inputs(now, stored, [0.5, 1.0], second_part=marks, part_sequences=(2 - replays, replays), phase=phase)


@pytest.mark.parametrize(
    ("options", "replays", "phase", "value"),
    [
        # fresh: -1/2 (1 + 1.6); replayed: 0.4 / 0.5 and 0.9 / 1.0; the mean of four tokens
        ({}, 1, 1, -(0.5 + 0.8 + 0.8 + 0.9) / 4),
        ({"on_policy_clip": True}, 1, 1, -(0.5 + 0.6 + 0.8 + 0.9) / 4),
        ({"shape": 0.0}, 1, 1, -(0.5 + 0.8 + 0.4 + 0.9) / 4),
        # before the start of replay the clip stands; after it, it is gone from mini-batches without replay too
        ({}, 0, 0, -(0.5 + 0.6 + 0.4 + 0.9) / 4),
        ({}, 0, 1, -(0.5 + 0.8 + 0.4 + 0.9) / 4),
    ],
)
def test_the_loss_by_hand(options, replays, phase, value):
    loss, _ = exgrpo(entropy_coef=0.0, **options).loss(inputs(replays, phase))
    assert loss.item() == pytest.approx(value, abs=1e-6)


def test_the_clip_goes_with_the_batch_after_the_one_that_starts_replay():
    method, phases = exgrpo(start_reward=0.5), []
    for step, correct in ((1, 3), (2, 7), (3, 1), (4, 0)):
        phases.append(method.build_batch(step, [solved("a", correct, step)], NoSampler()).phase)
    assert phases == [0, 0, 1, 1]
    resumed = exgrpo(start_reward=0.5)
    resumed.restore(*method.state(), Prompt)
    assert resumed.build_batch(5, [solved("b", 0, 5)], NoSampler()).phase == 1


def test_the_penalty_to_the_reference_and_the_metrics_are_of_fresh_responses():
    given = inputs(1)
    given.reference_logprobs = given.logprobs.detach() + given.second_part[:, None]  # differs for the replayed alone
    given.recorded = ~given.second_part
    held, plain = exgrpo(kl_to="reference", kl_coef=0.5, entropy_coef=0.0), exgrpo(entropy_coef=0.0)
    loss, metrics = held.loss(given)
    assert loss.item() == pytest.approx(plain.loss(given)[0].item()) and metrics["kl"].item() == 0.0
    # of the two fresh tokens one is above 1.2; of all four it would be a quarter
    clipping = exgrpo(on_policy_clip=True).loss(given)[1]
    assert clipping["clip_fraction"].item() == 0.5
    given.recorded = None
    assert exgrpo(on_policy_clip=True).loss(given)[1]["clip_fraction"].item() == 0.25
