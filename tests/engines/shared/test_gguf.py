"""GGUF files: what one says of itself, and the check of the tokenizer that is read from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.late import LATE

from bapo.errors import UserError

if LATE:
    from bapo.engines.shared.models import gguf


END = "<|im_end|>"
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}"
#: written as the pieces of the checked text; "1 2" is a merge that single digits forbid
MERGES = ["W h", "Wh a", "Wha t", "i s", "Ġ is", "Ġ +", "1 2"]


def tokenizer_of() -> Any:
    """Build what SmolLM2's tokenizer is after mending, with a small vocabulary."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    model = BPE({name: place for place, name in enumerate(names)}, [tuple(merge.split()) for merge in MERGES])
    words = Tokenizer(model)
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    words.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, additional_special_tokens=["<|im_start|>"])
    made.chat_template = TEMPLATE
    return made


def _llamas_decoder(tokenizer: Any) -> None:
    from tokenizers import decoders

    tokenizer.backend_tokenizer.decoder = decoders.Metaspace()


def _endless_turns(tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATE.replace(END, "")


@pytest.mark.parametrize(
    ("corrupt", "what"), [(_llamas_decoder, "a text, encoded and decoded"), (_endless_turns, "the end of a turn")]
)
def test_a_corrupted_tokenizer_is_refused(corrupt: Callable[[Any], None], what: str) -> None:
    tokenizer = tokenizer_of()
    facts = SimpleNamespace(name="x.gguf", end=tokenizer.eos_token_id, size=len(tokenizer))
    gguf._check(tokenizer, facts)
    corrupt(tokenizer)
    with pytest.raises(UserError, match=rf"x\.gguf: transformers reads {what}"):
        gguf._check(tokenizer, facts)


def write(path: Path, model: str = "gpt2", pre: str = "smollm", template: str | None = TEMPLATE) -> Path:
    """Write a GGUF file with three tokens and one tensor."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["a", "b", END])
    writer.add_eos_token_id(2)
    if template is not None:
        writer.add_chat_template(template)
    writer.add_tensor("output.weight", np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    facts = gguf._Facts(write(tmp_path / "x.gguf"))
    assert (facts.name, facts.end, facts.template, facts.size) == ("x.gguf", 2, TEMPLATE, 3)
    assert facts.types == {"F32": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"pre": "default"}, r"x\.gguf: its tokenizer is gpt2/default; only SmolLM2's .*model\.path=FOLDER"),
        ({"model": "llama"}, r"x\.gguf: its tokenizer is llama/smollm"),
        ({"template": None}, r"x\.gguf: the file does not say tokenizer\.chat_template"),
    ],
)
def test_a_file_that_was_not_checked_is_refused(tmp_path: Path, words: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        gguf._Facts(write(tmp_path / "x.gguf", **words))
