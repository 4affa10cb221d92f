"""A sweep's study in a real PostgreSQL server, which is started for the test and stopped again."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sweep_world import FREE, SweepWorld

from bapo.errors import UserError
from bapo.sweeps import files, storage, study, worker


def binaries() -> Path:
    """The folder of Debian's newest server. Skips the test, with a reason, where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if not found:
        pytest.skip("no PostgreSQL server: apt-get install --no-install-recommends postgresql")
    pytest.importorskip("psycopg", reason="no driver for PostgreSQL: pip install -e '.[test]'")
    return found[-1].parent


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of an empty database behind a socket in a folder of its own; no port is opened."""
    folder = Path(tempfile.mkdtemp(prefix="bapo-pg-", dir="/tmp"))  # a socket's path must be short
    owner = None
    try:
        place = binaries()
        if os.geteuid() == 0:  # the server refuses to run as root
            try:
                owner = pwd.getpwnam("postgres").pw_name
            except KeyError:
                pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
            shutil.chown(folder, owner)
        data, common = folder / "data", {"user": owner, "cwd": folder, "check": True, "capture_output": True}
        subprocess.run([place / "initdb", "-D", data, "-U", "sweeper", "-A", "trust", "--no-sync"], **common)
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        control = [place / "pg_ctl", "-D", data, "-w", "-t", "120"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # the server keeps a pipe open
        start = [*control, "-o", options, "-l", folder / "log", "start"]
        subprocess.run(start, user=owner, cwd=folder, check=True, **quiet)
        try:
            yield f"postgresql+psycopg://sweeper@/postgres?host={folder}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **common)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.system
def test_a_study_in_postgresql_is_shared_resumed_and_exact(
    server: str, tmp_path: Path, tiny_world: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SweepWorld(tmp_path, tiny_world, monkeypatch)
    world.write(FREE, storage="${oc.env:SWEEP_STORAGE}", scales={"smoke": {"trials": 2, "seeds": [1]}})
    monkeypatch.setenv("SWEEP_STORAGE", server)
    sweep = files.load("tiny", world.settings)
    assert sweep.storage == server
    # slot 1 is left in its trial, as kill -9 leaves it
    left = study.claim(study.open_study(sweep, world.settings, 1), 1, sweep.retries)
    drawn = {p: left._suggest(p, d) for q in sweep.parameters for p, d in q.distributions().items()}

    told = [worker.run_slot(sweep, world.settings, slot) for slot in (0, 1)]
    assert [t["state"] for t in told] == ["complete"] * 2 and [t["starts"] for t in told] == [1, 2]
    assert told[1]["drawn"] == drawn and told[1]["number"] == left.number
    found = study.open_study(sweep, world.settings).get_trials()
    assert sorted(t.user_attrs["slot"] for t in found) == [0, 1]
    assert {t.user_attrs["slot"]: t.value for t in found} == {t["slot"]: t["value"] for t in told}
    assert not (study.folder_of(sweep, world.settings) / storage.JOURNAL).exists()

    world.write(FREE, storage=server, scales={"smoke": {"trials": 2, "seeds": [1]}}, startup=7)
    with pytest.raises(UserError, match="study smoke/tiny in the storage was made with another sampler"):
        study.open_study(files.load("tiny", world.settings), world.settings)


def test_a_server_that_is_not_there_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="no driver for PostgreSQL: pip install -e '.[test]'")
    url = f"postgresql+psycopg://me:secret@/x?host={tmp_path}"
    with pytest.raises(UserError, match=r"storage postgresql\+psycopg:...: cannot be opened") as error:
        storage.open_storage(url, tmp_path)
    assert "secret" not in str(error.value)
    with pytest.raises(UserError, match="its driver is not installed"):
        storage.open_storage("postgresql+nosuchdriver://me@/x", tmp_path)
