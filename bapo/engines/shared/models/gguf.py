"""GGUF files as Hugging Face folders: weights of four or eight bits become float32 again, for training.

transformers 5.10 reads the weights of a SmolLM2 file well and its tokenizer badly: it takes another end token than the
file names, and Llama's pre-tokenizer and decoder in the place of GPT-2's. Its tokenizer is mended here;
tests/workflows/test_pocket.py compares what it then gives with golden prompts.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader
from tokenizers import decoders, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from bapo.errors import UserError
from bapo.store.files import Json


def convert(source: Path, folder: Path) -> Json:
    """Write the model of a GGUF file into ``folder``: float32 weights, configuration, tokenizer with chat template.

    Returns what the base job's summary says of it: quantisation (the types of the file's tensors and how many have
    each) and parameters. Raises UserError for a file whose tokenizer is not SmolLM2's.
    """
    transformers.utils.logging.disable_progress_bar()  # a job's log has lines of ours
    reader = GGUFReader(source)
    kind = f"{_field(reader, 'ggml.model')}/{_field(reader, 'ggml.pre')}"
    if kind != "gpt2/smollm":
        cure = "take the model in Hugging Face's format: model.path=FOLDER or a name on the hub"
        raise UserError(f"{source.name}: its tokenizer is {kind}; only SmolLM2's (gpt2/smollm) was checked; {cure}")
    end = int(_field(reader, "ggml.eos_token_id"))
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.chat_template = _field(reader, "chat_template")
    _mend(tokenizer, end)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    model.config.architectures = [type(model).__name__]
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    types = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    return {"quantisation": dict(types), "parameters": sum(p.numel() for p in model.parameters())}


def _field(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(f"tokenizer.{key}")
    return field and field.contents()


def _mend(tokenizer: PreTrainedTokenizerBase, end: int) -> None:
    """Give the tokenizer SmolLM2's pieces. end: the id of the token that ends a turn."""
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(end)
    tokenizer.clean_up_tokenization_spaces = False
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    for key in ("bos_token_id", "eos_token_id", "unk_token_id", "pad_token_id"):  # those of the wrong tokens
        tokenizer.init_kwargs.pop(key, None)
