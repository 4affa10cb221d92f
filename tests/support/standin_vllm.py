"""A stand-in for the package vllm: an engine on the CPU that answers with a random sum."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: As much of vLLM as lm-eval 0.4.13 imports. The engine honours its own seed and, like vLLM, that of a request;
#: ``asked`` holds (prompt, sampling keys) of every request, and its images where there are any.
VLLM = {
    "__init__.py": """
        import random

        engines, asked = [], []

        class SamplingParams:
            def __init__(self, **keys):
                self.keys = keys

        class TokensPrompt(dict):
            pass

        class TextPrompt(dict):
            pass

        class _Config:
            max_model_len = 10**6

        class _Engine:
            model_config = _Config()

        class _Output:
            def __init__(self, text):
                self.text = text
                self.outputs = [self]

        class LLM:
            llm_engine = _Engine()

            def __init__(self, **keys):
                engines.append(keys)
                self.own = random.Random(keys["seed"])

            def generate(self, prompts, sampling_params, use_tqdm, lora_request=None):
                if isinstance(sampling_params, SamplingParams):
                    sampling_params = [sampling_params] * len(prompts)
                found = []
                for prompt, parameters in zip(prompts, sampling_params, strict=True):
                    if isinstance(prompt, TextPrompt):
                        asked.append((prompt["prompt"], parameters.keys, prompt["multi_modal_data"]["image"]))
                    else:
                        asked.append((tuple(prompt["prompt_token_ids"]), parameters.keys))
                    seed = parameters.keys.get("seed")
                    rng = self.own if seed is None else random.Random(seed)
                    found.append(_Output(f"{rng.randrange(9)} + {rng.randrange(9)} = {rng.randrange(9)}"))
                return found
    """,
    "lora/__init__.py": "",
    "lora/request.py": "class LoRARequest: pass",
    "renderers/__init__.py": "",
    "renderers/hf.py": "def resolve_chat_template(tokenizer, **keys): return tokenizer.chat_template",
    "tokenizers.py": """
        from transformers import AutoTokenizer

        def get_tokenizer(name, tokenizer_mode, **keys):
            return AutoTokenizer.from_pretrained(name, **keys)
    """,
}


@contextmanager
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package ``vllm`` in a folder of the test, forgotten afterwards; gives the module."""
    from lm_eval.api import registry
    from lm_eval.models import MODEL_MAPPING

    for name, text in VLLM.items():
        path = tmp_path / "site" / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    metadata = tmp_path / "site" / "vllm-0.18.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.18.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    def forget() -> None:
        for name in list(sys.modules):
            if name.partition(".")[0] == "vllm" or name.endswith(("vllm_causallms", "vllm_vlms")):
                del sys.modules[name]
        registry._materialise_placeholder.cache_clear()
        registry.model_registry._objs.update({name: MODEL_MAPPING[name] for name in ("vllm", "vllm-vlm")})

    forget()
    yield importlib.import_module("vllm")
    forget()
