"""How a run's process is started: the folder below which Ray's sockets lie, and the end of its batch job."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="verl is not installed (extra `verl`)")

from bapo import __main__ as bapo
from bapo.engines.verl import launch, settings
from bapo.errors import JobFailed
from bapo.experiments.compose import compose_config
from bapo.experiments.places import data_directory
from bapo.store.files import read_json


@pytest.mark.parametrize(("length", "short"), [(19, True), (20, False)])
def test_rays_sockets_have_room_below_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, length: int, short: bool
) -> None:
    """With the largest process number of Linux, by Ray's own check, in a folder as it names its sessions."""
    from ray._private.utils import validate_socket_filepath

    folder = "/tmp/" + "x" * (length - 5)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: folder)
    assert launch._temporary() == (folder if short else "/tmp")
    date = datetime.datetime.today().strftime("%Y-%m-%d_%H-%M-%S_%f")
    path = f"{folder}/bv-4194304-abcdefgh/ray/session_{date}_4194304/sockets/plasma_store"
    assert len(path) == len(folder + launch.SOCKET)
    if short:
        validate_socket_filepath(path)
    else:
        with pytest.raises(OSError, match="AF_UNIX path length cannot exceed 107 bytes"):
            validate_socket_filepath(path)


def test_the_end_of_the_job_counts_from_its_beginning(
    tiny_world: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not from when its GPUs were free, its environment looked at and Ray imported."""
    began, clock, facts = time.time(), time.time, {}

    @contextlib.contextmanager
    def waited(*_: object) -> Iterator[None]:
        monkeypatch.setattr(time, "time", lambda: clock() + 600)
        yield

    def run(work: Path, *_: object) -> None:
        facts.update(read_json(work / settings.FACTS))
        raise JobFailed("far enough")

    monkeypatch.setattr(bapo, "_own_gpus", waited)
    monkeypatch.setattr(launch, "_run_job", run)
    results = f"paths.results={tmp_path}"
    source, mine = (data_directory(compose_config(w)) for w in (tiny_world, [*tiny_world, "engine=verl", results]))
    shutil.copytree(source.parent, mine.parent)
    words = [*tiny_world, "engine=verl", "device=cpu", "method=grpo", "checkpoint.job_minutes=20", results]
    assert bapo.main(["train", *words]) == 1
    assert "far enough" in capsys.readouterr().err
    assert facts["end"] == pytest.approx(began + 1200, abs=60)
