"""What is recorded of the responses of a mini-batch, by their origin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.late import LATE

from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import DEMONSTRATED, FRESH, REPLAYED, Group, Prompt, Samples

if LATE:
    import torch

    from bapo.engines.shared.loss_inputs import origin_numbers, terms_by_origin
    from bapo.engines.shared.records import effective_sample_size
    from bapo.engines.torch.learner import tails


def test_the_terms_of_the_bound_are_those_of_whole_responses() -> None:
    """TV, the surrogate of eq. 22, clips and ratios by origin: three responses with whole ratios 2, 1/2 and 1 (X3)."""
    logprobs = torch.log(torch.tensor([[2.0, 1.0], [0.25, 2.0], [1.0, 7.0], [5.0, 5.0]]))
    mask = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])  # the third response has one token
    advantages, clipped = torch.tensor([1.0, -3.0, 0.5, 9.0]), torch.tensor([0.5, 0.25, 1.0, 1.0])
    origins = torch.tensor([0, 0, 2, 3])  # the last is an expert's, which no record covers
    inputs = LossInputs(logprobs, torch.zeros(4, 2), advantages, mask, origins == 2, torch.ones(4))
    terms = {name: values.tolist() for name, values in terms_by_origin(inputs, origins, clipped).items()}
    # |2 - 1| / 2 and |1/2 - 1| / 2; 2 * 1 and 1/2 * -3; the replayed one: 0 and 1 * 0.5
    expected = {"tv_x1": [0.5, 0.25], "tv_x3": [0.0], "surrogate_x1": [2.0, -1.5], "surrogate_x3": [0.5]}
    expected |= {"clipped_x1": [0.5, 0.25], "clipped_x3": [1.0], "ratio_x1": [2.0, 0.5], "ratio_x3": [1.0]}
    # by the sign of the advantage: 0.5 above and 0.25 below
    expected |= {"clipped_upper_x1": [0.5, 0.0], "clipped_upper_x3": [1.0]}
    expected |= {"clipped_lower_x1": [0.0, 0.25], "clipped_lower_x3": [0.0]}
    expected |= {"ratio_squared_x1": [4.0, 0.25], "ratio_squared_x3": [1.0]}
    nothing = {name.replace("_x1", "_x2"): [] for name in expected if name.endswith("_x1")}
    assert terms.keys() == expected.keys() | nothing.keys()
    for name, values in (expected | nothing).items():  # the last bit of exp and log differs between processors
        assert terms[name] == pytest.approx(values), name
    means = {name: float(np.mean(values)) for name, values in terms.items() if values}
    assert effective_sample_size(means, 1) == pytest.approx(2.5**2 / (2 * 4.25))
    assert effective_sample_size(means, 3) == pytest.approx(1.0) and math.isnan(effective_sample_size(means, 2))
    # of 2 and 1/2 the 99th percentile lies 1% of their distance below the greater
    ratios = {name: [np.array(terms[name])] for name in ("ratio_x1", "ratio_x3")}
    tail = {"ratio_p99_x1": 1.985, "ratio_max_x1": 2.0, "ratio_p99_x3": 1.0, "ratio_max_x3": 1.0}
    assert tails(ratios) == pytest.approx(tail)
    inputs.advantages = advantages[:, None].expand(4, 2)  # of single tokens, as a critic gives them
    names = {name.rpartition("_")[0] for name in terms_by_origin(inputs, origins, clipped)}
    assert names == {"tv", "clipped", "ratio", "ratio_squared"}


def test_an_experts_response_and_another_policys_have_no_origin() -> None:
    samples = Samples(np.ones((2, 1), dtype=np.int32), np.ones(2, dtype=np.int32), np.zeros((2, 1), dtype=np.float32))
    group = Group(Prompt("a"), np.array([0.0, 1.0]), 1, 0, samples)
    numbers = {origin: origin_numbers(group.as_origin(origin)).tolist() for origin in (FRESH, REPLAYED, DEMONSTRATED)}
    assert numbers == {FRESH: [0, 0], REPLAYED: [2, 2], DEMONSTRATED: [3, 3]}
    group.off_policy = np.array([False, True])
    assert origin_numbers(group).tolist() == [0, 3]
