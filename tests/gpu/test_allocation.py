"""Processors and the end of a job, as Slurm, the container and the kernel tell them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bapo.gpu import allocation


def test_the_fewest_processors_count(machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(allocation, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert allocation.cpus() == 64
    (tmp_path / "cpu.max").write_text("max 100000\n", encoding="ascii")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "16")
    assert allocation.cpus() == 16
    (tmp_path / "cpu.max").write_text("1200000 100000\n", encoding="ascii")
    assert allocation.cpus() == 12
    (tmp_path / "cpu.max").write_text("50000 100000\n", encoding="ascii")
    assert allocation.cpus() == 1


def test_the_end_of_a_slurm_job(machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert allocation.end() is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # tests of a real Slurm may run on this machine
    assert allocation.end() is None  # no scontrol
    at = int(time.time()) + 600
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))
    script = tmp_path / "bin" / "scontrol"
    script.write_text(
        f"#!/bin/sh\n[ $4 = 7 ] && echo JobId=7 StartTime=x EndTime={text} Deadline=N/A\n", encoding="utf-8"
    )
    script.chmod(0o755)
    assert allocation.end() == at
    script.write_text("#!/bin/sh\necho JobId=7 EndTime=Unknown\n", encoding="utf-8")  # no limit
    assert allocation.end() is None
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(at + 5))
    assert allocation.end() == at + 5
