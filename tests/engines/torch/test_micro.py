"""Micro-batches cut by memory and recomputed layers: the whole mini-batch's gradient, in less memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from omegaconf import OmegaConf
from support.late import LATE
from support.training import SECTION

from bapo import methods
from bapo.algorithm.rollouts import FRESH, REEVALUATED, REPLAYED, Group, Prompt, Samples
from bapo.engines.shared.shortcuts import shortcut
from bapo.errors import UserError

if LATE:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from bapo.engines.fast import scoring
    from bapo.engines.shared import models
    from bapo.engines.shared.prompts import Row
    from bapo.engines.shared.rows import Rows, collate, index_of
    from bapo.engines.torch import micro
    from bapo.engines.torch.learner import Learner


VOCABULARY, LAYERS, HEAD = 400, 6, [7, 3, 9, 4, 4, 8]
#: gigabytes of the hand-written forward and of the library's, into which a few responses fit
SMALL = {True: 5e-4, False: 2.5e-3}
TRAIN = SECTION | {"betas": [0.9, 0.99]}
TERMS = {"kl_coef": 0.05, "entropy_coef": 0.01}
METHODS = {
    "grpo, sequence-mean": ("grpo", TERMS),
    "grpo, token-mean": ("grpo", TERMS | {"aggregation": "token-mean"}),
    "dapo": ("dapo", {}),
    "gspo": ("gspo", {}),
    "bapo": ("bapo", TERMS),
    "bapo, pi_k": ("bapo_code", TERMS),
}


def llama(fast: bool = True) -> LlamaForCausalLM:
    """With biases the library's forward computes it, without them the hand-written one."""
    torch.manual_seed(3)
    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": LAYERS}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True, "pad_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(**shape, initializer_range=0.1, attention_bias=not fast)).eval()
    assert (shortcut("scoring", model) is not None) == fast
    return model


def groups_of(sizes: tuple[int, ...] = (4, 4, 4, 4)) -> list[Group]:
    """Responses of 1 to 9 tokens behind prompts with a common head; fresh, re-evaluated and replayed groups."""
    rng, made = np.random.default_rng(3), []
    for n, size in enumerate(sizes):
        lengths = rng.integers(1, 10, size).astype(np.int32)
        tokens = np.zeros((size, int(lengths.max())), dtype=np.int32)
        for i, length in enumerate(lengths):
            tokens[i, :length] = rng.integers(2, VOCABULARY, length)
        logprobs = np.where(tokens > 0, -6.0 + rng.normal(0, 0.1, tokens.shape), 0).astype(np.float32)
        row = Row((*HEAD, *rng.integers(2, VOCABULARY, 2 + 3 * n).tolist()), "")
        origin = (FRESH, FRESH, REEVALUATED, REPLAYED)[n % 4]
        group = Group(Prompt(f"p{n}", row), np.arange(size) % 2, 1, 0, Samples(tokens, lengths, logprobs))
        made.append(replace(group, origin=origin))
    return made


def learner_of(method: tuple[str, dict], fast: bool, kind: str, **changes) -> Learner:
    model = llama(fast)
    config = {
        "model": {"kind": kind},
        "train": TRAIN | {"micro_batch_memory": SMALL[fast]} | changes,
        "sampling": {"temperature": 0.9},
        "seed": 1,
    }
    built = methods.build({"algorithm": method[0], **method[1]}, 4, seed=1)
    reference = copy.deepcopy(model).requires_grad_(False)
    return Learner(model, reference, 0, OmegaConf.create(config), built)


def gradients(learner: Learner, groups: list[Group]) -> dict[str, torch.Tensor]:
    learner.update(1, groups)
    assert learner.updates == 1
    return {name: p.grad for name, p in learner.model.named_parameters()}


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "library"])
@pytest.mark.parametrize("name", METHODS)
def test_the_gradient_is_that_of_the_whole_mini_batch(name: str, fast: bool) -> None:
    """Also of a mini-batch that is not full, whose denominators are nominal; and with recomputed layers."""
    groups = groups_of((4, 4, 4, 3))
    whole = learner_of(METHODS[name], fast, "scratch")
    assert len(list(whole.micro_batches(groups))) == 1
    expected = gradients(whole, groups)
    for recomputed in (False, True):
        cut = learner_of(METHODS[name], fast, "pretrained", gradient_checkpointing=recomputed)
        if not recomputed:
            assert len(list(cut.micro_batches(groups))) > 2
        for key, found in gradients(cut, groups).items():
            largest = float(expected[key].abs().max())
            assert largest > 0
            torch.testing.assert_close(found, expected[key], rtol=1e-4, atol=2e-6 * max(1.0, largest), msg=key)


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "library"])
def test_blocks_hold_every_response_once_and_fit(fast: bool) -> None:
    model, groups = llama(fast), groups_of((8, 8, 8, 8))
    blocks = list(micro.fitting(model, groups, SMALL[fast], 0, "cpu"))
    assert sorted(pair for rows in blocks for pair in rows.index) == index_of(groups)
    assert len(blocks) > 2
    needed = [kept_bytes(model, rows) for rows in blocks]
    assert max(needed) <= SMALL[fast] * micro.GIGABYTE
    # room is not wasted: on the mean a block takes a third of it at least
    assert np.mean(needed) > SMALL[fast] * micro.GIGABYTE / 3
    single = list(micro.fitting(model, groups, 1e-9, 0, "cpu"))
    assert [len(rows.index) for rows in single] == [1] * 32  # less than one response is not to be had
    assert list(micro.fitting(model, [], SMALL, 0, "cpu")) == []


def test_blocks_of_the_fast_forward_keep_what_begins_alike_together() -> None:
    model, groups = llama(), groups_of((8, 8, 8, 8))
    blocks = list(micro.fitting(model, groups, SMALL[True], 0, "cpu"))
    assert all(len({g for g, _ in rows.index}) <= 2 for rows in blocks)


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "library"])
def test_more_fits_where_no_gradient_is_wanted(fast: bool) -> None:
    model, groups = llama(fast), groups_of((8, 8, 8, 8))
    with_gradient, without = (len(list(micro.fitting(model, groups, SMALL[fast], 0, "cpu", g))) for g in (True, False))
    assert without < with_gradient


def test_models_from_scratch_and_sizes_that_are_asked_for_stay() -> None:
    groups = groups_of()
    for kind, size, blocks in (("scratch", None, 1), ("scratch", 5, 4), ("pretrained", 5, 4)):
        one = learner_of(METHODS["grpo, sequence-mean"], True, kind, micro_batch_size=size)
        assert len(list(one.micro_batches(groups))) == blocks


def kept_bytes(model: LlamaForCausalLM, rows: Rows) -> int:
    if shortcut("scoring", model) is None:
        return micro._kept_bytes(model, rows)
    return scoring.kept_bytes(model, rows.ids, rows.starts, rows.lengths, rows.width)


@contextmanager
def kept_by_autograd(model: LlamaForCausalLM) -> Iterator[dict[int, int]]:
    """Collect the bytes by storage of what autograd saves, weights aside, and of recomputed layers' inputs."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    def note_input(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        note(inputs[0])

    hooks = [layer.register_forward_pre_hook(note_input) for layer in model.model.layers]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield found
    for hook in hooks:
        hook.remove()


def score(model: LlamaForCausalLM, rows: Rows, fast: bool) -> models.Scored:
    return models.score(model, rows.ids, rows.starts, rows.width, 0.9, True, rows.lengths if fast else None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recomputed_layers_of_the_library(dtype: str) -> None:
    """The same gradients, a third of what is kept at most, and never more than what was estimated."""
    groups, found = groups_of((8, 8, 8, 8)), []
    for recomputed in (False, True):
        model = llama(fast=False).to(getattr(torch, dtype))
        if recomputed:
            micro.recompute_layers(model)
        rows = collate(groups, index_of(groups), 0, "cpu")
        with kept_by_autograd(model) as kept:
            scored = score(model, rows, fast=False)
        ((scored.logprobs + 0.1 * scored.entropy) * rows.mask).sum().backward()
        estimated = micro._kept_bytes(model, rows)
        found.append((sum(kept.values()), estimated, [p.grad for p in model.parameters()]))
        assert (0 if recomputed else 0.6 * estimated) < found[-1][0] <= estimated
    (plain, _, expected), (less, _, same) = found
    logits = 8 * 32 * 9 * VOCABULARY  # both keep the log-probabilities and the probabilities
    assert less - logits < (plain - logits) / 3
    for one, other in zip(expected, same, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6 * float(one.abs().max()))


def test_recomputed_layers_of_the_fast_forward() -> None:
    """The same gradients bit for bit, a third of what is kept at most; what is counted is what is there."""
    groups, found = groups_of((8, 8, 8, 8)), []
    for recomputed in (False, True):
        model = llama()
        if recomputed:
            micro.recompute_layers(model)
        assert scoring.supports(model)
        rows = collate(groups, index_of(groups), 0, "cpu")
        scored = score(model, rows, fast=True)
        head = scored.logprobs.grad_fn
        layers = head.next_functions[0][0].state.kept  # _Hidden, the first input of _Head that has a gradient
        kept: dict[int, int] = {}
        for part in layers:
            tensors = [part] if isinstance(part, torch.Tensor) else [*vars(part).values(), *vars(part.rows).values()]
            for tensor in tensors:
                if isinstance(tensor, torch.Tensor):
                    kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        size, counted = sum(kept.values()), kept_bytes(model, rows) - 8 * len(head.state[2]) * VOCABULARY
        ((scored.logprobs + 0.1 * scored.entropy) * rows.mask).sum().backward()
        found.append((size, counted, [p.grad for p in model.parameters()]))
    (plain, counted, expected), (less, counted_less, same) = found
    assert 0.7 * counted < plain <= 1.02 * counted
    assert less < plain / 3 and less < counted_less < counted / 2
    assert all(torch.equal(one, other) for one, other in zip(expected, same, strict=True))


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(UserError, match=r"gradient_checkpointing=true: Linear has no layers that can"):
        micro.recompute_layers(torch.nn.Linear(2, 2))


def test_sampling_leaves_recomputed_layers_as_they_are() -> None:
    from bapo.engines.shared.sampling import SamplingParameters, sample

    drawn = []
    for recomputed in (False, True):
        model = llama(fast=False)
        if recomputed:
            micro.recompute_layers(model)
        parameters = SamplingParameters(max_tokens=5, eos_ids=(1,))
        (samples,) = sample(model, [HEAD], 4, np.zeros(1, dtype=np.uint64), 1, parameters)
        drawn.append(samples.tokens.tolist())
        inner = [m for layer in model.model.layers for m in layer.modules() if m is not layer]
        assert all(layer.training == recomputed for layer in model.model.layers) and not any(m.training for m in inner)
    assert drawn[0] == drawn[1]
