"""GGUF files whose tokenizer was not checked are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.late import LATE

from bapo.errors import UserError

if LATE:
    from gguf import GGUFWriter

    from bapo.engines.shared.models import gguf


@pytest.mark.parametrize(("model", "pre"), [("gpt2", "default"), ("llama", "smollm")])
def test_a_file_with_another_tokenizer_is_refused(tmp_path: Path, model: str, pre: str) -> None:
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
