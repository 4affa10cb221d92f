"""Prompts with images inside verl: tokens, pictures, and the inputs of the vision tower for new rows.

A message of verl's dataset is text, or a list of {"type": "text", "text"} and {"type": "image", "image"} where the
problem has images. The processor puts as many placeholder tokens as a picture needs; nothing is resized before it, so
training and rollout see what the checkpoint's own processor makes of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from bapo.store.files import Json

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase, ProcessorMixin
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from bapo.engines.shared.models.images import Images


def encode(
    tokenizer: PreTrainedTokenizerBase, processor: ProcessorMixin, messages: Sequence[Json]
) -> tuple[list[int], list[Image]]:
    """Return (prompt tokens, RGB images) of a conversation, up to the assistant's turn, as in the torch engine."""
    turns, images = [], []
    for message in messages:
        content = message["content"]
        if not isinstance(content, str):  # chat templates only need to know where a picture stands
            images += [part["image"].convert("RGB") for part in content if part["type"] == "image"]
            content = [{name: value for name, value in part.items() if name != "image"} for part in content]
        turns.append({"role": message["role"], "content": content})
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    if not images:
        return tokenizer(text, add_special_tokens=False)["input_ids"], []
    return [int(t) for t in processor(text=[text], images=images)["input_ids"][0]], images


def require_lengths(
    dataset: RLHFDataset, tokenizer: PreTrainedTokenizerBase, processor: ProcessorMixin, most: int
) -> None:
    """Check all prompts before a step, because verl would drop the error of a rollout and report lost responses.

    most: tokens of a prompt. Raises UserError naming the first prompt that is empty or too long.
    """
    from bapo.engines.shared.prompts import require_length

    for index in range(len(dataset)):
        row = dataset[index]
        tokens, _ = encode(tokenizer, processor, row["raw_prompt"])
        require_length(len(tokens), most, f"the prompt of problem {row['extra_info']['id']}")


def prepare(processor: ProcessorMixin, pictures: list[Image]) -> Images | None:
    """Return a prompt's pictures as the torch engine reads them; None without pictures."""
    import numpy as np

    from bapo.engines.shared.models.images import Images

    if not pictures:
        return None
    inputs = processor.image_processor(images=pictures, return_tensors="np")
    return Images(np.asarray(inputs["pixel_values"], dtype=np.float32), np.asarray(inputs["image_grid_thw"]))


def end_at_mark(response: list[int], processor: ProcessorMixin, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the response with an end token in place of its first image placeholder and all that follows.

    verl's forward pass would look for a picture at each placeholder. A trained model hardly ever samples one.
    """
    marks = {getattr(processor, f"{kind}_token_id", None) for kind in ("image", "video")}
    first = next((i for i, token in enumerate(response) if token in marks), None)
    return response if first is None else [*response[:first], tokenizer.eos_token_id]


def vision_inputs(
    tokenizer: PreTrainedTokenizerBase, processor: ProcessorMixin, images: list[Image], ids: Tensor
) -> Json:
    """Return the vision tower's inputs (pixels, grid) of one prompt, as verl's agent loop worker makes them.

    tokenizer, processor: of the model; images: of the prompt, may be empty; ids: tokens of the prompt, [L].
    """
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    worker = SimpleNamespace(processor=processor, tokenizer=tokenizer, _get_mm_processor_kwargs=lambda _: {})
    output = SimpleNamespace(multi_modal_data={"images": images} if images else {}, mm_processor_kwargs=None)
    return AgentLoopWorker._compute_multi_modal_inputs(worker, output, ids)


def row_inputs(processor: ProcessorMixin, vision: Json, ids: Tensor) -> Json:
    """Return {"multi_modal_inputs", "position_ids"} of one row with tokens ``ids`` [L], as verl's worker makes them.

    position_ids: [L], or [4, L] for a model with three-dimensional positions, whose first row is that of the text.
    """
    import torch
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    inputs = dict(vision)  # verl takes mm_token_type_ids out of it
    positions = AgentLoopWorker._compute_position_ids(
        SimpleNamespace(processor=processor), ids[None], torch.ones_like(ids)[None], inputs
    )
    return {"multi_modal_inputs": inputs, "position_ids": positions.squeeze(0)}


def mend_rows_without_images() -> None:
    """Replace verl's embedding of a micro-batch in which no row has a picture, such as one of padding rows.

    verl 0.9.1 then runs the vision tower on an empty picture, so that all ranks call the same modules. With
    transformers 5 it takes the mean of the wrong object and fails.
    """
    import torch
    from verl.models.transformers import qwen2_vl

    original = qwen2_vl._get_input_embeds

    def embeds(
        model: Any, input_ids: Tensor, attention_mask: Tensor | None = None, *pictures: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if any(pixels is not None for pixels in pictures[:2]):  # of images and of videos; their grids follow
            return original(model, input_ids, attention_mask, *pictures)
        vision, embedded = model.config.vision_config, model.get_input_embeddings()(input_ids)
        size = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        side = 2 * vision.spatial_merge_size
        pixels = torch.zeros((side * side, size), dtype=embedded.dtype, device=embedded.device)
        grid = torch.tensor([[1, side, side]], device=embedded.device)
        picture, _ = qwen2_vl.unpack_visual_output(model.visual(pixels, grid_thw=grid))
        return embedded + 0.0 * picture.mean(), attention_mask

    qwen2_vl._get_input_embeds = embeds
