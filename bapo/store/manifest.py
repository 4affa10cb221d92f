"""``manifest.json``: the code, packages and hardware that wrote a folder, and when."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import subprocess
import time
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from bapo import __version__
from bapo.errors import UserError
from bapo.store.files import MANIFEST, read_json, write_json


def git_state(folder: Path | None = None) -> dict[str, Any]:
    """Return {"commit", "dirty"} of the checkout that the package runs from; their values are None outside one."""
    folder = folder or Path(__file__).resolve().parent
    command = ["git", "-C", str(folder)]
    try:
        commit = subprocess.run([*command, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        changes = subprocess.run(
            [*command, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, timeout=10
        )
        return {"commit": commit.stdout.strip(), "dirty": bool(changes.stdout.strip())}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    names = ("torch", "transformers", "lm-eval", "numpy", "pandas", "pyarrow", "safetensors", "verl", "vllm", "ray")
    versions = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def hardware() -> dict[str, Any]:
    """Return the processor, cores, memory and system, without importing torch."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    memory = None
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"processor": model, "cores": os.cpu_count(), "memory_bytes": memory, "system": platform.platform()}


def peak_memory() -> int:
    """Return the most resident memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def start_manifest(folder: Path, identity: str, **content: Any) -> dict[str, Any]:
    """Write and return ``manifest.json`` for a run that begins or resumes."""
    path = folder / MANIFEST
    previous: dict[str, Any] = {}
    if path.exists():
        with contextlib.suppress(UserError):
            previous = read_json(path)
    same = previous.get("identity") == identity
    manifest = {
        "identity": identity,
        **content,
        "code": {"version": __version__, **git_state()},
        "packages": package_versions(),
        "hardware": hardware(),
        "started": previous.get("started", timestamp()) if same else timestamp(),
        "ended": None,
        "resumed": previous.get("resumed", -1) + 1 if same else 0,
    }
    write_json(path, manifest)
    return manifest


def end_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_json(folder / MANIFEST, {**manifest, "ended": timestamp(), "peak_memory_bytes": peak_memory()})
