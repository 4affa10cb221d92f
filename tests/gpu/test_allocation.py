"""Processors and the end of a job, as Slurm, container and kernel tell them."""

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
