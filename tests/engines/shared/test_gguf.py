"""GGUF files: the check of the tokenizer that is read from one, and files that were not checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.late import LATE

from bapo.errors import UserError

if LATE:
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    from bapo.engines.shared.models import gguf


END = "<|im_end|>"
#: written as the pieces of the checked text; "1 2" is a merge that single digits forbid
MERGES = ["W h", "Wh a", "Wha t", "i s", "Ġ is", "Ġ +", "1 2"]


def tokenizer_of() -> Any:
    """Build what SmolLM2's tokenizer is after mending, with a small vocabulary."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    words = Tokenizer(BPE({name: n for n, name in enumerate(names)}, [tuple(merge.split()) for merge in MERGES]))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    words.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END)


def _llamas_decoder(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.decoder = decoders.Metaspace()


def _numbers_in_one(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.mark.parametrize("corrupt", [_llamas_decoder, _numbers_in_one])
def test_a_corrupted_tokenizer_is_refused(corrupt: Callable[[Any], None]) -> None:
    tokenizer = tokenizer_of()
    gguf.check(tokenizer, "x.gguf", tokenizer.eos_token_id)
    with pytest.raises(UserError, match=r"x\.gguf"):
        gguf.check(tokenizer, "x.gguf", 0)
    corrupt(tokenizer)
    with pytest.raises(UserError, match=r"x\.gguf"):
        gguf.check(tokenizer, "x.gguf", tokenizer.eos_token_id)


@pytest.mark.parametrize(("model", "pre"), [("gpt2", "default"), ("llama", "smollm")])
def test_a_file_with_another_tokenizer_is_refused(tmp_path: Path, model: str, pre: str) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_tensor("output.weight", np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match=rf"x\.gguf: its tokenizer is {model}/{pre}"):
        gguf.convert(tmp_path / "x.gguf", tmp_path)
