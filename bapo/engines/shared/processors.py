"""Processors of models that read images, with or without torchvision.

Qwen2.5-VL's processor holds a video processor, which transformers offers with torchvision only; the image processor has
a form that needs NumPy and Pillow alone. Where torchvision is absent, :func:`register` puts a processor without the
video part in the place of the library's, so that ``AutoProcessor.from_pretrained`` loads Qwen2.5-VL checkpoints in this
process, also when others call it (lm-eval's ``hf-multimodal``, verl). The files are the library's either way.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo import tasks
from bapo.engines.shared.imports import load_transformers
from bapo.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


@cache
def register() -> type:
    """Return the class of Qwen2.5-VL's processor; from now on ``AutoProcessor`` makes it also without torchvision."""
    load_transformers()
    from transformers import Qwen2_5_VLProcessor as Full
    from transformers.models import qwen2_5_vl
    from transformers.processing_utils import ProcessorMixin

    if importlib.util.find_spec("torchvision") is not None:
        return Full

    class Qwen2_5_VLProcessor(Full):
        """Images and text; what the library builds from the parameters of ``__init__`` has no video part here."""

        def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **_: Any):
            self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
            self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
            self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
            ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    Qwen2_5_VLProcessor.__module__ = Full.__module__
    qwen2_5_vl.Qwen2_5_VLProcessor = Qwen2_5_VLProcessor  # where AutoProcessor looks the name up
    return Qwen2_5_VLProcessor


def build(tokenizer: Any, patch_size: int, merge_size: int, temporal_patch_size: int, pixels: int) -> Any:
    """Return Qwen2.5-VL processor around ``tokenizer`` for square images of ``pixels`` pixels; white is 0 and black -2.

    White paper is most of a diagram: as 0 it leaves the patches to what is drawn on them.

    Raises UserError if torchvision is present and its video processor cannot be made.
    """
    processor = register()
    from transformers import Qwen2VLImageProcessorPil

    images = Qwen2VLImageProcessorPil(
        patch_size=patch_size,
        merge_size=merge_size,
        temporal_patch_size=temporal_patch_size,
        size={"shortest_edge": pixels, "longest_edge": pixels},
        image_mean=[1.0] * 3,
        image_std=[0.5] * 3,
    )
    parts = {"image_processor": images, "tokenizer": tokenizer, "chat_template": tokenizer.chat_template}
    if importlib.util.find_spec("torchvision") is not None:
        from transformers import Qwen2VLVideoProcessor

        parts["video_processor"] = Qwen2VLVideoProcessor(patch_size=patch_size, merge_size=merge_size)
    return processor(**parts)


def of_scratch(config: DictConfig, tokenizer: Any) -> Any | None:
    """Build the processor of a model trained from scratch, for its task's images; None where the task is text only.

    Raises UserError where the model reads no images.
    """
    side = tasks.get(config.task.name).image_size(config)
    if side is None:
        return None
    vision = config.model.architecture.get("vision_config")
    if vision is None:
        raise UserError(
            f"model={config.model.name}: this model reads no images (no architecture.vision_config), which "
            f"task={config.task.name} needs"
        )
    sizes = (vision["patch_size"], vision["spatial_merge_size"], vision["temporal_patch_size"])
    return build(tokenizer, *sizes, pixels=side * side)


def load(path: Path | str, revision: str | None = None) -> Any:
    """Return the processor of a checkpoint folder or hub name. Raises UserError if none there reads images."""
    register()
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(path, revision=revision)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path}: its processor, which prepares the images, cannot be loaded: {reason}") from error
    if not hasattr(processor, "image_processor"):
        raise UserError(f"{path}: this checkpoint has a tokenizer but no image processor; the problems have images")
    return processor
