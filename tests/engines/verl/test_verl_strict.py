"""Requests that the stand-in for vLLM's server refuses, and that vLLM refuses, too, where it is installed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch

from bapo.engines.verl.cpu import rollout, sleeping, strict

#: what verl and the agent loop send
GOOD = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 8, "logprobs": 0, "repetition_penalty": 1.0}
CASES = [
    ({"max_tokens": 0}, "max_tokens=0 must be at least 1"),
    ({"max_tokens": 13}, "4 prompt tokens and max_tokens=13 exceed max_model_len=16"),
    ({"temperature": -0.1}, "temperature=-0.1 must not be negative"),
    ({"top_p": 0.0}, r"top_p=0.0 must be in \(0, 1\]"),
    ({"top_p": 1.5}, r"top_p=1.5 must be in \(0, 1\]"),
    ({"top_k": -2}, "top_k=-2 must be -1 or 0"),
    ({"max_new_tokens": 8}, r"unknown sampling parameters \['max_new_tokens'\]"),
    ({"stop_token_ids": [32]}, r"token \[32\] is not one of the 32"),
]


def server() -> rollout.Server:
    """A server awake with its weights, of which nothing but the size of the vocabulary is looked at."""
    made = rollout.Server.__new__(rollout.Server)
    made.config = SimpleNamespace(max_model_len=None, prompt_length=8, response_length=8)
    made.model = SimpleNamespace(get_input_embeddings=lambda: torch.nn.Embedding(32, 2))
    made.sleeper = sleeping.Sleeper()
    made.sleeper.sleep(0)
    made.sleeper.wake([sleeping.WEIGHTS])
    made.sleeper.push()
    made.sleeper.wake([sleeping.CACHE])
    return made


def test_what_verl_sends_is_taken() -> None:
    strict.check([1, 2, 3, 4], {**GOOD, "max_tokens": 12, "draw": (1, 2, 3), "stop_token_ids": [31]}, 16, 32)


@pytest.mark.parametrize(("change", "text"), CASES)
def test_a_request_that_vllm_refuses_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=rf"^request refused, as by vLLM: {text}"):
        asyncio.run(server().generate([1, 2, 3, 4], {**GOOD, **change}, "1"))


@pytest.mark.parametrize(("prompt", "text"), [([], "the prompt is empty"), ([1, 32], r"token \[32\] is not one of")])
def test_a_prompt_that_vllm_refuses_is_refused(prompt: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        asyncio.run(server().generate(prompt, dict(GOOD), "1"))


@pytest.mark.parametrize("change", [c for c, _ in CASES if not {"stop_token_ids"} & set(c) and c != {"max_tokens": 13}])
def test_vllm_refuses_it_too(change: dict[str, Any]) -> None:
    """The rest takes a whole engine to be refused."""
    vllm = pytest.importorskip(
        "vllm", reason="vLLM is not installed; containers/vllm_cpu/install makes its environment"
    )
    with pytest.raises(Exception, match=next(iter(change))):  # of a class that its releases change
        vllm.SamplingParams(**{**GOOD, **change})
