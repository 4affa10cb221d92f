"""Hugging Face models for the torch engine: build, load, save, and their log-probabilities."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from bapo import seeds, tasks
from bapo.engines.shared import shortcut
from bapo.engines.shared.models import chats, images, pretrained
from bapo.engines.shared.models.images import Images
from bapo.engines.shared.models.pretrained import start_path
from bapo.errors import UserError, first_line, lacks_memory, unknown
from bapo.experiments.schema import Config
from bapo.store.files import Json
from bapo.validate import plain

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

#: Families whose logits are lm_head(last hidden state) with no further scaling, so that the head can be applied to
#: response positions alone. Every other model goes through its full forward.
_PLAIN_HEAD = {"qwen2", "qwen3", "llama", "mistral", "gpt2", *images.FAMILIES}


def device_of(config: Config) -> torch.device:
    """Return the device of ``config.device``. Raises UserError where it is "cuda" and torch sees no GPU."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: torch sees no GPU; use device=cpu or device=auto, or ask bapo gpu-check why")
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def prepare_process(threads: int) -> None:
    """Set up a process for one job: torch's threads, none of tokenizers, no progress bars, float32 without TF32."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()  # a job has one progress line, which is ours
    # some releases of torch would use TF32 in float32 products on CUDA
    torch.set_float32_matmul_precision("highest")


def build_scratch(config: Config) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return (model, tokenizer) of a model to be trained from nothing, initialised from ``base.seed``.

    A model that reads images has ``vision_config`` and ``text_config`` in its architecture; the ids of its image tokens
    are the tokenizer's. Raises UserError for a key that the family does not have, and as the task's tokenizer does.
    """
    pretrained.register(config)
    tokenizer = tasks.get(config.task.name).build_tokenizer(config)
    architecture = plain(config.model.architecture)
    kind = architecture.pop("model_type")
    _require_known(AutoConfig.for_model(kind), architecture, "model.architecture")
    vocabulary = {
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    reads_images = "vision_config" in architecture
    if reads_images:
        text = {**architecture.pop("text_config"), **vocabulary}
        text["tie_word_embeddings"] = architecture.get("tie_word_embeddings", False)
        marks = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
        ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{word}|>") for name, word in marks.items()}
        vocabulary = {"text_config": text, **ids}
    hf_config = AutoConfig.for_model(kind, **vocabulary, **architecture)
    torch.manual_seed(seeds.key64(config.base.seed, "initial weights") % 2**63)
    family = AutoModelForImageTextToText if reads_images else AutoModelForCausalLM
    model = family.from_config(hf_config, attn_implementation=config.model.attention)
    return model.to(getattr(torch, config.model.dtype)), tokenizer


def blank(config: Config) -> PreTrainedModel:
    """Return a model as large as a run's, with random weights, so that nothing has to be fetched.

    For a pretrained model it is a Qwen2 of ``model.sizes`` with heads of 64 features, whose number of parameters is
    within a tenth of ``model.parameters``. It ties head and embedding where that comes closer. Raises UserError where
    the configuration does not say how large the model is.
    """
    if config.model.kind == "scratch":
        return build_scratch(config)[0]
    sizes = config.model.sizes
    if sizes is None or config.model.parameters is None:
        raise UserError(f"model={config.model.name}: its files are read where they are; set model.sizes")
    heads = max(1, sizes.width // 64)
    pairs = 2 if heads % 2 == 0 else 1  # of keys and values
    body = sizes.layers * sizes.width * (2 * 64 * (heads + pairs) + 3 * sizes.mlp)
    embedding = sizes.vocabulary * sizes.width
    hf_config = AutoConfig.for_model(
        "qwen2",
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        intermediate_size=sizes.mlp,
        num_attention_heads=heads,
        num_key_value_heads=pairs,
        head_dim=64,
        tie_word_embeddings=config.model.parameters < body + 1.5 * embedding,
    )
    return AutoModelForCausalLM.from_config(
        hf_config, attn_implementation="sdpa", dtype=getattr(torch, config.model.dtype)
    )


#: values that families read and their configurations do not name
_UNNAMED = {"head_dim", "rope_theta"}


def _require_known(blank: transformers.PreTrainedConfig, architecture: Json, path: str) -> None:
    """Raise UserError for a key that the family's configuration ``blank`` lacks, and that no model would read."""
    for name, value in architecture.items():
        if not hasattr(blank, name) and name not in _UNNAMED:
            names = sorted({*blank.to_dict(), *_UNNAMED})
            raise UserError(unknown(f"{path}.{name}", f"{blank.model_type} has no '{name}'", name, names))
        if isinstance(value, dict) and isinstance(below := getattr(blank, name, None), transformers.PreTrainedConfig):
            _require_known(below, value, f"{path}.{name}")


def load(path: Path | str, config: Config, device: torch.device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return (model, tokenizer) from a local folder or the hub.

    Raises UserError where it cannot be loaded, or lacks weights or words that it would get at random or not at all.
    """
    pretrained.register(config)
    revision = {"revision": config.model.revision} if config.model.revision and not isinstance(path, Path) else {}
    dtype, cure = getattr(torch, config.model.dtype), "get or train the model again"
    try:
        reads_images = images.reads_images(AutoConfig.from_pretrained(path, **revision))
        family = AutoModelForImageTextToText if reads_images else AutoModelForCausalLM
        options = {"output_loading_info": True, "ignore_mismatched_sizes": True, **revision}  # both are refused below
        loaded: Any = family.from_pretrained(path, dtype=dtype, attn_implementation=config.model.attention, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if lacks_memory(error):
            raise
        raise UserError(f"{path}: not a Hugging Face model: {first_line(error)}; {cure}") from error
    model, loading = loaded
    if absent := sorted({*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])}):
        raise UserError(f"{path}: the weight {absent[0]} is missing or has another shape than the model's; {cure}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **revision)
    except Exception as error:  # the tokenizers' library raises many kinds
        raise UserError(f"{path}: its tokenizer cannot be loaded: {first_line(error)}; {cure}") from error
    names = tokenizer.vocab_files_names.values()
    files = sorted({*names, "tokenizer.json"} if names else ())  # which transformers writes, whatever it has read
    if isinstance(path, Path) and files and not any((path / name).is_file() for name in files):
        raise UserError(f"{path}: its tokenizer has no words without {' or '.join(files)}; {cure}")
    torch.nn.Module.to(model, device)
    return model.eval(), chats.prepare(tokenizer, config)


def load_start(config: Config, device: torch.device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return (model, tokenizer) that reinforcement learning starts from. Raises UserError as :func:`load` does."""
    return load(start_path(config), config, device)


def load_processor(model: PreTrainedModel, path: Path | str, config: Config) -> ProcessorMixin | None:
    """Return the processor beside a model that reads images, None for others. Raises UserError if it is missing."""
    if not images.reads_images(model.config):
        return None
    return images.load_processor(path, None if isinstance(path, Path) else config.model.revision)


def end_tokens(tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None = None) -> tuple[int, ...]:
    """Return the tokens that end a response, the tokenizer's first; ``sampling.stop_tokens`` may name more.

    generation: the model's ``generation_config``, if it can generate; a chat model's may name more, too.
    """
    more = getattr(generation, "eos_token_id", None)
    ends = [tokenizer.eos_token_id, *(more if isinstance(more, list | tuple) else [more]), *chats.more_ends(tokenizer)]
    return tuple(dict.fromkeys(int(e) for e in ends if e is not None))


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | ProcessorMixin, folder: Path) -> None:
    """Write weights as safetensors, configuration and tokenizer (or its processor) in Hugging Face format."""
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.do_sample = True  # sampling is configured by us, never by a file beside the weights
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


@dataclass
class Scored:
    """Holds the logprobs [N, T] of the response tokens, and the entropy [N, T] of each distribution where asked for."""

    logprobs: Tensor
    entropy: Tensor | None


def score(
    model: PreTrainedModel,
    ids: Tensor,
    starts: Tensor,
    width: int,
    temperature: float = 1.0,
    entropy: bool = False,
    lengths: Tensor | None = None,
    pictures: Sequence[Images | None] | None = None,
) -> Scored:
    """Return the log-probabilities of response tokens under ``model``.

    Positions beyond a sequence's end give numbers that the caller masks.

    Args:
        model: a Hugging Face causal language model
        ids: int64 [N, L], prompt then response, padded on the right: a causal model never looks there
        starts: int64 [N], where each response begins, at least 1
        width: T, the longest response
        temperature: divides the logits, as in sampling
        entropy: whether the entropy is returned
        lengths: int64 [N], of the responses; with them small Qwen2 and Llama models take the fast forward
        pictures: of each row's prompt, if any; the vision tower reads equal ones (the same object) once
    """
    fast = shortcut("scoring", model) if lengths is not None else None
    if fast is not None:
        return Scored(*fast.score(model, ids, starts, lengths, temperature, entropy, pictures))
    positions = (starts[:, None] - 1 + torch.arange(width, device=ids.device)).clamp(max=ids.shape[1] - 2)
    targets = ids.gather(1, positions + 1)
    if model.config.model_type in _PLAIN_HEAD:
        hidden = model.base_model(**inputs(model, ids[:, :-1], starts, pictures), use_cache=False).last_hidden_state
        hidden = hidden.gather(1, positions[:, :, None].expand(-1, -1, hidden.shape[-1]))
        logits = model.get_output_embeddings()(hidden)
    else:
        logits = model(**inputs(model, ids[:, :-1], starts, pictures), use_cache=False).logits
        logits = logits.gather(1, positions[:, :, None].expand(-1, -1, logits.shape[-1]))
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    logp = torch.log_softmax(logits, -1)
    return Scored(logp.gather(2, targets[:, :, None])[:, :, 0], -(logp.exp() * logp).sum(-1) if entropy else None)


def inputs(
    model: PreTrainedModel, ids: Tensor, starts: Tensor, pictures: Sequence[Images | None] | None
) -> dict[str, Tensor]:
    """Return arguments of the library's forward for tokens [N, L] whose prompts end at ``starts`` and have images.

    ids, starts, pictures: as for :func:`score`; a model that reads no images has none. Raises UserError as
    :func:`images.look` does.
    """
    if pictures is None or not any(p is not None for p in pictures):
        return {"input_ids": ids}
    lengths = starts.tolist()
    views = images.look(model, [row[:n] for row, n in zip(ids.tolist(), lengths, strict=True)], pictures)
    embeddings, positions = images.embed(model, ids, [0] * len(ids), lengths, views)
    return {"inputs_embeds": embeddings, "position_ids": positions}
