"""What lies in a run's folder is read as what it must be, and a run is told from another by what is left of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bapo.errors import UserError
from bapo.store.files import (
    damaged_checkpoint,
    fingerprints,
    newest_intact,
    read_json,
    verify_files,
    write_json,
    write_text,
)
from bapo.store.lock import locked, set_aside

DEEP = b"[" * 100_000


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b"\xff", b"1" * 5000, DEEP, b'{"a": 1, "a": 2}', None])
def test_what_is_no_object_of_json_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "manifest.json"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(UserError, match=r"manifest\.json is damaged.* \(") as error:
        read_json(file)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])  # what stands for a device
@pytest.mark.parametrize("link", [False, True])
def test_a_file_takes_the_place_of_files_alone(tmp_path: Path, make: Callable[[Path], None], link: bool) -> None:
    there = tmp_path / "there"
    make(there)
    if link:
        (tmp_path / "link").symlink_to(there)
    before = {path: path.lstat() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match="not a regular file; name another place"):
        write_text(tmp_path / ("link" if link else "there"), "x")
    assert {path: path.lstat() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "summary", [{}, {"files": {}}, *({"identity": "a", "files": files} for files in ([], {"x": 5}, 5))], ids=str
)
def test_a_summary_seals_its_files(tmp_path: Path, summary: object) -> None:
    (tmp_path / "x").write_text("x")
    write_json(tmp_path / "summary.json", summary)
    with pytest.raises(UserError, match=r"damaged; delete its job's summary\.json"):
        verify_files(tmp_path)


@pytest.mark.parametrize("checksums", [None, b"{", b"{}", b"[]", b'{"config.json": 5}', b'{"config.json": {}}', DEEP])
def test_a_checkpoint_without_its_checksums_is_not_gone_on_from(
    tmp_path: Path, checksums: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer = tmp_path / "step_000001", tmp_path / "step_000002"
    for folder in (older, newer):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        write_json(folder / "checksums.json", fingerprints(folder, ["config.json"]))
    assert damaged_checkpoint(newer) is None
    (newer / "checksums.json").unlink() if checksums is None else (newer / "checksums.json").write_bytes(checksums)
    assert newest_intact([newer, older]) == older
    assert str(newer) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "aside"),
    [
        ({"manifest.json": {"identity": "a"}}, None),
        ({"manifest.json": {"identity": "b"}}, "b"),
        ({"manifest.json": [], "summary.json": {"identity": "a"}}, None),
        ({"manifest.json": {}, "summary.json": {"identity": "b"}}, "b"),
        ({"summary.json": {"identity": "b"}}, "b"),
        ({"manifest.json": 5, "checkpoints/step_000002/trainer/state.json": {"identity": "a"}}, None),
        ({"checkpoints/verl/global_step_2/bapo/state.json": {"identity": "a"}, "summary.json": []}, None),
        ({"checkpoints/step_000002/trainer/state.json": {"step": 2}}, "unknown"),
        ({"manifest.json": {"identity": "../../b"}}, "unknown"),
        ({"manifest.json": {"identity": ["b"]}, "steps.parquet": 0}, "unknown"),
        ({"notes.txt": 0}, None),
    ],
)
def test_a_run_is_known_by_what_is_left_of_it(tmp_path: Path, files: dict[str, object], aside: str | None) -> None:
    run = tmp_path / "seed1"
    for name, content in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(json.dumps(content))
    moved = set_aside(run, "a")
    assert (moved and moved.name) == (aside and f".seed1.was-{aside}")
    assert all(((moved or run) / name).exists() for name in files)


@pytest.mark.parametrize("name", ["summary.json", "steps.parquet", "config.yaml"])
def test_a_folder_in_the_place_of_a_file_is_named_before_the_work(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"{name} is a folder"), locked(tmp_path):
        pytest.fail("the work began")
    (tmp_path / name).rmdir()
    with locked(tmp_path, patience=0):
        pass
