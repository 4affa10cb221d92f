"""Processors and the end of a job, as Slurm, container and kernel tell them; driver, CUDA and packages of a job."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bapo.errors import UserError
from bapo.gpu import allocation, environment

#: a torch that answers what the checks ask
TORCH = """
__version__ = "2.11.0"
class version: cuda = "13.0"
class cuda:
    device_count = staticmethod(lambda: {count})
    get_device_name = staticmethod(lambda i: "NVIDIA A100-SXM4-80GB")
    @staticmethod
    def init():
        if not {count}: raise RuntimeError("The NVIDIA driver on your system is too old")
print("a line that is no answer")
"""


def test_the_fewest_processors_count(machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(allocation, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert allocation.cpus() == 64
    (tmp_path / "cpu.max").write_text("max 100000\n", encoding="ascii")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "16")
    assert allocation.cpus() == 16
    for quota, wanted in ((1_200_000, 12), (50_000, 1)):
        (tmp_path / "cpu.max").write_text(f"{quota} 100000\n", encoding="ascii")
        assert allocation.cpus() == wanted


def test_the_end_of_a_slurm_job(machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert allocation.end() is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # tests of a real Slurm may run on this machine
    assert allocation.end() is None  # no scontrol
    at = int(time.time()) + 600
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))
    script = tmp_path / "bin" / "scontrol"
    for said, wanted in ((f"JobId=7 StartTime=x EndTime={text} Deadline=N/A", at), ("JobId=7 EndTime=Unknown", None)):
        script.write_text(f"#!/bin/sh\n[ $4 = 7 ] && echo {said}\n", encoding="utf-8")
        script.chmod(0o755)
        assert allocation.end() == wanted
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(at + 5))
    assert allocation.end() == at + 5


@pytest.mark.parametrize(
    ("there", "gpus", "modules", "message"),
    [
        (2, 2, ["flash_attn"], None),
        (0, 2, [], r"CUDA: torch 2\.11\.0, CUDA 13\.0, driver 580\.95\.05: RuntimeError: The NVIDIA driver"),
        (1, 2, [], r"GPUs: 1 visible \(NVIDIA A100-SXM4-80GB\), 2 needed"),
        (1, 1, ["flash_attn", "vllm"], r"vllm: ImportError: libcudart\.so\.12"),
        (1, 1, ["crashes"], r"importing torch crashes ended it"),
    ],
)
def test_what_does_not_fit_is_named_before_a_job_starts(
    machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: int,
    gpus: int,
    modules: list[str],
    message: str | None,
) -> None:
    """A torch that sees some GPUs, with a package that works and two that do not."""
    machine(2)
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (folder / "torch.py").write_text(TORCH.format(count=there), encoding="utf-8")
    (folder / "flash_attn.py").write_text("", encoding="utf-8")
    (folder / "vllm.py").write_text("raise ImportError('libcudart.so.12: cannot open')", encoding="utf-8")
    (folder / "crashes.py").write_text("import os; os.abort()", encoding="utf-8")
    if message is None:
        environment.require(gpus, modules)
    else:
        with pytest.raises(UserError, match=message):
            environment.require(gpus, modules)
