"""The tasks' expert solutions, the groups that the torch engine makes of them, and scores of stored responses."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.late import LATE

from bapo import tasks
from bapo.algorithm.rollouts import DEMONSTRATED, FRESH, REPLAYED, Prompt
from bapo.engines.shared.costs import StepCosts
from bapo.engines.shared.records import group_rows
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.methods import Batch
from bapo.tasks.countdown import problems as countdown_problems
from bapo.tasks.countdown.grammar import to_ground_truth
from bapo.tasks.countdown.task import Countdown
from bapo.tasks.generated import to_chain
from bapo.tasks.geometry import generator as geometry_generator
from bapo.tasks.mathematics import generator as mathematics_generator

if LATE:
    from safetensors.torch import save_file
    from support.sampling import step_sampler

    from bapo.engines.shared import models
    from bapo.engines.shared.packed_groups import pack_groups, unpack_groups
    from bapo.engines.shared.prompts import PromptTokens
    from bapo.engines.shared.responses import demonstrate
    from bapo.engines.shared.sampling import SamplingParameters
    from bapo.engines.torch.rollout import ResponseGenerator


COUNTDOWN, MATHEMATICS, GEOMETRY = (tasks.get(name) for name in ("countdown", "mathematics", "geometry"))


def test_countdown_shows_the_solution_with_the_smallest_numbers_on_the_way():
    truth = to_ground_truth((12, 3, 7, 4), 24, "chain")
    text = COUNTDOWN.demonstration(countdown_problems.problem_id((12, 3, 7, 4), 24), "", truth)
    assert COUNTDOWN.verify(text, truth).correct
    # 7 * 4 = 28 is on the way of the search's first solution; no solution stays below its own result, 24
    assert max(int(step.split(" = ")[1]) for step in text.split(" , ")) == 24
    answer = COUNTDOWN.demonstration("", "", to_ground_truth((44, 19, 35), 98, "answer"))
    assert COUNTDOWN.verify(answer, to_ground_truth((44, 19, 35), 98, "answer")).correct


def test_generated_problems_are_solved_as_their_generators_do():
    rng = np.random.default_rng(5)
    for made in mathematics_generator.Generator().problems(rng, 120, "train"):
        assert mathematics_generator.solve(made.prompt) == to_chain(mathematics_generator.work(made.plan))
    rng = np.random.default_rng(5)
    for made in geometry_generator.DiagramGenerator().instances(rng, 60, "train"):
        steps, answer = geometry_generator.chain(made)
        truth = json.dumps({"answer": answer, "format": "chain"})
        assert GEOMETRY.demonstration(made.name, "", truth) == steps and GEOMETRY.verify(steps, truth).correct


@pytest.fixture(scope="module")
def world(tiny_world):
    """(configuration, model, tokenizer) of the tiny world's base."""
    config = compose_config([*tiny_world, "seed=1"])
    return config, *models.load_start(config, models.device_of(config))


def parameters(tokenizer, longest=20):
    return SamplingParameters(max_tokens=longest, eos_ids=models.end_tokens(tokenizer))


def prompt(tokenizer, numbers, target):
    name = countdown_problems.problem_id(numbers, target)
    tokens = tokenizer(f"{' '.join(map(str, numbers))} : {target} =", add_special_tokens=False)["input_ids"]
    return Prompt(name, PromptTokens(tuple(tokens), to_ground_truth(numbers, target, "chain")))


def generated(world, size):
    """(generator, prompts, the fresh groups that it generates of them)"""
    _, model, tokenizer = world
    generator = ResponseGenerator(tokenizer, COUNTDOWN, parameters(tokenizer), seed=1)
    prompts = [prompt(tokenizer, (8, 3, 2), 22), prompt(tokenizer, (5, 4, 1, 6), 20)]
    return generator, prompts, generator.generate(model, prompts, size, ("rollout",), 1, 0, FRESH, StepCosts())


def test_a_demonstration_is_a_verified_response_with_its_end_token(world):
    tokenizer = world[2]
    one = prompt(tokenizer, (8, 3, 2), 22)
    (group,) = demonstrate([one], tokenizer, COUNTDOWN, parameters(tokenizer), step=4)
    assert (group.origin, group.rewards.tolist(), group.step, group.version) == (DEMONSTRATED, [1.0], 4, 3)
    assert tokenizer.decode(group.samples.tokens[0]).replace(" ", "") == "8+3=11,11*2=22<eos>"
    assert group.samples.lengths.tolist() == [12] and not group.samples.logprobs.any()
    assert group.replayed.tolist() == [True]


def test_there_is_none_where_it_is_too_long_or_wrong(world, monkeypatch):
    tokenizer = world[2]
    known = prompt(tokenizer, (8, 3, 2), 22)
    assert demonstrate([known], tokenizer, COUNTDOWN, parameters(tokenizer, 12), 1) != [None]
    assert demonstrate([known], tokenizer, COUNTDOWN, parameters(tokenizer, 11), 1) == [None]
    monkeypatch.setattr(Countdown, "demonstration", lambda *_: "8 + 3 = 11")  # it forgets a number
    assert demonstrate([known], tokenizer, COUNTDOWN, parameters(tokenizer), 1) == [None]
    monkeypatch.undo()
    monkeypatch.delattr(Countdown, "demonstration")  # a task without an expert
    with pytest.raises(UserError, match=r"countdown: .*demonstration"):
        demonstrate([known], tokenizer, COUNTDOWN, parameters(tokenizer), 1)


def test_scores_are_the_log_probabilities_of_the_current_policy(world):
    generator, _, groups = generated(world, 5)
    for rows in (None, 3):
        sampler = step_sampler(world[1], generator, 1, rows=rows)
        for group, logprobs in zip(groups, sampler.score(groups), strict=True):
            assert logprobs.dtype == np.float32 and logprobs.shape == group.samples.tokens.shape
            np.testing.assert_allclose(logprobs, group.samples.logprobs, atol=1e-4)
        tokens = sum(5 * len(g.prompt.row.tokens) + int(g.samples.lengths.sum()) for g in groups)
        assert sampler.costs.forward_tokens == tokens
        assert sampler.costs.fresh_rollouts == sampler.costs.generated_tokens == 0
    assert sampler.score([]) == []


def test_checkpoints_keep_what_a_group_says_of_its_responses(world, tmp_path):
    _, prompts, (one, two) = generated(world, 3)
    solution = demonstrate(prompts[:1], world[2], COUNTDOWN, parameters(world[2]), 2)[0]
    marked = replace(one, off_policy=np.array([False, True, False]))
    cut = replace(two, unfinished=np.array([True, False, True]), origin=REPLAYED)
    two = replace(two, step_logprobs=two.samples.logprobs - 1)
    tensors, entries = pack_groups([marked, two, solution, cut])
    save_file(tensors, tmp_path / "groups.safetensors")
    found = unpack_groups(tmp_path / "groups.safetensors", json.loads(json.dumps(entries)), {p.id: p for p in prompts})
    assert [g.origin for g in found] == [FRESH, FRESH, DEMONSTRATED, REPLAYED]
    assert found[0].off_policy.tolist() == [False, True, False] and found[0].unfinished is None
    assert found[3].unfinished.tolist() == [True, False, True] and found[3].off_policy is None
    inside = two.samples.logprobs != 0
    np.testing.assert_array_equal(found[1].step_logprobs, np.where(inside, two.step_logprobs, 0))
    assert all(group.step_logprobs is None for group in (found[0], *found[2:]))
    for before, after in zip((marked, two, solution, cut), found, strict=True):
        assert np.array_equal(before.rewards, after.rewards) and np.array_equal(before.replayed, after.replayed)
        for name in ("tokens", "lengths", "logprobs"):
            assert np.array_equal(getattr(before.samples, name), getattr(after.samples, name))
    # nothing is stored behind a response's end
    real = sum(int(g.samples.lengths.sum()) for g in (marked, two, solution, cut))
    assert tensors["tokens"].shape == tensors["logprobs"].shape == (real,)


def test_the_record_says_how_many_responses_are_not_this_steps(world):
    own = generated(world, 3)[2][0]
    mixed = replace(own, off_policy=np.array([False, False, True]))
    rows = group_rows(1, Batch([own, mixed, own.as_origin(REPLAYED), own.as_origin(DEMONSTRATED)]))
    assert [row["replayed"] for row in rows] == [0, 1, 3, 3]
