"""Finds out which vLLM is installed before a job starts, without importing it, which is slow."""

from __future__ import annotations

import contextlib
import importlib.util
from importlib import metadata

from bapo.errors import UserError

#: the cure for a missing vLLM on CPU cores
VLLM_CPU = "containers/vllm_cpu/install FOLDER makes an environment with vLLM for CPU cores"


def vllm_on_cpu() -> bool:
    """Return whether the installed vLLM is a build for CPU cores, by its version, as vLLM itself does."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return "cpu" in metadata.version("vllm")
    return False


def require_vllm(setting: str, cure: str) -> None:
    """Raise UserError where vLLM is missing. setting: the KEY=VALUE that needs it; cure: what to do about it."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError(f"{setting}: vLLM is not installed; {cure}")
