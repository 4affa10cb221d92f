"""Partial rollouts: who waits, what is trained on, what is sampled when, and a real run that is resumed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from support.late import LATE
from support.scripted import NoSampler, ScriptedSampler, group, ids
from support.scripted import build as built

from bapo import tasks
from bapo.algorithm.rollouts import FRESH, Samples
from bapo.engines.shared.costs import StepCosts
from bapo.experiments.compose import compose_config
from bapo.tasks.job import data_folder

if LATE:
    from support.sampling import step_sampler
    from transformers import GenerationConfig

    from bapo.engines.shared import models
    from bapo.engines.shared.prompts import read_prompts
    from bapo.engines.shared.sampling import SamplingParameters, unfinished
    from bapo.engines.torch.rollout import ResponseGenerator


B, G = 4, 3


build = partial(built, "partial_rollouts", B)


def begun(name, lengths, unfinished, correct=0, step=1):
    """A group of G responses of the given lengths; ``unfinished`` lists those that were cut off."""
    made = group(name, correct, step, G)
    tokens = np.full((G, max(lengths)), 7, dtype=np.int32)
    samples = Samples(tokens, np.array(lengths, dtype=np.int32), -tokens.astype(np.float32))
    return replace(made, samples=samples, unfinished=np.isin(np.arange(G), unfinished))


class Resuming(ScriptedSampler):
    """``resume`` hands out the groups that are written down; ``resumed`` lists what it was asked for."""

    def __init__(self, groups=(), stream=()):
        super().__init__(stream=stream)
        self.groups, self.resumed = list(groups), []

    def resume(self, groups):
        self.resumed.append(ids(groups))
        taken, self.groups = self.groups[: len(groups)], self.groups[len(groups) :]
        return taken


def test_share_is_the_budget_of_a_step():
    assert build().rollout_budget(1, 20) == 10 and build(share=0.3).rollout_budget(5, 20) == 6
    assert build(share=0.34).rollout_budget(1, 20) == 7  # 6.8, rounded up: three steps are enough
    assert build(share=0.01).rollout_budget(1, 20) == 1
    assert build(share=1.0).rollout_budget(1, 20) is None and build().rollout_budget(1, 1) is None
    assert built("grpo", B).rollout_budget(1, 20) is None


def test_groups_wait_until_their_last_response_has_ended():
    method = build()
    lengths = {"a": [2, 3, 1], "b": [4, 4, 2], "c": [4, 1, 1], "d": [1, 1, 1]}
    cut = {"b": [0, 1], "c": [0]}
    fresh = [begun(name, own, cut.get(name, [])) for name, own in lengths.items()]
    batch = method.build_batch(1, fresh, NoSampler())
    assert ids(batch.groups) == ["a", "d"] and ids(method.kept) == ["b", "c"]
    assert batch.metrics == {"resumed_groups": 0, "waiting_groups": 2, "earlier_tokens": 0}

    sampler = Resuming([begun("b", [8, 7, 2], [0]), begun("c", [6, 1, 1], [], 1)], stream="efgh")
    assert [p.id for p in method.draw_prompts(2, sampler)] == ["e", "f"]  # two places are taken
    batch = method.build_batch(2, [begun("e", [4, 3, 3], [0], step=2), begun("f", [2, 2, 2], [], step=2)], sampler)
    assert sampler.resumed == [["b", "c"]]
    assert ids(batch.groups) == ["c", "f"] and ids(method.kept) == ["b", "e"]
    assert all(g.earlier is None for g in method.kept)  # a checkpoint holds what is counted anew when it goes on
    # c has 8 tokens of which step 1 sampled 4 + 1 + 1; f has 6 new ones
    assert batch.metrics == {"resumed_groups": 2, "waiting_groups": 2, "earlier_tokens": pytest.approx(6 / 14)}
    assert batch.groups[0].earlier.tolist() == [4, 1, 1] and batch.groups[1].earlier is None
    assert all(g.unfinished is None and g.origin == FRESH for g in batch.groups)
    assert [g.version for g in batch.groups] == [0, 1]  # how old the first segment is

    sampler = Resuming([begun("b", [9, 7, 2], []), begun("e", [5, 3, 3], [])])
    batch = method.build_batch(3, [], sampler)
    assert sampler.resumed == [["b", "e"]] and ids(batch.groups) == ["b", "e"] and not method.kept
    assert batch.groups[0].earlier.tolist() == [8, 7, 2]  # of steps 1 and 2 together


def test_there_is_always_a_new_prompt():
    method = build()
    method.kept = [begun(name, [4, 4, 4], [0]) for name in "abcd"]
    assert [p.id for p in method.draw_prompts(2, Resuming(stream="ef"))] == ["e"]


def test_segments_current_gives_earlier_tokens_no_advantage():
    resumed = replace(begun("a", [2, 4, 1], [], 1), unfinished=None, earlier=np.array([2, 3, 0]))
    whole = build().advantages(resumed)  # rewards 1, 0, 0: sqrt(2), -1 / sqrt(2) twice
    assert whole == pytest.approx([1.41421, -0.70711, -0.70711], abs=1e-4)
    found = build(segments="current").advantages(resumed)
    assert found.dtype == np.float32
    a, b = whole[:2]
    assert found.tolist() == [[0, 0, a, a], [0, 0, 0, b], [b, b, b, b]]  # behind an end nothing is read
    fresh = build(segments="current").advantages(replace(resumed, earlier=None))
    assert fresh.tolist() == [[a] * 4, [b] * 4, [b] * 4]


LONGEST = 20


@pytest.fixture(scope="module")
def world(tiny_world):
    """(model, generator, prompts) of the tiny world's base."""
    config = compose_config([*tiny_world, "seed=1"])
    model, tokenizer = models.load_start(config, models.device_of(config))
    settings = SamplingParameters(max_tokens=LONGEST, eos_ids=models.end_tokens(tokenizer))
    prompts = read_prompts(data_folder(config) / "train.parquet", tokenizer, 16)
    return model, ResponseGenerator(tokenizer, tasks.get("countdown"), settings, seed=1), prompts


def sampler_at(world, step, budget):
    return step_sampler(world[0], world[1], step, group_size=6, budget=budget)


def begin(world, prompts, budget, size=6):
    return world[1].generate(world[0], prompts, size, ("rollout",), 1, 0, FRESH, StepCosts(), budget)


def test_what_is_cut_off_is_unfinished_and_not_graded(world):
    whole = begin(world, world[2][:12], None)
    cut = begin(world, world[2][:12], 13)
    assert all(g.unfinished is None for g in whole)
    for long, short in zip(whole, cut, strict=True):
        assert short.unfinished.tolist() == (long.samples.lengths > 13).tolist()
        assert np.array_equal(short.samples.lengths, long.samples.lengths.clip(max=13))
        width = short.samples.tokens.shape[1]
        assert np.array_equal(short.samples.tokens[:, :width], long.samples.tokens[:, :width])
        assert np.array_equal(short.rewards, np.where(short.unfinished, 0, long.rewards))
    assert 0.2 < np.mean([g.unfinished.mean() for g in cut]) < 1  # else this would compare nothing


def test_every_end_token_of_the_model_ends_a_response():
    """A chat model's generation_config names more than its tokenizer, whose own is what experts write."""
    tokenizer = SimpleNamespace(eos_token_id=7, pad_token_id=None)
    assert models.end_tokens(tokenizer) == (7,)
    several, one, none = (GenerationConfig(eos_token_id=e) for e in ([9, 7], 9, None))
    assert models.end_tokens(tokenizer, several) == models.end_tokens(tokenizer, one) == (7, 9)
    assert models.end_tokens(tokenizer, none) == (7,)
    assert models.end_tokens(SimpleNamespace(eos_token_id=None), one) == (9,)
    rows = Samples(np.array([[5, 7], [5, 9], [5, 6]]), np.array([2, 2, 2]), np.zeros((3, 2)))
    ends = models.end_tokens(tokenizer, several)
    assert unfinished(rows, SamplingParameters(max_tokens=4, eos_ids=ends)).tolist() == [False, False, True]


@pytest.mark.parametrize("budget", [3, 10, 13])
def test_responses_go_on_step_by_step_to_their_end(world, budget):
    groups = begin(world, world[2][:12], budget)
    first = groups
    for step in range(2, -(-LONGEST // budget) + 1):
        sampler = sampler_at(world, step, budget)
        before, rewards = groups, [g.rewards.copy() for g in groups]
        groups = sampler.resume(before)
        for old, new, old_rewards in zip(before, groups, rewards, strict=True):
            grown = new.samples.lengths - old.samples.lengths
            assert (grown[~old.unfinished] == 0).all() and (grown[old.unfinished] > 0).all() and grown.max() <= budget
            assert old.rewards.tolist() == old_rewards.tolist() and (new.version, new.step) == (0, 1)
            for i, n in enumerate(old.samples.lengths):  # what was there stays, with its log-probabilities
                assert np.array_equal(new.samples.tokens[i, :n], old.samples.tokens[i, :n])
                assert np.array_equal(new.samples.logprobs[i, :n], old.samples.logprobs[i, :n])
        lengths = [np.concatenate([g.samples.lengths for g in x]).sum() for x in (before, groups)]
        assert sampler.costs.generated_tokens == lengths[1] - lengths[0] > 0
        again = [(g, i) for g in before for i in np.flatnonzero(g.unfinished)]
        assert sampler.costs.prompt_tokens == sum(len(g.prompt.row.tokens) + g.samples.lengths[i] for g, i in again)
        assert sampler.costs.fresh_rollouts == sampler.costs.regenerated_rollouts == 0
    assert all(g.finished and (g.samples.lengths <= LONGEST).all() for g in groups)
    # graded as a whole response, where it ended
    for old, new in zip(first, groups, strict=True):
        texts = world[1].tokenizer.batch_decode(
            [new.samples.tokens[i, :n] for i, n in enumerate(new.samples.lengths)], skip_special_tokens=True
        )
        task, truth = world[1].task, new.prompt.row.ground_truth
        assert new.rewards.tolist() == [float(task.verify(text, truth).correct) for text in texts]
        assert new.samples.lengths[old.unfinished].min(initial=LONGEST) > budget
    # the policy has not changed: each token has the log-probability that the whole response has now
    for group_, scores in zip(groups, sampler_at(world, 2, None).score(groups), strict=True):
        np.testing.assert_allclose(group_.samples.logprobs[:, : scores.shape[1]], scores, atol=1e-4)


def test_random_numbers_are_never_used_twice(world):
    """A step, a call and a response each have their own; the same call gives the same tokens."""
    prompt = world[2][0]
    cut = begin(world, [prompt, prompt], 2, 64)
    tokens = {}
    for step, calls in ((2, 2), (3, 1)):
        sampler = sampler_at(world, step, None)
        for call in range(calls):
            one, two = sampler.resume(cut)
            tokens[step, call, "one"], tokens[step, call, "two"] = one.samples.tokens, two.samples.tokens
    first = sampler_at(world, 2, None).resume(cut)[0].samples.tokens
    assert np.array_equal(first, tokens[2, 0, "one"])
    values = [v[:, 2:12].tobytes() for v in tokens.values()]
    assert len(set(values)) == len(values) == 6
