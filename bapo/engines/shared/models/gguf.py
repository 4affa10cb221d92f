"""GGUF files as Hugging Face folders: weights of four or eight bits become float32 again, for training.

transformers 5.10 reads the weights of a SmolLM2 file well and its tokenizer badly: it takes another end token than the
file names, and Llama's pre-tokenizer and decoder in the place of GPT-2's. What is read is mended and checked here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from bapo.engines.shared.models import chats
from bapo.errors import UserError
from bapo.store.files import Json

#: What must come back as it was from the tokenizer, and the pieces that it must have: digits are tokens of their own.
_TEXT = "What is 12 + 34?\n  x = 2 * (y - 1)  naïve ✓"
_PIECES = ["What", "Ġis", "Ġ", "1", "2", "Ġ+", "Ġ", "3", "4", "?"]


def convert(source: Path, folder: Path) -> Json:
    """Write the model of a GGUF file into ``folder``: float32 weights, configuration, tokenizer with chat template.

    Returns what the base job's summary says of it: quantisation (the types of the file's tensors and how many have
    each) and parameters. Raises UserError for a file whose tokenizer is not SmolLM2's, or that is read wrongly.
    """
    transformers.utils.logging.disable_progress_bar()  # a job's log has lines of ours
    facts = _Facts(source)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    _mend(tokenizer, facts)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    model.config.architectures = [type(model).__name__]
    model.config.eos_token_id = model.generation_config.eos_token_id = facts.end
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        raise UserError(f"{source.name}: some of its weights are not finite")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _check(AutoTokenizer.from_pretrained(folder), facts)
    return {"quantisation": facts.types, "parameters": sum(p.numel() for p in model.parameters())}


class _Facts:
    """What a file says of itself. end: the id of the token that ends a turn; types: of tensors, with their number."""

    def __init__(self, source: Path) -> None:
        from gguf import GGUFReader

        reader = GGUFReader(source)
        self.name = source.name
        self.end = int(self._field(reader, "tokenizer.ggml.eos_token_id"))
        self.template = str(self._field(reader, "tokenizer.chat_template"))
        self.size = len(reader.get_field("tokenizer.ggml.tokens").data)
        self.types = dict(Counter(tensor.tensor_type.name for tensor in reader.tensors))
        kind = (self._field(reader, "tokenizer.ggml.model"), self._field(reader, "tokenizer.ggml.pre"))
        if kind != ("gpt2", "smollm"):
            raise UserError(
                f"{self.name}: its tokenizer is {'/'.join(map(str, kind))}; only SmolLM2's (gpt2/smollm) was checked. "
                "Take the model in Hugging Face's format: model.path=FOLDER or a name on the hub"
            )

    def _field(self, reader: Any, key: str) -> Any:
        if (field := reader.get_field(key)) is None:
            raise UserError(f"{self.name}: the file does not say {key}")
        return field.contents()


def _mend(tokenizer: PreTrainedTokenizerBase, facts: _Facts) -> None:
    from tokenizers import decoders, pre_tokenizers

    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(facts.end)
    tokenizer.chat_template = facts.template
    tokenizer.clean_up_tokenization_spaces = False
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    for key in ("bos_token_id", "eos_token_id", "unk_token_id", "pad_token_id"):  # those of the wrong tokens
        tokenizer.init_kwargs.pop(key, None)


def _check(tokenizer: PreTrainedTokenizerBase, facts: _Facts) -> None:
    """Raise UserError unless the tokenizer, read again, is the one that the file describes."""
    ids = tokenizer(_TEXT, add_special_tokens=False)["input_ids"]
    found = {
        "the end token": (tokenizer.eos_token_id, facts.end),
        "the number of tokens": (len(tokenizer), facts.size),
        "a text, encoded and decoded": (tokenizer.decode(ids), _TEXT),
        "its pieces": (tokenizer.convert_ids_to_tokens(ids)[: len(_PIECES)], _PIECES),
        "the end of a turn in the chat template": (chats.turn_end(tokenizer), facts.end),
    }
    for what, (was, wanted) in found.items():
        if was != wanted:
            raise UserError(f"{facts.name}: transformers reads {what} as {was!r}, expected {wanted!r}")
