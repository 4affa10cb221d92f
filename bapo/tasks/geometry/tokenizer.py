"""Tokenizer and image processor of the small models that read diagrams; one token a number and a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bapo.tasks import tokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SIGNS = ("+", "-", "=", ",", ":")
#: The words of a question: the figure and the angle that is asked for.
WORDS = ("triangle", "quadrilateral", "parallels", "third", "exterior", "difference", "fourth", "other")
#: The names that transformers, verl and lm-eval expect of Qwen2.5-VL.
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
NUMBER_MAX = 360  # degrees

#: A message is its content, and an image is a placeholder that the processor repeats for each image token.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)


def build() -> PreTrainedTokenizerFast:
    """Build a tokenizer for signs, words, the numbers 0..360 and Qwen2.5-VL's image tokens."""
    tokenizer = tokenizers.build((*SIGNS, *WORDS), NUMBER_MAX, special=VISION)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_processor(tokenizer: PreTrainedTokenizerFast, vision: dict[str, Any], size: int) -> Any:
    """Build Qwen2.5-VL's processor for images of ``size`` x ``size`` pixels. vision: the model's ``vision_config``."""
    from bapo.engines.shared import processors

    sizes = (vision["patch_size"], vision["spatial_merge_size"], vision["temporal_patch_size"])
    return processors.build(tokenizer, *sizes, pixels=size * size)
