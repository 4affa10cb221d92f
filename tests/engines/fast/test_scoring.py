"""Log-probabilities with shared prompts and without padding: the library's numbers and the library's gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support import training
from support.late import LATE
from support.training import rows

if LATE:
    import torch

    from bapo.engines.fast import scoring
    from bapo.engines.fast.layout import lay_out
    from bapo.engines.shared import models


def build(family: str = "Qwen2", **changes):
    return training.with_drawn_biases(training.model(family, 5, **{"num_key_value_heads": 4, **changes}))


A, B, C = [5, 6, 7], [8, 9, 10, 11, 12, 13], [3]
BATCHES = {
    "groups": ([A] * 3 + [B] * 3, [4, 9, 1, 7, 2, 9]),
    "shuffled": ([B, A, C, A, B, C], [3, 8, 8, 1, 1, 5]),
    "one prompt begins another": ([[5, 6], A, [5], [5, 6]], [4, 3, 2, 5]),
    "all prompts differ": ([A, B, C], [6, 6, 6]),
    "one row": ([B], [5]),
    "one token each": ([A, A, C], [1, 1, 1]),
    "responses of one row equal to another prompt": ([[5], [5, 6, 7, 8]], [6, 2]),
}


#: what a model of the usual shape has otherwise
SHAPES: list[dict[str, Any]] = [
    {"num_key_value_heads": 2},
    {"num_key_value_heads": 1},
    {"tie_word_embeddings": False},
    {"family": "Llama"},
    {"family": "Llama", "num_key_value_heads": 2, "rope_theta": 100000.0},
    {"family": "Llama", "attention_bias": False, "tie_word_embeddings": False, "num_hidden_layers": 3},
]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("name", "changes"), [*((n, {}) for n in BATCHES), *(("shuffled", c) for c in SHAPES)], ids=str
)
def test_values_and_gradients_are_the_librarys(name, changes, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    model = build(**changes).to(device)
    assert scoring.supports(model)
    ids, starts, lengths, width, mask = rows(*BATCHES[name])
    weights = torch.randn(2, *mask.shape, generator=torch.Generator().manual_seed(1)) * mask
    ids, starts, lengths, mask, weights = (t.to(device) for t in (ids, starts, lengths, mask, weights))

    expected = models.score(model, ids, starts, width, temperature=0.8, entropy=True)
    ((expected.logprobs * weights[0]).sum() + (expected.entropy * weights[1]).sum()).backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    logprobs, entropy = scoring.score(model, ids, starts, lengths, temperature=0.8, entropy=True)
    ((logprobs * weights[0]).sum() + (entropy * weights[1]).sum()).backward()

    assert logprobs.shape == entropy.shape == mask.shape
    assert ((logprobs - expected.logprobs) * mask).abs().max() < 1e-5
    assert ((entropy - expected.entropy) * mask).abs().max() < 1e-5
    for n, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[n], rtol=1e-4, atol=1e-5 * float(gradients[n].abs().max()))


def test_each_beginning_is_computed_once_and_padding_never():
    ids, starts, lengths, _, _ = rows([A] * 3 + [B] * 3, [4, 4, 1, 7, 2, 9])
    ids[1] = ids[0]  # two equal rows
    layout = lay_out(ids.numpy(), starts.numpy(), lengths.numpy())
    beginnings = {
        tuple(row[: n + 1].tolist())
        for row, end in zip(ids, (starts + lengths - 1).tolist(), strict=True)  # nothing follows the last token
        for n in range(end)
    }
    assert len(layout.word) == len(beginnings)
    assert set(layout.positions.tolist()) == set(range(6 + 8))
    assert torch.equal(layout.predictor[0], layout.predictor[1])


def test_models_that_rotate_otherwise_share_no_places():
    """Policy and reference score the same rows one after the other and share what the layout alone decides."""
    ids, starts, lengths, width, mask = rows([A, A, B], [2, 7, 4])
    slow = {"rope_type": "default", "rope_theta": 100.0}
    for model in (build(), build(rope_parameters=slow), build(num_key_value_heads=4)):
        expected = models.score(model, ids, starts, width).logprobs
        found, _ = scoring.score(model, ids, starts, lengths)
        assert ((found - expected) * mask).abs().max() < 1e-5


def test_changed_weights_are_seen():
    """By an optimiser, and of a frozen model by ``load_state_dict``."""
    model, other = build(), build()
    ids, starts, lengths, _, mask = rows([A, A, B], [2, 7, 4])

    def found():
        return scoring.score(model, ids, starts, lengths)[0] * mask

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    before = found()
    before.sum().backward()
    optimizer.step()
    after = found().detach()
    assert (after - before).abs().max() > 0.1
    model.requires_grad_(False)
    assert torch.equal(found(), after)
    model.load_state_dict(other.state_dict())
    assert torch.equal(found(), before)


def test_padding_carries_no_gradient_and_no_influence():
    model = build()
    ids, starts, lengths, _, mask = rows([A, A, B], [2, 7, 4])
    found, entropy = scoring.score(model, ids, starts, lengths)
    assert entropy is None
    filled = ids.clone()
    for row, end in enumerate((starts + lengths).tolist()):
        filled[row, end:] = 39
    other, _ = scoring.score(model, filled, starts, lengths)
    assert torch.equal(found * mask, other * mask)
    assert torch.isfinite(found).all()
    (found * mask).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_what_is_left_to_the_library():
    model = build()
    assert scoring.supports(model) and scoring.supports(model.train())
    assert not scoring.supports(build(attention_dropout=0.1))
    assert not scoring.supports(copy.deepcopy(model).double())
    assert not scoring.supports(build("Llama", attention_bias=True))  # behind the output, too
    assert not scoring.supports(build(use_sliding_window=True, sliding_window=4, max_window_layers=0))
