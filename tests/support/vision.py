"""A small Qwen2.5-VL, its processor, prompts with pictures, and rows of random responses to them."""

from __future__ import annotations

import numpy as np
import pytest

from bapo.experiments.compose import compose_config
from bapo.tasks.geometry import task as geometry_task
from support import training


@pytest.fixture(scope="module")
def tokenizer():
    return geometry_task.vocabulary()


@pytest.fixture(scope="module")
def processor(tokenizer):
    from bapo.engines.shared.models import images

    config = compose_config(["task=geometry", "scale=laptop", "model.architecture.vision_config.patch_size=8"])
    return images.scratch_processor(config, tokenizer)


def build(tokenizer, text: dict | None = None, vision: dict | None = None):
    """A small Qwen2.5-VL."""
    import torch
    import transformers as hf

    token = tokenizer.convert_tokens_to_ids
    torch.manual_seed(3)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 2, 1]}
    model = hf.Qwen2_5_VLForConditionalGeneration(
        hf.Qwen2_5_VLConfig(
            text_config={
                **training.SHAPE,
                "vocab_size": len(tokenizer),
                "max_position_embeddings": 256,
                "rope_parameters": rope,
                **(text or {}),
            },
            vision_config={
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 40,
                "num_heads": 4,
                "patch_size": 8,
                "temporal_patch_size": 1,
                "spatial_merge_size": 2,
                "window_size": 48,
                "out_hidden_size": 32,
                "fullatt_block_indexes": [1],
                "initializer_range": 0.15,
                **(vision or {}),
            },
            image_token_id=token("<|image_pad|>"),
            video_token_id=token("<|video_pad|>"),
            vision_start_token_id=token("<|vision_start|>"),
            vision_end_token_id=token("<|vision_end|>"),
            tie_word_embeddings=True,
        )
    )
    return training.with_drawn_biases(model).eval()


def picture(seed: int, size: tuple[int, int] = (48, 48)):
    from PIL import Image

    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


ONE = "<|vision_start|><|image_pad|><|vision_end|>"
TEXTS = {
    "one image": [f"{ONE}triangle third :", f"{ONE}triangle third :"],
    "mixed lengths": [f"{ONE}triangle third :", f"{ONE}:", f"triangle{ONE}fourth 12 : 3 +"],
    "two images, and none": [f"{ONE}triangle{ONE}:", "triangle 12 third :", f"{ONE}{ONE}"],
    "text alone": ["triangle third : 3", "triangle :"],
}
SIZES = [(48, 48), (48, 48), (32, 64)]  # the last one's patches differ


def prepared(processor, name: str, sizes=SIZES[:1]):
    """(prompts, images) with different pictures everywhere."""
    from bapo.engines.shared.models import images

    texts, number, pictures = TEXTS[name], 0, []
    for text in texts:
        pictures.append([])
        for _ in range(text.count(ONE)):
            pictures[-1].append(picture(number, sizes[number % len(sizes)]))
            number += 1
    found = images.prepare(processor, texts, pictures)
    return [tokens for tokens, _ in found], [own for _, own in found]


def rows(prompts: list[list[int]], own: list, picks: list[int], lengths: list[int]):
    """(ids, starts, lengths, width, pictures, mask) of random responses to the prompts with these numbers."""
    *found, mask = training.rows([prompts[p] for p in picks], lengths, words=300)
    return *found, [own[p] for p in picks], mask
