"""Faults of machines and people: nothing lost, nothing silently wrong, and a sentence that says what to do.

More: test_trainer.py (kill at chosen moments, Ctrl-C, damaged checkpoints and tables, two processes on one run),
test_end_to_end.py (kill -9 of Snakemake), test_evaluation.py and test_evaluation_curve.py (damaged tables and models,
interruptions), test_graders_pool.py (killed checkers), test_verl_config.py (verl's checkpoints).
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.late import LATE
from support.paths import ROOT

from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.places import run_directory
from bapo.store.files import SUMMARY, TABLES, damaged_files, read_json, write_text
from bapo.store.lock import locked

if LATE:
    from support.resumed import assert_same

    from bapo.engines.torch import checkpoints
    from bapo.engines.torch.trainer import train


BUSY = ("method=bapo", "method.v=2", "method.m=2", "seed=71")


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tiny_world: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and folder of it: after a power failure there is a whole checkpoint under its name, or none."""
    flush, rename = os.fsync, os.replace
    flushed: set[str] = set()
    named: list[str] = []

    def flushing(descriptor: int) -> None:
        flush(descriptor)
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    def renaming(source: Path, target: Path) -> None:
        if Path(target).name.startswith("step_"):
            named.append(Path(target).name)
            assert {str(p) for p in [*Path(source).rglob("*"), Path(source)]} <= flushed
        rename(source, target)

    monkeypatch.setattr(os, "fsync", flushing)
    monkeypatch.setattr(os, "replace", renaming)
    settings = ("method=grpo", "seed=72", "train.steps=2", "checkpoint.every=1")
    config = compose_config([*tiny_world, *settings])
    summary = train(config)
    assert named == ["step_000001", "step_000002"]
    last = run_directory(config) / summary["checkpoint"] / "trainer"
    assert all((last / name).read_bytes() == (run_directory(config) / name).read_bytes() for name in TABLES)


# ------------------------------------------------------------------------------------------------ kill -9


@pytest.mark.slow
def test_twenty_kills_at_random_moments(tiny_world: list[str]) -> None:
    """kill -9 of the training process, twenty times; every run ends with the same bits and no half-written checkpoint.

    The children are forked, so a kill hits training and not the import of torch.
    """
    alone, config = (compose_config([*tiny_world, *BUSY, f"method.name={name}"]) for name in ("alone", "killed"))
    train(alone)
    expected, folder = run_directory(alone), run_directory(config)
    moments, killed, ended, longest = random.Random(7), 0, 0, 1.0
    while killed < 20:
        assert ended < 20, "the runs end before they can be killed"
        begun, child = time.monotonic(), os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            train(config)
            os._exit(0)
        deadline = begun + moments.uniform(0.0, longest)
        while time.monotonic() < deadline and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.002)
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):  # it was through
            longest = time.monotonic() - begun
        if (folder / SUMMARY).exists():  # the next run begins anew
            assert_same(expected, folder)
            shutil.rmtree(folder)
            ended += 1
            continue
        killed += 1
        for step in checkpoints.steps_with_trainer(folder) if (folder / "checkpoints").exists() else []:
            place = checkpoints.folder_of(folder, step)
            assert not damaged_files(place, read_json(place / "checksums.json"))
    train(config)
    assert_same(expected, folder)
    assert not list((folder / "checkpoints").glob(".step_*.tmp"))


# ------------------------------------------------------------------------------------------------ disks


def test_a_disk_that_is_full_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file stays whole, nothing half is left, and the error names the file."""
    file = tmp_path / "a.json"
    write_text(file, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"a\.json: no space left"):
        write_text(file, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"] and file.read_text() == "old"


# ------------------------------------------------------------------------------------------------ two at once


@pytest.mark.system
def test_a_second_snakemake_is_refused_while_the_first_one_works(tmp_path: Path) -> None:
    """The lock that `onstart` takes (workflows/common.smk) is the kernel's: it ends with kill -9 too."""
    with locked(tmp_path / ".snakemake" / "bapo"):
        command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
        command += ["--cores", "1", str(tmp_path / "out" / "smoke" / "studies" / "table1.json")]
        command += ["--config", "scale=smoke", f"results={tmp_path / 'out'}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=tmp_path)
        assert done.returncode != 0
        assert "another process (process " in done.stderr and "is working here; wait for it or stop it" in done.stderr
        assert not (tmp_path / "out").exists()
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
