"""``python -m bapo gpu-check --device cpu`` with real vLLM, where its environment is (containers/vllm_cpu)."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT


def _on_cpu() -> bool:
    try:
        return "cpu" in importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.verl
@pytest.mark.skipif(not _on_cpu(), reason="no vLLM for CPU cores; containers/vllm_cpu/install makes its environment")
def test_a_machine_with_vllm_is_fine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bapo", "gpu-check", "--device", "cpu", "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in (
        "vLLM's log-probabilities",
        "altered weights",
        "BAPO steps",
        "killed and resumed",
        "export",
        "evaluation",
    ):
        assert f"fine {name}" in done.stdout
