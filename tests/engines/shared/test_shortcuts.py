"""Without ``bapo/engines/fast`` everything works: same responses, scores and values, the library's way."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support import training
from support.late import LATE

from bapo.engines.shared import shortcut

if LATE:
    import torch

    from bapo.engines.shared import models
    from bapo.engines.shared.batch_tensors import Rows
    from bapo.engines.shared.sampling import SamplingParameters, sample
    from bapo.engines.torch.learner import values_of, with_value_head


def numbers() -> tuple[list[bool], list[list[list[int]]], np.ndarray]:
    """Which shortcuts are taken, and what a tiny model samples, scores and values."""
    model = training.model("Qwen2", initializer_range=0.3)
    parameters, keys = SamplingParameters(max_tokens=8, eos_ids=(1,)), np.array([1, 2], dtype=np.uint64)
    groups = sample(model, [[5, 6, 7], [8, 9, 10, 11]], 3, keys, 7, parameters)
    ids, starts, lengths = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([3]), torch.tensor([2])
    with torch.no_grad():
        scored = models.score(model, ids, starts, 2, entropy=True, lengths=lengths)
        critic = with_value_head(model)
        torch.nn.init.normal_(critic.get_output_embeddings().weight)
        values = values_of(critic, Rows(ids, starts, lengths, torch.zeros(1, 2)))
    taken = [shortcut(part, model) is not None for part in ("sampler", "scoring")]
    return taken, [g.tokens.tolist() for g in groups], torch.cat([scored.logprobs, scored.entropy, values]).numpy()


def test_the_folder_of_the_fast_forward_can_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, tokens, expected = numbers()
    monkeypatch.setitem(sys.modules, "bapo.engines.fast", None)
    without, same, found = numbers()
    assert fast == [True, True] and without == [False, False]
    assert same == tokens
    np.testing.assert_allclose(found, expected, atol=1e-5)
