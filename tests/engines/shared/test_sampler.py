"""The sampler against a plain loop over the library's forward, and the promises in its docstring."""

from __future__ import annotations

import copy
import math
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.late import LATE
from support.training import SHAPE

from bapo.algorithm.rollouts import Samples
from bapo.errors import UserError
from bapo.seeds import key64, uniforms

if LATE:
    import torch
    import transformers as hf
    from torch import nn

    from bapo.engines.fast import sampler as by_hand
    from bapo.engines.shared.sampling import SamplingParameters, cut_off, sample, sample_tokens

    PARAMETERS = SamplingParameters(max_tokens=9, eos_ids=(1, 2, 30, 31))


if TYPE_CHECKING:
    from transformers import PreTrainedModel
GROUPED = {**SHAPE, "initializer_range": 0.3, "max_position_embeddings": 64, "tie_word_embeddings": False}
GPT2 = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.3}
ENDS = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
CONFIGS = {
    "qwen2": lambda: hf.Qwen2Config(**{**GROUPED, "tie_word_embeddings": True}),
    "llama": lambda: hf.LlamaConfig(**GROUPED),
    "gpt2": lambda: hf.GPT2Config(**GPT2, **ENDS),
    # masks from the attention mask alone; a window shorter than the prompts
    "bloom": lambda: hf.BloomConfig(vocab_size=40, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3, **ENDS),
    "mistral": lambda: hf.MistralConfig(**GROUPED, sliding_window=4),
}
#: lengths 3, 6, 1, 3, 8; a few tokens end a response, so that random weights end some early
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [3], [4, 4, 4], [20, 21, 22, 23, 24, 25, 26, 27]]
KEYS = np.array([key64("prompt", i) for i in range(len(PROMPTS))], dtype=np.uint64)
KEY = key64(1, "rollout", 3)


def build(name: str, **changes) -> PreTrainedModel:
    config = CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(3)
    return hf.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module")
def qwen2() -> PreTrainedModel:
    return build("qwen2")


def rows(groups) -> list[list[tuple[list[int], list[float]]]]:
    """(tokens, logprobs) of every response, without the padding."""
    return [[(g.tokens[i, :n].tolist(), g.logprobs[i, :n].tolist()) for i, n in enumerate(g.lengths)] for g in groups]


def assert_same(found, expected, tolerance: float = 1e-5) -> None:
    assert [[tokens for tokens, _ in g] for g in found] == [[tokens for tokens, _ in g] for g in expected]
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        np.testing.assert_allclose(one[1], other[1], atol=tolerance)


def filtered(logits: np.ndarray, parameters: SamplingParameters) -> np.ndarray:
    """float64 probabilities after temperature, top_k and top_p, written as their definitions say."""
    p = np.exp((logits - logits.max()) / parameters.temperature)
    order = np.argsort(-p, kind="stable")
    if parameters.top_k > 0:
        p[order[parameters.top_k :]] = 0
    p /= p.sum()
    kept, mass = [], 0.0
    for token in order:
        kept.append(token)
        mass += p[token]
        if mass >= parameters.top_p:
            break
    p[np.setdiff1d(np.arange(len(p)), kept)] = 0
    return p / p.sum()


def plain_loop(model, parameters=None, count: int = 3):
    """One sequence at a time, the whole of it through the model for each token, no cache."""
    parameters, result = parameters or PARAMETERS, []
    for prompt, prompt_key in zip(PROMPTS, KEYS, strict=True):
        group = []
        for number in range(count):
            u = uniforms(KEY, np.array([prompt_key]), np.array([number]), parameters.max_tokens)[0]
            tokens, logprobs = [], []
            while len(tokens) < parameters.max_tokens and not set(tokens[-1:]) & set(parameters.eos_ids):
                with torch.no_grad():
                    logits = model(torch.tensor([list(prompt) + tokens])).logits[0, -1].double().numpy()
                p = filtered(logits, parameters)
                token = int(np.searchsorted(p.cumsum(), u[len(tokens)], side="right"))
                tokens.append(token)
                logprobs.append(float(np.log(p[token])))
            group.append((tokens, logprobs))
        result.append(group)
    return result


@pytest.mark.parametrize("name", CONFIGS)
def test_any_architecture_gives_what_a_plain_loop_gives(name):
    model = build(name)
    expected = plain_loop(model)
    lengths = {len(tokens) for group in expected for tokens, _ in group}
    assert len(lengths) > 2  # responses end at different tokens, so rows were dropped on the way
    assert_same(rows(sample(model, PROMPTS, 3, KEYS, KEY, PARAMETERS, fast=False)), expected)
    if name in ("qwen2", "llama"):
        assert by_hand.supports(model)
        assert_same(rows(sample(model, PROMPTS, 3, KEYS, KEY, PARAMETERS)), expected)


def test_a_model_without_a_cache_never_reads_padding():
    """It may take a mask and positions, but each of its calls gets whole rows, and those alone."""

    class Uncached(hf.GPT2LMHeadModel):
        def forward(self, input_ids, attention_mask=None, position_ids=None, return_dict=True):
            return super().forward(input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False)

    torch.manual_seed(3)
    model = Uncached(CONFIGS["gpt2"]()).eval()
    assert_same(rows(sample(model, PROMPTS, 3, KEYS, KEY, PARAMETERS)), plain_loop(model))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{"temperature": 0.6}, {"top_k": 5}, {"top_k": 99}, {"top_p": 0.7}, {"temperature": 2, "top_k": 12, "top_p": 0.9}],
    ids=str,
)
def test_temperature_and_filters(qwen2, changes, fast):
    parameters = SamplingParameters(max_tokens=6, eos_ids=(1, 2), **changes)
    found = rows(sample(qwen2, PROMPTS, 3, KEYS, KEY, parameters, fast=fast))
    assert_same(found, plain_loop(qwen2, parameters))


@pytest.mark.parametrize("name", ["qwen2", "llama"])
@pytest.mark.parametrize("large", [False, True])
def test_prompts_with_a_common_beginning_give_the_same(name, large, monkeypatch):
    """Few-shot prompts: what all begin with is one row, whatever follows it and however many tokens there are."""
    if large:  # the first layer computes instead of looking up
        monkeypatch.setattr(by_hand, "_LOOKED_UP", 0)
    model = build(name, max_position_embeddings=128)
    head = torch.randint(3, 40, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    for prompts in ([[*head, *p] for p in PROMPTS], [[*head, 9, p[0]] for p in PROMPTS]):
        found = sample(model, prompts, 3, KEYS, KEY, PARAMETERS)
        assert by_hand.common_beginning(prompts) >= 40
        assert_same(rows(found), rows(sample(model, prompts, 3, KEYS, KEY, PARAMETERS, fast=False)), 1e-4)


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4}, {"num_key_value_heads": 1}], ids=str)
def test_hand_written_logits_are_the_librarys(changes):
    """Teacher-forced, prompts of different lengths, rows dropped in the middle, past the first width of attention."""
    model = build("qwen2", **changes, initializer_range=0.15)  # logits up to 3: float rounding stays below 1e-5
    tokens, group, steps = torch.randint(3, 40, (10, 40)), 2, 40
    with torch.inference_mode():
        decoder = by_hand.HandDecoder(model, steps + 1)
        logits = decoder.prefill(PROMPTS, group)
        for i, prompt in enumerate(PROMPTS):
            assert (model(torch.tensor([prompt])).logits[0, -1] - logits[i]).abs().max() < 1e-5
        decoder.branch(np.repeat(np.arange(5), group), np.arange(10), 10)
        sequences = [list(PROMPTS[row // group]) for row in range(10)]
        for t in range(steps):
            if t == 5:  # drop rows 0, 3 and 4: the last rows take their places
                decoder.branch(np.array([7, 8, 9]), np.array([0, 3, 4]), 7)
                for hole, mover in ((0, 7), (3, 8), (4, 9)):
                    sequences[hole], tokens[hole] = sequences[mover], tokens[mover]
                sequences, tokens = sequences[:7], tokens[:7]
            logits = decoder.step(tokens[:, t])
            for row, sequence in enumerate(sequences):
                sequence.append(int(tokens[row, t]))
                if t in (0, 4, 5, 6, 38, 39):
                    expected = model(torch.tensor([sequence])).logits[0, -1]
                    assert (expected - logits[row]).abs().max() < 1e-5, (t, row)


@pytest.mark.parametrize("fast", [True, False])
def test_order_and_batch_size_do_not_matter(qwen2, fast):
    expected = rows(sample(qwen2, PROMPTS, 4, KEYS, KEY, PARAMETERS, fast=fast))
    order = [3, 0, 4, 2, 1]
    shuffled = sample(qwen2, [PROMPTS[i] for i in order], 4, KEYS[order], KEY, PARAMETERS, fast=fast)
    assert_same(rows(shuffled), [expected[i] for i in order])
    for max_rows in (1, 3, 4, 9):
        assert_same(rows(sample(qwen2, PROMPTS, 4, KEYS, KEY, PARAMETERS, max_rows=max_rows, fast=fast)), expected)
    for i in range(len(PROMPTS)):
        alone = sample(qwen2, PROMPTS[i : i + 1], 4, KEYS[i : i + 1], KEY, PARAMETERS, fast=fast)
        assert_same(rows(alone), expected[i : i + 1])


def test_a_larger_group_only_appends(qwen2):
    small = rows(sample(qwen2, PROMPTS, 8, KEYS, KEY, PARAMETERS))
    large = rows(sample(qwen2, PROMPTS, 32, KEYS, KEY, PARAMETERS))
    rest = rows(sample(qwen2, PROMPTS, 24, KEYS, KEY, PARAMETERS, first_sample=8))
    assert_same([g[:8] for g in large], small)
    assert_same([g[8:] for g in large], rest)


@pytest.mark.parametrize(("name", "fast"), [("qwen2", True), ("qwen2", False), ("mistral", False)])
def test_responses_go_on_from_their_beginnings(name, fast):
    """As if the beginning were part of the prompt, each with its own number; only what is new comes back."""
    model, begun = build(name), [[9, 30], [], [7, 8, 9, 1], [4], [6, 6]]
    numbers = [3, 0, 2, 2, 7]
    whole = [p + b for p, b in zip(PROMPTS, begun, strict=True)]
    expected = [
        rows(sample(model, whole[i : i + 1], 8, KEYS[i : i + 1], KEY, PARAMETERS, fast=False))[0][number]
        for i, number in enumerate(numbers)
    ]
    found = sample(model, PROMPTS, 1, KEYS, KEY, PARAMETERS, first_sample=numbers, beginnings=begun, fast=fast)
    assert_same(rows(found), [[e] for e in expected])
    with pytest.raises(UserError, match=r"69 tokens.* 64"):
        sample(build("qwen2"), PROMPTS, 1, KEYS, KEY, PARAMETERS, beginnings=[[], [], [5] * 59, [], []])


def test_the_key_and_the_prompt_keys_matter_and_repetition_gives_the_same_bits(qwen2):
    first, again = (sample(qwen2, PROMPTS, 8, KEYS, KEY, PARAMETERS) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert (one.tokens == other.tokens).all() and (one.logprobs == other.logprobs).all()
    assert rows(first) != rows(sample(qwen2, PROMPTS, 8, KEYS, KEY + 1, PARAMETERS))
    same_prompt = sample(qwen2, [PROMPTS[0]] * 2, 8, KEYS[:2], KEY, PARAMETERS)
    assert_same(rows(same_prompt)[:1], rows(first)[:1])
    assert [t for t, _ in rows(same_prompt)[1]] != [t for t, _ in rows(first)[0]]


@pytest.mark.parametrize("max_rows", [1024, 3])
def test_lengths_ends_and_padding(qwen2, max_rows):
    groups = sample(qwen2, PROMPTS, 8, KEYS, KEY, PARAMETERS, max_rows=max_rows)
    ended = 0
    for group in groups:
        assert (group.tokens.dtype, group.lengths.dtype, group.logprobs.dtype) == (np.int32, np.int32, np.float32)
        assert group.tokens.shape == group.logprobs.shape == (8, group.lengths.max())
        for tokens, n, logprobs in zip(group.tokens, group.lengths, group.logprobs, strict=True):
            is_end = np.isin(tokens[:n], PARAMETERS.eos_ids)
            assert not is_end[:-1].any()
            assert is_end[-1] or n == 9
            ended += is_end[-1]
            assert (tokens[n:] == 0).all() and (logprobs[n:] == 0).all()
            assert (logprobs[:n] < 0).all()
    assert 8 < ended < 40


def test_one_token_and_no_end_token(qwen2):
    one = sample(qwen2, PROMPTS, 2, KEYS, KEY, SamplingParameters(max_tokens=1, eos_ids=(1,)))
    assert all(g.tokens.shape == (2, 1) and g.lengths.tolist() == [1, 1] for g in one)
    endless = sample(qwen2, PROMPTS, 2, KEYS, KEY, SamplingParameters(max_tokens=7, eos_ids=()))
    assert all(g.lengths.tolist() == [7, 7] for g in endless)
    assert sample(qwen2, [], 2, KEYS[:0], KEY, PARAMETERS) == []


def test_weights_are_left_as_they_were_and_dropout_is_off(qwen2):
    dropping = build("gpt2", resid_pdrop=0.5, embd_pdrop=0.5)
    expected = rows(sample(dropping, PROMPTS, 2, KEYS, KEY, PARAMETERS))
    assert_same(rows(sample(dropping.train(), PROMPTS, 2, KEYS, KEY, PARAMETERS)), expected)
    model = copy.deepcopy(qwen2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    sample(model, PROMPTS, 2, KEYS, KEY, PARAMETERS)
    sample(model, PROMPTS, 2, KEYS, KEY, PARAMETERS, fast=False)
    assert all((before[k] == v).all() for k, v in model.state_dict().items())
    model(torch.tensor(PROMPTS[:1])).logits.sum().backward()  # nothing in it became an inference tensor
    assert all(p.grad is not None for p in model.parameters())


def test_tokens_of_probability_zero_are_never_drawn():
    """Also for the smallest and the greatest number that `seeds.uniforms` can give, and with zeros at both ends."""
    logits = torch.full((3, 6), -torch.inf)
    logits[:, [1, 4]] = torch.tensor([0.0, 1.0])
    logits[2, 4] = -torch.inf
    edges = [2.0**-24, 1 - 2.0**-24]
    for u in [*edges, *np.linspace(0.01, 0.99, 50)]:
        tokens, probabilities = sample_tokens(logits, torch.full((3,), u), PARAMETERS, torch.arange(3))
        assert tokens[2] == 1 and probabilities[2] == 1
        expected = 1 if u < 1 / (1 + np.e) else 4
        assert tokens[:2].tolist() == [expected] * 2
    many = torch.randn(500, 50, generator=torch.Generator().manual_seed(0))
    many[:, 45:] = -torch.inf
    top, _ = sample_tokens(many, torch.full((500,), edges[1]), PARAMETERS, torch.arange(500))
    assert top.max() <= 44


def test_what_the_hand_written_forward_leaves_to_the_library(qwen2):
    assert by_hand.supports(qwen2)
    assert not by_hand.supports(build("llama", attention_bias=True))  # behind the output, too
    assert not by_hand.supports(build("mistral"))
    assert not by_hand.supports(copy.deepcopy(qwen2).to(torch.bfloat16))
    assert not by_hand.supports(build("qwen2", hidden_act="gelu"))
    assert not by_hand.supports(build("qwen2", layer_types=["full_attention", "sliding_attention"], sliding_window=4))
    scaled = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    assert not by_hand.supports(build("qwen2", rope_parameters=scaled))
    hooked = copy.deepcopy(qwen2)
    hooked.model.layers[1].register_forward_hook(lambda *_: None)
    assert not by_hand.supports(hooked)

    class Adapter(nn.Linear):
        """A layer that is a Linear by type and computes something else."""

    adapted = copy.deepcopy(qwen2)
    adapted.model.layers[0].self_attn.q_proj = Adapter(32, 32)
    assert not by_hand.supports(adapted)


@pytest.mark.parametrize("fast", [True, False])
def test_a_diverged_model_is_named(qwen2, fast):
    model = copy.deepcopy(qwen2)
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        sample(model, PROMPTS, 2, KEYS, KEY, PARAMETERS, fast=fast)


def test_a_response_is_cut_off_that_has_all_its_tokens_and_no_end() -> None:
    """Of three tokens at most: one without an end is cut off; one that ends with the third, or before, is not."""
    tokens = np.array([[5, 6, 7], [5, 6, 9], [5, 9, 0], [5, 6, 0]], np.int32)
    samples = Samples(tokens, np.array([3, 3, 2, 2], np.int32), np.zeros((4, 3), np.float32))
    groups = [SimpleNamespace(samples=samples), SimpleNamespace(samples=samples.select([0]))]
    parameters = SamplingParameters(1.0, 1.0, -1, 3, (9,))
    assert cut_off(groups, parameters) == pytest.approx(2 / 5)
    assert math.isnan(cut_off([], parameters))
