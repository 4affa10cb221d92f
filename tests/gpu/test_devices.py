"""Every job has GPUs to itself: which are visible, locks, what a kill leaves; its processors and its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bapo.errors import UserError
from bapo.gpu import allocation, devices

#: takes GPUs, says which, and holds them until its input ends
HOLD = """
import os, sys
from pathlib import Path
from bapo.gpu import devices
devices.FOLDER = Path(sys.argv[1])
with devices.reserve(int(sys.argv[2])) as names:
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.read()
"""


def holder(count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(devices.FOLDER), str(count)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize(
    ("variable", "wanted"),
    [
        (None, ["0", "1", "2", "3"]),
        ("2,3", ["2", "3"]),
        ("3, 1, 3", ["3", "1"]),
        ("GPU-00000001", ["GPU-00000001"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["1"]),
        ("NoDevFiles", []),  # Slurm's word for none
    ],
)
def test_what_is_visible(machine, monkeypatch: pytest.MonkeyPatch, variable: str | None, wanted: list[str]) -> None:
    machine(4)
    if variable is not None:
        monkeypatch.setenv(devices.VISIBLE, variable)
    assert devices.visible() == wanted


def test_without_a_driver_there_are_none(machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine(None)
    assert devices.visible() == []
    assert "Failed to communicate with the driver" in capsys.readouterr().err


def test_a_job_sees_its_own_gpus_alone(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(4)
    with devices.reserve(2) as first:
        assert first == ["0", "1"] and os.environ[devices.VISIBLE] == "0,1"
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert devices.VISIBLE not in os.environ and "CUDA_DEVICE_ORDER" not in os.environ
    monkeypatch.setenv(devices.VISIBLE, "3,2")
    with devices.reserve(1) as names:
        assert names == ["2"]
    with devices.reserve(0) as names:
        assert names == [] and os.environ[devices.VISIBLE] == ""
    assert os.environ[devices.VISIBLE] == "3,2"


def test_the_locks_folder_is_no_link_to_another_folder(
    machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in /tmp, where every user may make one."""
    machine(1)
    (theirs := tmp_path / "theirs").mkdir(mode=0o700)
    monkeypatch.setattr(devices, "FOLDER", tmp_path / "locks")
    devices.FOLDER.symlink_to(theirs)
    with pytest.raises(UserError, match="locks: is no folder"), devices.reserve(1):
        pass
    assert theirs.stat().st_mode & 0o777 == 0o700


@pytest.mark.system
def test_jobs_have_different_gpus_and_a_kill_frees_them(machine) -> None:
    """Three jobs of two GPUs on four: two at once, the third after kill -9 of the first; nothing is cleaned up."""
    machine(4)
    first = holder(2)
    seen = [first.stdout.readline().strip()]
    second = holder(2)
    seen.append(second.stdout.readline().strip())
    assert seen == ["0,1", "2,3"]
    third = holder(2)
    assert "waiting for 2 of the GPUs 0, 1, 2, 3" in third.stderr.readline()
    first.kill()
    assert third.stdout.readline().strip() == seen[0]
    for process in (first, second, third):
        process.communicate()


@pytest.mark.system
def test_the_lock_is_the_gpus_whatever_its_number(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number in one job, by its identifier in another; without nvidia-smi a number counts within a Slurm job."""
    machine(2)
    with devices.reserve(1):
        monkeypatch.setenv(devices.VISIBLE, "GPU-00000000,GPU-00000001")
        other = holder(1)
        assert other.stdout.readline().strip() == "GPU-00000001"
        other.communicate()
    machine(None)
    monkeypatch.setenv(devices.VISIBLE, "0")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with devices.reserve(1):
        monkeypatch.setenv("SLURM_JOB_ID", "2")
        other = holder(1)
        assert other.stdout.readline().strip() == "0"
        other.communicate()


def test_only_visible_gpus_are_known_by_whatever_name(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(3)
    monkeypatch.setenv(devices.VISIBLE, "2,GPU-00000000,MIG-1b2c")
    assert {name: gpu.index for name, gpu in devices.known_gpus().items()} == {"2": "2", "GPU-00000000": "0"}
    monkeypatch.setenv(devices.VISIBLE, "GPU-0000000")  # CUDA takes the beginning of one, too
    assert set(devices.known_gpus()) == {"GPU-0000000"}
    assert round(next(iter(devices.known_gpus().values())).gigabytes, 1) == 85.9


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
