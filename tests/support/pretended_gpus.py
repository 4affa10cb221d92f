"""A machine with pretended GPUs: an nvidia-smi that lists them, and lock files of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bapo.gpu import devices

Machine = Callable[..., None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Give the machine so many GPUs of so many MiB; None: nvidia-smi fails, as it does without a driver."""
    for name in (devices.VISIBLE, "CUDA_DEVICE_ORDER", "SLURM_JOB_ID", "SLURM_JOB_END_TIME", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(devices, "FOLDER", tmp_path / "locks")
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def give(count: int | None, memory: int = 81920) -> None:
        lines = "".join(f"{i}, GPU-{i:08d}, {memory}\\n" for i in range(count or 0))
        script = f"printf '{lines}'" if count is not None else "echo 'Failed to communicate with the driver.'; exit 9"
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / "nvidia-smi").chmod(0o755)
        devices.installed.cache_clear()

    devices.installed.cache_clear()
    yield give
    devices.installed.cache_clear()
