"""A small model, groups of random responses and a learner, for tests that make updates by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf

from bapo import methods
from bapo.algorithm.rollouts import Group, Prompt, Samples

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bapo.engines.torch.learner import Critic, Learner

#: one update of four groups of four; a test states what it has otherwise
SECTION: dict[str, Any] = {
    "batch_size": 4,
    "mini_batch_size": 4,
    "micro_batch_size": None,
    "group_size": 4,
    "learning_rate": 1e-3,
    "betas": [0.9, 0.999],
    "weight_decay": 0.0,
    "grad_clip": 1e9,
    "warmup_updates": 0,
    "underfilled": "fewer-updates",
}

#: of a model of 2 layers and 40 words
SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "initializer_range": 0.15,
}


def model(family: str, seed: int = 3, **changes: Any) -> PreTrainedModel:
    """A model of a family of the library's in ``SHAPE``, with changes."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **changes})
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def with_drawn_biases(model: PreTrainedModel) -> PreTrainedModel:
    """Draw biases and norm weights too, since the library starts them at 0 and 1."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name or "ln_q" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def rows(prompts: Sequence[Sequence[int]], lengths: list[int], words: int = 40) -> tuple[Any, ...]:
    """(ids, starts, lengths, width, mask) of one random response of ``words`` to each prompt, padded with 0."""
    import torch

    rng = np.random.default_rng(0)
    starts = [len(prompt) for prompt in prompts]
    ids = np.zeros((len(prompts), max(s + n for s, n in zip(starts, lengths, strict=True))), dtype=np.int64)
    for row, prompt, n in zip(ids, prompts, lengths, strict=True):
        row[: len(prompt) + n] = [*prompt, *rng.integers(1, words, n)]
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.from_numpy(ids), torch.tensor(starts), torch.tensor(lengths), max(lengths), mask.float()


def llama(**changes: Any) -> PreTrainedModel:
    """A Llama; with biases the library's forward computes it, without them the fast one."""
    return model("Llama", **changes)


def tiny(seed: int) -> PreTrainedModel:
    """A Qwen2 of 24 words whose log-probabilities are far from equal."""
    shape = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    return model("Qwen2", seed, **shape, num_key_value_heads=1, initializer_range=0.3)


def groups(
    sizes: Sequence[int], vocabulary: int, lengths: tuple[int, int] = (1, 7), seed: int = 3, head: Sequence[int] = ()
) -> list[Group]:
    """Fresh groups, every other response right: random tokens of 2 and above, lengths from a half-open range.

    head: what all prompts begin with; behind it each has three random tokens or more.
    """
    from bapo.engines.shared.prompts import PromptTokens

    rng, made = np.random.default_rng(seed), []
    for n, size in enumerate(sizes):
        counts = rng.integers(*lengths, size).astype(np.int32)
        inside = np.arange(counts.max()) < counts[:, None]
        tokens = np.where(inside, rng.integers(2, vocabulary, inside.shape), 0).astype(np.int32)
        logprobs = np.where(inside, rng.normal(-np.log(vocabulary), 0.1, inside.shape), 0).astype(np.float32)
        row = PromptTokens((*head, *rng.integers(2, vocabulary, 3 + n).tolist()), "")
        samples = Samples(tokens, counts, logprobs)
        made.append(Group(Prompt(f"p{n}", row), np.arange(size) % 2, 1, 0, samples))
    return made


def learner(
    model: PreTrainedModel,
    method: dict[str, Any],
    reference: PreTrainedModel | None = None,
    critic: Critic | None = None,
    temperature: float = 1.0,
    **changes: Any,
) -> Learner:
    """Learner of a method's options over ``SECTION``, with ``changes`` of the section."""
    from bapo.engines.torch.learner import Learner

    config = {"train": SECTION | changes, "sampling": {"temperature": temperature}, "seed": 1}
    return Learner(model, reference, OmegaConf.create(config), methods.build(method, 4, seed=1), critic)
