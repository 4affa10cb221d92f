"""What vLLM would refuse in a request, refused by the server that stands in for it: a mistake shows on CPU cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: of vLLM's SamplingParams, those that the stand-in takes; draw: what its random numbers depend on
KEYS = {"temperature", "top_p", "top_k", "max_tokens", "logprobs", "stop_token_ids", "repetition_penalty", "draw"}


def check(prompt: Sequence[int], parameters: Mapping[str, Any], limit: int, vocabulary: int) -> None:
    """Raise ValueError for a request that vLLM, or the stand-in, cannot serve.

    limit: tokens of prompt and response (``max_model_len``); ``max_tokens`` is among the parameters.
    """
    tokens, p = parameters["max_tokens"], parameters
    top_k = p.get("top_k", -1)
    outside = [t for t in (*prompt, *(p.get("stop_token_ids") or ())) if not 0 <= t < vocabulary]
    for wrong, text in (
        (set(p) - KEYS, f"unknown sampling parameters {sorted(set(p) - KEYS)}"),
        (not prompt, "the prompt is empty"),
        (outside, f"token {outside[:1]} is not one of the {vocabulary} of the vocabulary"),
        (tokens < 1, f"max_tokens={tokens} must be at least 1"),
        (
            len(prompt) + tokens > limit,
            f"{len(prompt)} prompt tokens and max_tokens={tokens} exceed max_model_len={limit}",
        ),
        (p.get("temperature", 1.0) < 0, f"temperature={p.get('temperature')} must not be negative"),
        (not 0 < p.get("top_p", 1.0) <= 1, f"top_p={p.get('top_p')} must be in (0, 1]"),
        (top_k < -1, f"top_k={top_k} must be -1 or 0 (off), or at least 1"),
        (p.get("repetition_penalty", 1.0) != 1, "repetition_penalty: the stand-in knows none"),
    ):
        if wrong:
            raise ValueError(f"request refused, as by vLLM: {text}")
