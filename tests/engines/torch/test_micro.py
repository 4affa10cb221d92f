"""Micro-batches: the whole mini-batch's gradient, of the hand-written forward and of the library's."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from omegaconf import OmegaConf
from support.late import LATE
from support.training import SECTION, responses

from bapo import methods
from bapo.algorithm.rollouts import FRESH, REEVALUATED, REPLAYED, Group, Prompt, Samples
from bapo.engines.shared import shortcut

if LATE:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from bapo.engines.shared.prompts import Row
    from bapo.engines.torch.learner import Learner


VOCABULARY, LAYERS, HEAD = 400, 6, [7, 3, 9, 4, 4, 8]
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
        tokens, lengths = responses(rng, size, (1, 10), VOCABULARY)
        logprobs = np.where(tokens > 0, -6.0 + rng.normal(0, 0.1, tokens.shape), 0).astype(np.float32)
        row = Row((*HEAD, *rng.integers(2, VOCABULARY, 2 + 3 * n).tolist()), "")
        origin = (FRESH, FRESH, REEVALUATED, REPLAYED)[n % 4]
        group = Group(Prompt(f"p{n}", row), np.arange(size) % 2, 1, 0, Samples(tokens, lengths, logprobs))
        made.append(replace(group, origin=origin))
    return made


def learner_of(method: tuple[str, dict], fast: bool, **changes) -> Learner:
    model, config = llama(fast), {"train": TRAIN | changes, "sampling": {"temperature": 0.9}, "seed": 1}
    built = methods.build({"algorithm": method[0], **method[1]}, 4, seed=1)
    reference = copy.deepcopy(model).requires_grad_(False)
    return Learner(model, reference, OmegaConf.create(config), built)


def gradients(learner: Learner, groups: list[Group]) -> dict[str, torch.Tensor]:
    learner.update(1, groups)
    assert learner.updates == 1
    return {name: p.grad for name, p in learner.model.named_parameters()}


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "library"])
@pytest.mark.parametrize("name", METHODS)
def test_the_gradient_is_that_of_the_whole_mini_batch(name: str, fast: bool) -> None:
    """Also of a mini-batch that is not full, whose denominators are nominal."""
    groups = groups_of((4, 4, 4, 3))
    whole, cut = (learner_of(METHODS[name], fast, micro_batch_size=size) for size in (None, 4))
    assert [len(list(one.micro_batches(groups))) for one in (whole, cut)] == [1, 4]
    expected = gradients(whole, groups)
    for key, found in gradients(cut, groups).items():
        largest = float(expected[key].abs().max())
        assert largest > 0
        torch.testing.assert_close(found, expected[key], rtol=1e-4, atol=2e-6 * max(1.0, largest), msg=key)
