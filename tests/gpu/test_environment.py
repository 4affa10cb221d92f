"""Driver, CUDA and packages before a job starts: on this machine's torch, and on pretended ones with GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bapo.errors import UserError
from bapo.gpu import environment

#: a torch that answers what the checks ask
TORCH = """
class version: cuda = {cuda!r}
__version__ = "2.11.0"
class cuda:
    is_available = staticmethod(lambda: {count} > 0)
    device_count = staticmethod(lambda: {count})
    get_device_name = staticmethod(lambda i: "NVIDIA A100-SXM4-80GB")
    @staticmethod
    def init(): raise RuntimeError("The NVIDIA driver on your system is too old")
print("a line that is no answer")
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a torch of some CUDA that sees some GPUs first in the way, with a package that works and two that do not."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (folder / "flash_attn.py").write_text("", encoding="utf-8")
    (folder / "vllm.py").write_text("raise ImportError('libcudart.so.12: cannot open')", encoding="utf-8")
    (folder / "crashes.py").write_text("import os; os.abort()", encoding="utf-8")
    return lambda cuda, count: (folder / "torch.py").write_text(TORCH.format(cuda=cuda, count=count), encoding="utf-8")


def outcome(gpus: int, *modules: str) -> dict[str, bool]:
    return {check.name: check.ok for check in environment.checks(gpus, modules)}


def test_all_is_fine(machine, torch) -> None:
    machine(2)
    torch("13.0", 2)
    assert outcome(2, "flash_attn") == {"driver": True, "CUDA": True, "GPUs": True, "flash_attn": True}
    environment.require(2, ["flash_attn"])


@pytest.mark.parametrize(("cuda", "driver", "fits"), [("13.0", "570.124.06", False), ("12.8", "570.124.06", True)])
def test_a_driver_that_is_too_old_is_named(machine, torch, cuda: str, driver: str, fits: bool) -> None:
    machine(2, driver)
    torch(cuda, 0)
    assert outcome(2) == {"driver": fits, "CUDA": False, "GPUs": False}
    said = r"driver: 570.124.06, CUDA 13.0 of torch 2.11.0 takes 580 or newer; have the driver updated to 580 or newer"
    with pytest.raises(UserError, match=r"CUDA: .*RuntimeError: The NVIDIA driver on your" if fits else said):
        environment.require(2)


def test_an_older_driver_is_fine_where_cuda_runs(machine, torch) -> None:
    """CUDA's compatibility package, in data-centre images, brings it up."""
    machine(2, "550.54.15")
    torch("13.0", 2)
    environment.require(2)


def test_gpus_and_packages_are_counted_and_imported(machine, torch) -> None:
    machine(2)
    torch("13.0", 1)
    with pytest.raises(UserError, match=r"GPUs: 1 visible \(NVIDIA A100-SXM4-80GB\), 2 needed; ask for fewer"):
        environment.require(2)
    with pytest.raises(UserError, match=r"vllm: ImportError: libcudart.so.12: cannot open; make the environment of"):
        environment.require(1, ["flash_attn", "vllm"])
    with pytest.raises(UserError, match=r"importing torch crashes ended it"):
        environment.require(1, ["crashes"])


def test_the_cpu_build_of_torch_is_told(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if torch.version.cuda:
        pytest.skip("this torch has CUDA")
    machine(1)
    with pytest.raises(UserError, match=r"CUDA: torch \S+ of \S+ is built without CUDA; make the environment of GPU"):
        environment.require(1)
    machine(None)
    with pytest.raises(UserError, match=r"driver: nvidia-smi finds no GPU; install NVIDIA's driver; in a container"):
        environment.require(1)
