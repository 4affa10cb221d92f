"""One token a number: the tokenizer of Countdown models that are trained from scratch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bapo.tasks import tokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SIGNS = ("+", "-", "*", "/", "=", ",", ":")


def build(value_max: int) -> PreTrainedTokenizerFast:
    """A tokenizer for the signs + - * / = , : and the numbers 0..value_max; value_max + 13 tokens."""
    return tokenizers.build(SIGNS, value_max)
