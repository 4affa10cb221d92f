"""Records where files come from: in a run's ``manifest.json``, and beside tables and figures.

``manifest.json`` names the code, packages and hardware that wrote a folder, and the time. Files of ``python -m
analysis`` have a ``.provenance/NAME.json`` beside them, which also has the command and the SHA-256 of the files and of
their inputs. ``bapo provenance FILE`` prints either. Nothing here imports torch or pandas.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import resource
import shlex
import subprocess
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from bapo import __version__
from bapo.errors import UserError
from bapo.store.files import MANIFEST, SUMMARY, Json, read_json, sha256, write_json

FOLDER = ".provenance"
PACKAGES = (
    *("torch", "transformers", "tokenizers", "lm-eval", "math-verify", "sympy", "numpy", "pandas", "pyarrow"),
    *("safetensors", "verl", "vllm", "ray"),
)


# ------------------------------------------------------------------------------------------------ this machine


def git_state() -> Json:
    """Return {"commit", "dirty"} of the checkout that the package runs from.

    Outside a checkout, such as in a copy on another machine, the commit is that of ``BAPO_COMMIT``, or None.
    """
    here = Path(__file__).resolve()
    try:  # an installed package may lie in a folder of another project's checkout, which does not track this file
        _, commit, changes = (
            subprocess.run(
                ["git", "-C", here.parent, *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for words in (
                ("ls-files", "--error-unmatch", here.name),
                ("rev-parse", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no"),
            )
        )
        return {"commit": commit, "dirty": bool(changes)}
    except (OSError, subprocess.SubprocessError):
        return {"commit": os.environ.get("BAPO_COMMIT") or None, "dirty": None}


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def hardware() -> Json:
    """Return the processor, cores, memory and system, without importing torch."""
    cpuinfo = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.*)", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    model = match[1] if match else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"processor": model, "cores": os.cpu_count(), "memory_bytes": memory, "system": platform.platform()}


def peak_memory() -> int:
    """Return the most resident memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _made_by() -> Json:
    code = {"version": __version__, **git_state()}
    return {"code": code, "packages": package_versions(), "hardware": hardware()}


def show() -> None:
    """Print code, packages and machine as JSON, as a manifest has them: ``bapo env``."""
    print(json.dumps(_made_by(), indent=1))


# ------------------------------------------------------------------------------------------------ manifests


def start_manifest(folder: Path, identity: str, **content: object) -> Json:
    """Write and return the manifest of a run that starts or resumes. content: further entries."""
    previous: Json = {}
    with contextlib.suppress(UserError):
        previous = read_json(folder / MANIFEST)
    resumes = previous.get("identity") == identity
    manifest = {
        "identity": identity,
        **content,
        **_made_by(),
        "started": previous.get("started", timestamp()) if resumes else timestamp(),
        "ended": None,
        "resumed": previous.get("resumed", -1) + 1 if resumes else 0,
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def end_manifest(folder: Path, manifest: Json) -> None:
    write_json(folder / MANIFEST, {**manifest, "ended": timestamp(), "peak_memory_bytes": peak_memory()})


# ------------------------------------------------------------------------------------------------ records


def record(files: Iterable[Path], command: Sequence[str], inputs: Iterable[Path]) -> None:
    """Write a record beside ``files``, one for all that differ only in their suffix.

    Paths in it are relative to the folder of the files, so that a results folder may be moved. command: the words after
    ``python -m``; inputs: those that exist are recorded, a summary.json with its identity.
    """
    groups: dict[Path, list[Path]] = {}
    for file in filter(Path.is_file, map(Path, files)):
        groups.setdefault(_record_of(file), []).append(file)
    entries = {path: _input(path) for path in inputs if path.is_file()} if groups else {}
    made_by = {"command": shlex.join(["python", "-m", *command]), **_made_by(), "written": timestamp()}
    for path, outputs in groups.items():
        folder = path.parent.parent
        content = {"files": {f.name: sha256(f) for f in outputs}, **made_by}
        write_json(path, content | {"inputs": {os.path.relpath(p, folder): entry for p, entry in entries.items()}})


def _record_of(file: Path) -> Path:
    return file.parent / FOLDER / f"{file.stem}.json"


def _input(path: Path) -> Json:
    content: Json = {"sha256": sha256(path)}
    if path.name == SUMMARY:
        with contextlib.suppress(UserError):  # a damaged one is recorded without its identity
            content["identity"] = read_json(path).get("identity")
    return content


def main(file: str) -> None:
    """Print the record beside ``file``, or the manifest of the folder around it. Raises UserError without either."""
    path = Path(file).absolute()
    sources = [_record_of(path), *(folder / MANIFEST for folder in (path, *path.parents))]
    source = next((p for p in sources if p.is_file() and path.exists()), None)
    if source is None:
        raise UserError(f"{file}: no record beside it and no {MANIFEST} around it; name a file of a results folder")
    print(json.dumps({"record": str(source), **read_json(source)}, indent=2))
