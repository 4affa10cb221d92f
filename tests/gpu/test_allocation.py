"""Processors and the end of a job, as Slurm, container and kernel tell them."""

from __future__ import annotations

import os
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


def test_the_end_of_a_slurm_job(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1800000000")
    assert allocation.end() is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert allocation.end() == 1_800_000_000
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert allocation.end() is None
