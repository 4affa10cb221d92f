"""ReLIFT: when the buffer fills, what a supervised update is, and its loss by hand."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf
from support.late import LATE
from support.scripted import ExpertSampler, fresh, ids

from bapo import methods
from bapo.algorithm.batch import mini_batches
from bapo.algorithm.rollouts import DEMONSTRATED, FRESH, Prompt
from bapo.errors import UserError

if LATE:
    import torch

    from bapo.algorithm.losses import LossInputs


B = 4
TRAIN = OmegaConf.create({"batch_size": B, "mini_batch_size": 2, "underfilled": "fewer-updates"})


def relift(**options):
    return methods.build({"algorithm": "relift", **options}, batch_size=B, seed=1)


# ---------------------------------------------------------------------------------------------------- the buffer


def test_solutions_of_failed_questions_wait_until_there_are_as_many_as_in_a_batch():
    method, sampler = relift(), ExpertSampler()
    batch = method.build_batch(1, fresh(1, [0, 1, 0, 8]), sampler)
    assert sampler.asked == [["1a", "1c"]]  # only what nobody solved
    assert ids(batch.groups) == ["1a", "1b", "1c", "1d"] and batch.metrics == {"demonstrations": 0, "buffered": 2}
    batch = method.build_batch(2, fresh(2, [0, 0, 0, 2]), sampler)
    # the newest step's are in front, and what is left over stays
    assert [(g.prompt.id, g.origin, g.size) for g in batch.groups[4:]] == [
        ("2a", DEMONSTRATED, 1),
        ("2b", DEMONSTRATED, 1),
        ("2c", DEMONSTRATED, 1),
        ("1a", DEMONSTRATED, 1),
    ]
    assert ids(method.buffer) == ["1c"] and batch.metrics == {"demonstrations": 4, "buffered": 1}
    assert all(g.origin == FRESH for g in batch.groups[:4])


def test_buffer_share():
    method = relift(buffer_share=0.5)
    batch = method.build_batch(1, fresh(1, [0, 0, 0, 0]), ExpertSampler())
    assert ids(batch.groups[4:]) == ["1a", "1b"] and ids(method.buffer) == ["1c", "1d"]  # one update a step


def test_questions_without_a_solution_do_not_enter_but_some_must_have_one():
    method = relift()
    method.build_batch(1, fresh(1, [0, 3]), ExpertSampler(unknown=["1a"]))  # one says little of the others
    assert method.buffer == []
    method.build_batch(1, fresh(1, [0, 0]), ExpertSampler(unknown=["1a"]))
    assert ids(method.buffer) == ["1b"]
    for step in range(2, 8):  # by now it is chance
        method.build_batch(step, fresh(step, [0, 3]), ExpertSampler(unknown=[f"{step}a"]))
    assert ids(method.buffer) == ["1b"]


def test_a_batch_of_questions_without_a_solution_ends_the_run():
    method, unknown = relift(), [f"{step}{name}" for step in (1, 2, 3) for name in "abc"]
    method.build_batch(1, fresh(1, [0, 3]), ExpertSampler(unknown=unknown))
    method.build_batch(2, fresh(2, [0, 0]), ExpertSampler(unknown=unknown))
    resumed = relift()  # knows how many were asked
    resumed.restore(*method.state(), Prompt)
    for m in (method, resumed):
        m.build_batch(3, fresh(3, [3, 3]), ExpertSampler(unknown=unknown))  # none asked: three in all, B is four
        with pytest.raises(UserError, match="none of 4 prompts has an expert's solution"):
            m.build_batch(3, fresh(3, [0, 3]), ExpertSampler(unknown=unknown))
    old = relift()  # a checkpoint from before the count
    old.restore({"seen": True}, [], Prompt)
    old.build_batch(1, fresh(1, [0] * 4), ExpertSampler(unknown=["1a", "1b", "1c", "1d"]))


def test_nothing_is_asked_where_every_question_has_a_solution():
    sampler = ExpertSampler()
    relift().build_batch(1, fresh(1, [1, 8]), sampler)
    assert sampler.asked == []


# ---------------------------------------------------------------------------------------------------- the updates


def test_the_supervised_update_comes_last_and_is_one():
    batch = relift().build_batch(1, fresh(1, [0, 0, 0, 0]), ExpertSampler())
    parts = mini_batches(relift(), TRAIN, 1, 1, batch.groups)
    assert [[g.origin for g in part] for part in parts] == [[FRESH] * 2, [FRESH] * 2, [DEMONSTRATED] * 4]
    assert sorted(ids(parts[2])) == ["1a", "1b", "1c", "1d"]


def inputs(replayed, **more):
    return LossInputs(
        logprobs=torch.tensor([[0.5, 0.8], [0.25, 0.9]]).log().requires_grad_(),
        behaviour_logprobs=torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log() * (not replayed),
        advantages=torch.tensor([0.5, -0.5]) * (not replayed),
        mask=torch.tensor([[1.0, 1.0], [1.0, 0.0]]),
        replayed=torch.tensor([replayed, replayed]),
        **more,
    )


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean"])
def test_the_supervised_loss_is_the_mean_negative_log_likelihood_of_its_tokens(aggregation):
    method = relift(entropy_coef=0.0, aggregation=aggregation)
    given = inputs(True, nominal_sequences=64, nominal_tokens=3)
    loss, _ = method.loss(given)
    expected = -(torch.tensor([0.5, 0.8, 0.25]).log().sum() / 3)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    loss.backward()
    assert given.logprobs.grad.flatten().tolist() == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 0], abs=1e-6)


def test_entropy_and_kl_beside_the_supervised_loss():
    entropy = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    plain = relift(entropy_coef=0.0).loss(inputs(True))[0].item()
    # the bonus counts as in the reference's sft.entropy_coeff, a KL to the reference is on fresh responses only
    assert relift(entropy_coef=0.1).loss(inputs(True, entropy=entropy))[0].item() == pytest.approx(plain - 0.1 * 2)
    other = torch.full((2, 2), -3.0)
    held = relift(entropy_coef=0.0, kl_to="reference", kl_coef=0.5)
    assert held.loss(inputs(True, reference_logprobs=other))[0].item() == pytest.approx(plain)
    assert held.loss(inputs(False, reference_logprobs=other))[0] > relift(entropy_coef=0.0).loss(inputs(False))[0]


def test_the_policy_part_of_the_loss():
    # ratios 1 and 1.6 at advantage 1/2, 0.5 at -1/2: (-0.5 - 0.8 + 0.25) / 3; with on_policy_clip 1.2 and 0.8 stand
    assert relift(entropy_coef=0.0).loss(inputs(False))[0].item() == pytest.approx(-1.05 / 3, abs=1e-6)
    clipped, metrics = relift(entropy_coef=0.0, on_policy_clip=True).loss(inputs(False))
    assert clipped.item() == pytest.approx((-0.5 - 0.6 + 0.4) / 3, abs=1e-6)
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 3)
