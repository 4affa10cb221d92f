"""Faults of machines and people: nothing lost, nothing silently wrong, and a sentence that says what to do.

More: test_trainer.py (kill at chosen moments, Ctrl-C, damaged checkpoints and tables, two processes on one run),
test_end_to_end.py (kill -9 of Snakemake), test_evaluation.py and test_evaluation_curve.py (damaged tables and models,
interruptions), test_graders_pool.py (killed checkers), test_verl_config.py (verl's checkpoints).
"""

from __future__ import annotations

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

from bapo.experiments.compose import compose_config
from bapo.experiments.places import run_directory
from bapo.store.files import MANIFEST, SUMMARY, TABLES, TIME_COLUMNS, damaged_files, read_json, read_table, verify_files
from bapo.store.lock import locked

if LATE:
    from bapo.engines.torch import checkpoints
    from bapo.engines.torch.trainer import train


BUSY = ("method=bapo", "method.v=2", "method.m=2", "seed=71")


def at(world: list[str], results: Path) -> list[str]:
    """The overrides of the same world in another results folder, with copies of its problems and base model."""
    source = Path(next(o for o in world if o.startswith("paths.results=")).removeprefix("paths.results="))
    for part in ("countdown/data", "countdown/qwen2-112k/base"):
        shutil.copytree(source / "smoke" / part, results / "smoke" / part)
    return [*(o for o in world if not o.startswith("paths.results=")), f"paths.results={results}"]


def tables(folder: Path) -> dict[str, object]:
    """What a finished run measured, times apart, and the bytes of its last model."""
    summary = verify_files(folder)
    found: dict[str, object] = {}
    for name in TABLES:
        frame = read_table(folder / name)
        found[name] = frame[[c for c in frame.columns if not c.startswith(TIME_COLUMNS)]].to_json()
    return found | {"model": (folder / summary["checkpoint"] / "model.safetensors").read_bytes()}


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tiny_world: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    config = compose_config([*at(tiny_world, tmp_path), *settings])
    summary = train(config)
    assert named == ["step_000001", "step_000002"]
    last = run_directory(config) / summary["checkpoint"] / "trainer"
    assert all((last / name).read_bytes() == (run_directory(config) / name).read_bytes() for name in TABLES)


@pytest.fixture(scope="module")
def finished(tiny_world: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Overrides and folder of a run that nothing disturbed."""
    overrides = [*at(tiny_world, tmp_path_factory.mktemp("finished")), *BUSY]
    train(compose_config(overrides))
    return overrides, run_directory(compose_config(overrides))


def copied(finished: tuple[list[str], Path], results: Path) -> tuple[list[str], Path]:
    """The finished run in another results folder."""
    overrides, folder = finished
    mine = [*at(overrides, results)]
    target = run_directory(compose_config(mine))
    shutil.copytree(folder, target)
    return mine, target


# ------------------------------------------------------------------------------------------------ kill -9


@pytest.mark.slow
def test_twenty_kills_at_random_moments(finished: tuple[list[str], Path], tmp_path: Path) -> None:
    """kill -9 of the training process, twenty times; every run ends with the same bits and no half-written checkpoint.

    The children are forked, so a kill hits training and not the import of torch.
    """
    overrides = at(finished[0], tmp_path)
    config = compose_config(overrides)
    folder, expected = run_directory(config), tables(finished[1])
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
            assert tables(folder) == expected
            shutil.rmtree(folder)
            ended += 1
            continue
        killed += 1
        for step in checkpoints.steps_with_trainer(folder) if (folder / "checkpoints").exists() else []:
            place = checkpoints.folder_of(folder, step)
            assert not damaged_files(place, read_json(place / "checksums.json"))
    train(config)
    assert tables(folder) == expected
    assert not list((folder / "checkpoints").glob(".step_*.tmp"))


# ------------------------------------------------------------------------------------------------ disks


def in_a_namespace(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A shell script with mounts of its own, which end with it; skips where the kernel does not allow that."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("mounts of its own need `unshare -rm`, which is not allowed here")
    command = ["unshare", "-rm", "sh", "-ec", script, "sh", sys.executable, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900)


WRITE = """
import sys
from pathlib import Path
from bapo.store.files import write_text
from bapo.errors import UserError

folder = Path(sys.argv[1])
write_text(folder / "a.json", "old")
try:
    write_text(folder / "a.json", "new" * 100_000)
except UserError as error:
    print(error)
print(sorted(p.name for p in folder.iterdir()), (folder / "a.json").read_text())
"""


def test_a_disk_that_is_full_while_writing(tmp_path: Path) -> None:
    """A real file system of 64 KB: the old file stays whole, nothing half is left, one sentence."""
    done = in_a_namespace(f"mount -t tmpfs -o size=64k none $2\n$1 - $2 <<'E'\n{WRITE}\nE", tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == (
        f"{tmp_path / 'a.json'}: no space left on the device; free some, then run the same command again to resume"
    )
    assert second == "['a.json'] old"


# ------------------------------------------------------------------------------------------------ time and age


def test_a_clock_that_went_back(finished: tuple[list[str], Path], tmp_path: Path) -> None:
    """Nothing in a run is told from the time: not whether it is finished, and not which checkpoint is the newest."""
    overrides, folder = copied(finished, tmp_path)
    expected = tables(folder)
    for path in folder.rglob("*"):
        os.utime(path, (4e9, 4e9))  # the year 2096
    before = (folder / SUMMARY).read_bytes()
    train(compose_config(overrides))
    assert (folder / SUMMARY).read_bytes() == before  # finished is finished
    (folder / SUMMARY).unlink()
    for age, step in enumerate(checkpoints.steps_with_trainer(folder)):  # newest first: now the oldest by its time
        for path in [*checkpoints.folder_of(folder, step).rglob("*"), checkpoints.folder_of(folder, step)]:
            os.utime(path, (1e9 + 1e6 * age, 1e9 + 1e6 * age))
    train(compose_config(overrides))
    assert tables(folder) == expected
    assert read_json(folder / MANIFEST)["resumed"] >= 1


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
