"""What the step samplers of both engines share: origins, policies and what a step is charged, worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.late import LATE
from support.scripted import build

from bapo.algorithm.rollouts import FRESH, REEVALUATED, Group, Prompt, Samples
from bapo.engines.shared.costs import StepCosts

if LATE:
    from bapo.engines.shared.prompts import PromptStream, PromptTokens
    from bapo.engines.shared.sampling import SamplingParameters
    from bapo.engines.shared.step_sampler import SamplingSetup, StepSampler


def group_of(prompt: Prompt, lengths: Sequence[int], version: int = 0, origin: str = FRESH) -> Group:
    size, width = len(lengths), max(lengths)
    samples = Samples(
        np.ones((size, width), np.int32), np.array(lengths, np.int32), np.zeros((size, width), np.float32)
    )
    return Group(prompt, np.zeros(size), 1, version, samples, origin)


if LATE:

    class ThreeTokens(StepSampler):
        """An engine whose responses have three tokens, and grow by two."""

        def _generate(self, prompts, group_size, purpose, version, origin):
            self.purpose = purpose
            return [group_of(p, [3] * group_size, version, origin) for p in prompts]

        def _continue(self, groups, index, purpose):
            self.purpose = purpose
            lengths = [g.samples.lengths.copy() for g in groups]
            for n, i in index:
                lengths[n][i] += 2
            return [replace(group_of(g.prompt, n), unfinished=[]) for g, n in zip(groups, lengths, strict=True)]

        def _score(self, groups):
            return [g.samples.logprobs for g in groups], 10 * len(groups)

        def _prompt_tokens(self, prompt):
            return len(prompt.row.tokens)

        def _with_tokens(self, prompt):
            return prompt


@pytest.fixture
def prompts() -> list[Prompt]:
    """Four prompts of one to four tokens."""
    return [Prompt(f"p{n}", PromptTokens((5,) * n, "")) for n in range(1, 5)]


def sampler(prompts: list[Prompt], step: int = 3, embedder: object = None) -> ThreeTokens:
    stream = PromptStream(prompts, seed=1)
    return ThreeTokens(SamplingSetup(stream, None, None, SamplingParameters(), 2, lambda: embedder), step, None)


def test_responses_are_counted_by_the_origin_that_the_method_names(prompts: list[Prompt]) -> None:
    one = sampler(prompts)
    one.rollout_version = 1
    drawn = one.draw(2)
    (first,) = one.regenerate(drawn[:1], FRESH)
    assert (first.origin, first.version, first.size, one.purpose) == (FRESH, 2, 2, ("regenerate", 1))
    (second,) = one.regenerate(drawn[:1], REEVALUATED, policy="rollout")
    assert (second.origin, second.version, second.size, one.purpose) == (REEVALUATED, 1, 2, ("regenerate", 2))
    again = one.regenerate(drawn, REEVALUATED)
    assert {g.origin for g in again} == {REEVALUATED}
    assert one.regenerate([], REEVALUATED) == []
    assert (one.costs.fresh_rollouts, one.costs.regenerated_rollouts) == (2, 2 + 4)
    assert one.costs.generated_tokens == 3 * 8
    # one prefill a prompt, whatever the number of responses
    assert one.costs.prompt_tokens == 3 * len(drawn[0].row.tokens) + len(drawn[1].row.tokens)


def test_what_was_there_before_is_read_again(prompts: list[Prompt]) -> None:
    """Responses of 3, 1 and 2 tokens: two of one prompt of three tokens go on, one of another with four."""
    one = sampler(prompts)
    groups = [group_of(prompts[2], [3, 1]), group_of(prompts[3], [2, 9]), group_of(prompts[0], [4])]
    groups[0].unfinished, groups[1].unfinished = np.array([True, True]), np.array([True, False])
    resumed = one.resume(groups)
    assert [g.samples.lengths.tolist() for g in resumed] == [[5, 3], [4, 9], [4]]
    assert one.costs == StepCosts(generated_tokens=3 * 2, prompt_tokens=(3 + 3 + 4) + (3 + 1 + 2))


def test_embeddings_are_paid_for_once_and_in_the_first_step_of_a_run(prompts: list[Prompt]) -> None:
    class Vectors:
        tokens = 70

        def __call__(self, asked: list[Prompt]) -> np.ndarray:
            return np.zeros((len(asked), 1))

    first, later = (sampler(prompts, step, Vectors()) for step in (1, 2))
    for one, paid in ((first, 70), (later, 0)):
        assert len(one.embed(prompts)) == len(one.embed(prompts)) == 4
        assert one.costs.forward_tokens == paid
    assert len(first.score([group_of(prompts[0], [1])] * 2)) == 2 and first.score([]) == []
    assert first.costs.forward_tokens == 70 + 20


@pytest.mark.parametrize(("options", "passes"), [({"kl_coef": 0.0}, 1), ({"kl_coef": 0.1}, 2)])
def test_every_policy_that_the_loss_reads_goes_over_the_trained_tokens(options: dict, passes: int) -> None:
    costs = StepCosts(forward_tokens=7)
    costs.add_update(build("grpo", 8, **options), 100, 30, 40, 5)
    assert (costs.trained_tokens, costs.forward_tokens) == (100, 7 + 100 * passes + 30)
    assert (costs.critic_tokens, costs.critic_parameters) == (40, 5)
