"""Images in prompts, which the model's processor prepares and its vision tower reads once for each prompt.

The torch engine takes models of the Qwen2-VL and Qwen2.5-VL families. Their language model takes an image as embeddings
in the places of its image tokens. Positions have three dimensions (time, height, width), which are equal for text.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from bapo import tasks
from bapo.engines.shared import shortcut
from bapo.errors import UserError, first_line
from bapo.experiments.schema import Config
from bapo.store.files import Json
from bapo.tasks.files import FORMATS, PLACEHOLDER

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

FAMILIES = ("qwen2_vl", "qwen2_5_vl")
#: prompts whose images the processor takes at a time
_CHUNK = 64
#: by model, the version of its frozen tower's weights, and the image tokens that were computed with them
_SEEN: WeakKeyDictionary[PreTrainedModel, tuple[int, WeakKeyDictionary[Images, Tensor]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Images:
    """Holds the images of one prompt as the model takes them.

    pixel_values: float32 [patches of all images, values of a patch]; image_grid_thw: int64 [images, 3], the patches of
    each along time, height and width.
    """

    pixel_values: np.ndarray
    image_grid_thw: np.ndarray


@dataclass(eq=False)  # the same prompt with the same images is the same object
class PromptView:
    """Holds one prompt as the language model takes it.

    features: [image tokens, hidden], the vision tower's output
    places: int64 [image tokens], their columns in the prompt
    positions: int64 [3, tokens of the prompt]
    """

    features: Tensor
    places: np.ndarray
    positions: np.ndarray

    @property
    def following(self) -> int:
        """Return the position of the first token behind the prompt."""
        return int(self.positions.max()) + 1

    def followed(self, count: int) -> PromptView:
        """Return the same with ``count`` tokens of text behind it."""
        behind = np.broadcast_to(self.following + np.arange(count), (3, count))
        return PromptView(self.features, self.places, np.concatenate([self.positions, behind], 1))


def reads_images(config: PreTrainedConfig) -> bool:
    """Return whether a model of this Hugging Face configuration has a vision tower."""
    return getattr(config, "vision_config", None) is not None


# ------------------------------------------------------------------------------------------------ preparing


def to_messages(messages: Sequence[Json]) -> list[Json]:
    """Return messages as processors take them: each text with placeholders becomes a list of texts and images."""
    converted = []
    for message in messages:
        parts: list[dict[str, str]] = []
        for number, text in enumerate(message["content"].split(PLACEHOLDER)):
            parts += [{"type": "image"}] if number else []
            parts += [{"type": "text", "text": text}] if text else []
        converted.append({"role": message["role"], "content": parts})
    return converted


def prepare(
    processor: ProcessorMixin, texts: Sequence[str], images: Sequence[Sequence[bytes | Image]]
) -> list[tuple[list[int], Images | None]]:
    """Return the tokens, with a placeholder for each image token, and the prepared images of every prompt.

    texts: prompts in the model's own template; images: each prompt's, as bytes of a file or as Pillow images. Raises
    ValueError where text and images do not fit.
    """
    prepared: list[tuple[list[int], Images | None]] = []
    for start in range(0, len(texts), _CHUNK):
        chunk = [[_to_rgb(i) for i in each] for each in images[start : start + _CHUNK]]
        inputs: Json = {"text": list(texts[start : start + _CHUNK])}
        if any(chunk):
            inputs["images"] = chunk
        encoded = processor(**inputs, return_tensors=None)
        grids = np.asarray(encoded.get("image_grid_thw", np.empty((0, 3))), dtype=np.int64)
        pixels = np.asarray(encoded.get("pixel_values", np.empty((0, 1))), dtype=np.float32)
        grid = patch = 0
        for tokens, pictures in zip(encoded["input_ids"], chunk, strict=True):
            shape = grids[grid : grid + len(pictures)]
            count = int(shape.prod(1).sum())
            prepared.append((list(tokens), Images(pixels[patch : patch + count], shape) if pictures else None))
            grid, patch = grid + len(pictures), patch + count
    return prepared


def _to_rgb(image: bytes | Image) -> Image:
    from PIL import Image as pillow

    return (pillow.open(io.BytesIO(image), formats=FORMATS) if isinstance(image, bytes) else image).convert("RGB")


# ------------------------------------------------------------------------------------------------ processors


@cache
def register_processor() -> type:
    """Return the class of Qwen2.5-VL's processor; from now on ``AutoProcessor`` makes it also without torchvision.

    The library's processor holds a video processor, which transformers offers with torchvision only; the image
    processor has a form that needs NumPy and Pillow alone. Where torchvision is absent, a processor without the video
    part takes the place of the library's, also when others load one (lm-eval's ``hf-multimodal``, verl). The files are
    the library's either way.
    """
    from transformers import Qwen2_5_VLProcessor as Full
    from transformers.models import qwen2_5_vl
    from transformers.processing_utils import ProcessorMixin

    if importlib.util.find_spec("torchvision") is not None:
        return Full

    class Qwen2_5_VLProcessor(Full):
        """Images and text; what the library builds from the parameters of ``__init__`` has no video part here."""

        def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **_: object):
            self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
            self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
            self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
            ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    Qwen2_5_VLProcessor.__module__ = Full.__module__
    # AutoProcessor looks the name up there
    qwen2_5_vl.Qwen2_5_VLProcessor = Qwen2_5_VLProcessor  # type: ignore[misc, assignment]
    return Qwen2_5_VLProcessor


def scratch_processor(config: Config, tokenizer: PreTrainedTokenizerBase) -> ProcessorMixin | None:
    """Build the processor of a model trained from scratch, for its task's images; None where the task is text only.

    It is Qwen2.5-VL's, for square images, with white as 0 and black as -2: white paper is most of a diagram, and as 0
    it leaves the patches to what is drawn on them. Raises UserError where the model reads no images.
    """
    side = tasks.get(config.task.name).image_size(config)
    if side is None:
        return None
    vision = config.model.architecture.get("vision_config")
    if vision is None:
        cure = f"reads no images (no architecture.vision_config), which task={config.task.name} needs"
        raise UserError(f"model={config.model.name}: {cure}")
    processor = register_processor()
    from transformers import Qwen2VLImageProcessorPil

    sizes = {"patch_size": vision["patch_size"], "merge_size": vision["spatial_merge_size"]}
    images = Qwen2VLImageProcessorPil(
        **sizes,
        temporal_patch_size=vision["temporal_patch_size"],
        size={"shortest_edge": side * side, "longest_edge": side * side},
        image_mean=[1.0] * 3,
        image_std=[0.5] * 3,
    )
    parts = {"image_processor": images, "tokenizer": tokenizer, "chat_template": tokenizer.chat_template}
    if importlib.util.find_spec("torchvision") is not None:
        from transformers import Qwen2VLVideoProcessor  # type: ignore[attr-defined]

        parts["video_processor"] = Qwen2VLVideoProcessor(**sizes)
    return processor(**parts)


def load_processor(path: Path | str, revision: str | None = None) -> ProcessorMixin:
    """Return the processor of a checkpoint folder or hub name. Raises UserError if none there reads images."""
    register_processor()
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(path, revision=revision)
    except Exception as error:  # the library raises many kinds
        cure = "get or train the model again"
        raise UserError(f"{path}: its processor of images cannot be loaded: {first_line(error)}; {cure}") from error
    if not hasattr(processor, "image_processor"):
        raise UserError(f"{path}: has no image processor, but the problems have images; choose a model that reads them")
    return processor


# ------------------------------------------------------------------------------------------------ seeing


def look(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], images: Sequence[Images | None]
) -> list[PromptView | None]:
    """Return each prompt as the language model takes it, None for one without images.

    The vision tower runs once over all images; equal prompts with the same object as their images share a view.
    Raises UserError for a model of another family.
    """
    firsts: dict[tuple[Images | None, tuple[int, ...]], int] = {}
    pairs = enumerate(zip(prompts, images, strict=True))
    owners = [firsts.setdefault((pictures, tuple(p)), n) for n, (p, pictures) in pairs]
    images_of_firsts = {i: pictures for i in firsts.values() if (pictures := images[i]) is not None}
    views: list[PromptView | None] = [None] * len(prompts)
    if not images_of_firsts:
        return views
    config = model.config
    if config.model_type not in FAMILIES:
        names = " and ".join(FAMILIES)
        raise UserError(f"model_type {config.model_type}: the torch engine reads images with {names}; use engine=verl")
    merge = config.vision_config.spatial_merge_size
    counts = [int(pictures.image_grid_thw.prod(1).sum()) // merge**2 for pictures in images_of_firsts.values()]
    features = _features(model, list(images_of_firsts.values()), counts)
    for (i, pictures), embedded in zip(images_of_firsts.items(), features, strict=True):
        tokens = np.asarray(prompts[i])
        places = np.flatnonzero(tokens == config.image_token_id)
        assert len(places) == len(embedded), "tokens and images come from the same processor"
        views[i] = PromptView(
            embedded, places, positions(tokens, pictures.image_grid_thw, config.image_token_id, merge)
        )
    return [views[i] for i in owners]


def _features(model: PreTrainedModel, images: Sequence[Images], counts: Sequence[int]) -> Sequence[Tensor]:
    """Return the image tokens of each prompt. A small frozen tower, such as the reference's, computes them once."""
    weights = next(model.model.visual.parameters())
    if weights.requires_grad or shortcut("vision", model.model.visual) is None:
        return tower(model, images).split(list(counts))
    if model not in _SEEN or _SEEN[model][0] != weights._version:  # the weights have been loaded again
        _SEEN[model] = weights._version, WeakKeyDictionary()
    features = _SEEN[model][1]
    if new := {pictures: count for pictures, count in zip(images, counts, strict=True) if pictures not in features}:
        features.update(zip(new, tower(model, list(new)).split(list(new.values())), strict=True))
    return [features[pictures] for pictures in images]


def tower(model: PreTrainedModel, images: Sequence[Images]) -> Tensor:
    """Return the image tokens of all images in order, [tokens, hidden of the language model]; gradients flow."""
    weight = model.get_input_embeddings().weight
    pixels = torch.from_numpy(np.concatenate([i.pixel_values for i in images])).to(model.device)
    grids = torch.from_numpy(np.concatenate([i.image_grid_thw for i in images])).to(model.device)
    visual = model.model.visual
    fast = shortcut("vision", visual)
    if fast is not None and fast.fits(visual, grids):
        return fast.forward(visual, pixels, grids)
    return visual(pixels.to(visual.dtype), grid_thw=grids).pooler_output.to(weight.dtype)


def positions(tokens: np.ndarray, grid: np.ndarray, image_token: int, merge: int) -> np.ndarray:
    """Return int64 [3, L]: time, height and width of a prompt's tokens, as in the library's ``get_rope_index``.

    tokens: int64 [L]; grid: int64 [images, 3], as ``Images.image_grid_thw``; image_token: the id of an image token;
    merge: the patches along each side of an image token.
    """
    is_image, sizes = (tokens == image_token).tolist(), iter((grid // (1, merge, merge)).tolist())
    parts, next_position, place = [], 0, 0
    while place < len(is_image):
        if is_image[place]:
            t, h, w = next(sizes)
            parts.append(next_position + np.indices((t, h, w)).reshape(3, -1))
            next_position, place = next_position + max(h, w), place + t * h * w
        else:
            count = is_image.index(True, place) - place if True in is_image[place:] else len(is_image) - place
            parts.append(np.broadcast_to(next_position + np.arange(count), (3, count)))
            next_position, place = next_position + count, place + count
    return np.concatenate(parts, 1)


def embed(
    model: PreTrainedModel,
    ids: Tensor,
    begins: Sequence[int],
    lengths: Sequence[int],
    views: Sequence[PromptView | None],
) -> tuple[Tensor, Tensor]:
    """Return embeddings [N, L, hidden] and positions int64 [3, N, L] of padded rows for the library's own forward.

    The tokens behind a prompt are text, even where they have the id of an image token.

    Args:
        model: one that reads images
        ids: int64 [N, L]
        begins: N, the column that each row's prompt begins in
        lengths: N, the tokens of each prompt
        views: N, of each row's prompt
    """
    columns = torch.arange(ids.shape[1], device=ids.device)
    starts = torch.tensor(list(begins), device=ids.device)
    row_positions = (columns - starts[:, None]).clamp(min=0).expand(3, -1, -1).clone()
    x = model.get_input_embeddings()(ids)
    rows, places, features = [], [], []
    for row, (begin, length, view) in enumerate(zip(begins, lengths, views, strict=True)):
        if view is not None:
            row_positions[:, row, begin : begin + length] = torch.from_numpy(view.positions).to(ids.device)
            row_positions[:, row, begin + length :] += view.following - length
            rows += [row] * len(view.places)
            places.append(view.places + begin)
            features.append(view.features)
    if rows:
        index = (torch.tensor(rows, device=ids.device), torch.from_numpy(np.concatenate(places)).to(ids.device))
        x = x.index_put(index, torch.cat(features).to(x.dtype))
    return x, row_positions
