"""Every job has GPUs to itself: which are visible, locks between processes, and what a kill leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bapo.errors import UserError
from bapo.gpu import devices

#: takes GPUs, says which, and holds them until its input ends
HOLD = """
import os, sys
from pathlib import Path
from bapo.gpu import devices
devices.FOLDER = Path(sys.argv[1])
with devices.taken(int(sys.argv[2])) as names:
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.read()
"""


def holder(count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(devices.FOLDER), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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


def test_a_slurm_job_has_what_slurm_gives(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(4)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert devices.visible() == []  # it asked for none, although nvidia-smi shows all
    monkeypatch.setenv(devices.VISIBLE, "0,1")
    assert devices.visible() == ["0", "1"]


def test_no_driver_is_no_gpu(machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine(None)
    assert devices.visible() == []
    assert "warning: nvidia-smi: Failed to communicate with the driver." in capfd.readouterr().err


def test_a_job_sees_its_own_gpus_alone(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(4)
    with devices.taken(2) as first:
        assert (first, os.environ[devices.VISIBLE], os.environ["CUDA_DEVICE_ORDER"]) == (
            ["0", "1"],
            "0,1",
            "PCI_BUS_ID",
        )
        assert len(devices.held()) == 2
        child = holder(1)  # of this job: it sees the job's GPUs, which are taken
        assert child.stderr.readline().startswith("waiting for 1 GPU; in use: 0 (process")
        child.kill()
        child.communicate()
    assert devices.VISIBLE not in os.environ and "CUDA_DEVICE_ORDER" not in os.environ and not devices.held()
    monkeypatch.setenv(devices.VISIBLE, "3,2")
    with devices.taken(1) as names:
        assert names == ["3"]
    assert os.environ[devices.VISIBLE] == "3,2"


def test_jobs_have_different_gpus_and_a_kill_frees_them(machine) -> None:
    """Three jobs of two GPUs on four: two at once, the third after kill -9 of the first; nothing is cleaned up."""
    machine(4)
    first, second = holder(2), holder(2)
    seen = [p.stdout.readline().strip() for p in (first, second)]
    assert sorted(seen) == ["0,1", "2,3"]
    third = holder(2)
    assert third.stderr.readline().startswith("waiting for 2 GPUs; in use: 0 (process")
    time.sleep(1.2)
    assert third.poll() is None
    first.kill()
    assert third.stdout.readline().strip() == seen[0]
    for process in (first, second, third):
        process.communicate()


def test_the_lock_is_the_gpus_whatever_its_number(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number in one job, by its identifier in another."""
    machine(2)
    with devices.taken(1):
        monkeypatch.setenv(devices.VISIBLE, "GPU-00000000,GPU-00000001")
        other = holder(1)
        assert other.stdout.readline().strip() == "GPU-00000001"
        other.communicate()
    assert {path.name for path in devices.FOLDER.iterdir()} == {"queue", "GPU-00000000", "GPU-00000001"}


def test_slurm_jobs_with_their_own_numbers_do_not_wait_for_each_other(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-smi a number means a GPU within a Slurm job only."""
    monkeypatch.setenv(devices.VISIBLE, "0")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with devices.taken(1):
        monkeypatch.setenv("SLURM_JOB_ID", "2")
        other = holder(1)
        assert other.stdout.readline().strip() == "0"
        other.communicate()


def test_more_than_there_are_is_refused(machine) -> None:
    machine(2)
    with pytest.raises(UserError, match=r"^3 GPUs asked for, 2 here \(by nvidia-smi\): set verl.gpus_per_node or"):
        devices.taken(3).__enter__()


def test_a_slurm_job_without_gpus_is_told_to_ask_for_them(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(2)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(UserError, match=r"^1 GPU asked for, but this Slurm job has none .*submit it with --gpus=1"):
        devices.taken(1).__enter__()


def test_a_folder_that_cannot_be_written_is_named(machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(1)
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(devices, "FOLDER", tmp_path / "file" / "locks")
    with pytest.raises(UserError, match=r"no lock for a GPU can be had here .*make .*locks writable"):
        devices.taken(1).__enter__()


def test_only_visible_gpus_are_known_by_whatever_name(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(3)
    monkeypatch.setenv(devices.VISIBLE, "2,GPU-00000000,MIG-1b2c")
    assert {name: gpu.index for name, gpu in devices.known().items()} == {"2": "2", "GPU-00000000": "0"}
    monkeypatch.setenv(devices.VISIBLE, "GPU-0000000")  # CUDA takes the beginning of one, too
    assert set(devices.known()) == {"GPU-0000000"}
    assert round(next(iter(devices.known().values())).gigabytes, 1) == 85.9
