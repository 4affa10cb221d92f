"""Which GPUs may be used here, and which of them a job has to itself.

A job locks a file for each of its GPUs and sees no other GPU. The locks are the kernel's: they end with the process,
also after kill -9, and hold between all jobs of a machine, whoever started them.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

from bapo.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: not in TMPDIR, which a batch system makes new for each job
FOLDER = Path("/tmp/bapo-gpus")


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi lists it. memory: MiB."""

    index: str
    uuid: str
    name: str
    memory: int
    driver: str

    @property
    def gigabytes(self) -> float:
        return self.memory * 2**20 / 1e9


@cache
def installed() -> tuple[Gpu, ...]:
    """List the GPUs that nvidia-smi finds; none without nvidia-smi or a working driver."""
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        print(f"warning: no GPU is used: {error} {getattr(error, 'stdout', '')}", file=sys.stderr)
        return ()
    rows = [[part.strip() for part in line.split(",")] for line in listed.splitlines() if line.strip()]
    # memory is "[N/A]" where GPU and host share theirs
    return tuple(Gpu(i, uuid, name, int(m) if m.isdigit() else 0, driver) for i, uuid, name, m, driver in rows)


def visible() -> list[str]:
    """Name the GPUs that this process may use, as CUDA_VISIBLE_DEVICES does.

    That variable decides where it is set, as it is in a Slurm job with GPUs; elsewhere every installed GPU counts, and
    in a Slurm job that asked for none, none.
    """
    if VISIBLE in os.environ:
        names = [name.strip() for name in os.environ[VISIBLE].split(",")]
        # CUDA ignores what follows a name that it does not know; -1, NoDevFiles and nothing at all stand for none
        known = [name[:1].isdigit() or name.startswith(("GPU-", "MIG-")) for name in names]
        return list(dict.fromkeys(names[: known.index(False)] if False in known else names))
    return [] if "SLURM_JOB_ID" in os.environ else [gpu.index for gpu in installed()]


def known() -> dict[str, Gpu]:
    """Return the visible GPUs that nvidia-smi knows, by the name that CUDA_VISIBLE_DEVICES has for them.

    That may be the beginning of a uuid. A part of a GPU (MIG) is not known.
    """
    return {
        name: gpu
        for name in visible()
        for gpu in installed()
        if name == gpu.index or (name.startswith("GPU-") and gpu.uuid.startswith(name))
    }


def require(count: int, there: int) -> None:
    """Raise UserError where a job asks for more GPUs than there are."""
    if count > there:
        raise UserError(
            f"{count} GPUs asked for, {there} here ({VISIBLE}={os.environ.get(VISIBLE, 'not set')}): set "
            f"verl.gpus_per_node or device=cpu, or submit to a cluster with --gpus={count} (docs/slurm.md)"
        )


@contextlib.contextmanager
def taken(count: int) -> Iterator[list[str]]:
    """Have ``count`` of the visible GPUs for this process alone, waiting for others to finish; yields their names.

    CUDA_VISIBLE_DEVICES names them and no others, for this process and those that it starts, so this comes before
    anything that starts CUDA. Raises UserError if there are fewer than ``count``.
    """
    names = visible() if count else []
    require(count, len(names))
    before = {key: os.environ.get(key) for key in (VISIBLE, "CUDA_DEVICE_ORDER")}
    locks = _lock({name: FOLDER / _lock_name(name) for name in names}, count) if count else {}
    os.environ[VISIBLE] = ",".join(locks)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's; CUDA's own begins with the fastest
    try:
        yield list(locks)
    finally:
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.__setitem__(key, value)
        for lock in locks.values():
            lock.release()


def _lock(paths: Mapping[str, Path], count: int) -> dict[str, FileLock]:
    """Lock ``count`` GPUs, or wait holding none, so that two waiting jobs never hold what the other one needs."""
    told = False
    try:
        FOLDER.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):  # another user's
            FOLDER.chmod(0o777)
        while True:
            held: dict[str, FileLock] = {}
            for name, path in sorted(paths.items(), key=lambda entry: entry[1]):
                lock = FileLock(path, timeout=0, mode=0o666)
                with contextlib.suppress(Timeout):
                    if len(held) < count:
                        held[name] = lock.acquire().lock
            if len(held) == count:
                break
            for lock in held.values():
                lock.release()
            if not told:
                users = ", ".join(f"{name} ({path.read_text()})" for name, path in paths.items())
                print(f"waiting for {count} GPUs; last used: {users}", file=sys.stderr, flush=True)
                told = True
            time.sleep(1.0)
        for name in held:
            paths[name].write_text(f"process {os.getpid()} on {platform.node()}")
    except OSError as error:
        raise UserError(f"{FOLDER}: no lock for a GPU can be had here ({error}); make it writable") from None
    return held


def _lock_name(name: str) -> str:
    """Name a GPU whatever number a job knows it by: under cgroups every Slurm job counts its own from 0."""
    gpu = known().get(name)
    uuid = gpu.uuid if gpu else name
    if uuid.isdigit():  # nvidia-smi does not know it; Slurm gives it to one job at a time
        return f"gpu-{uuid}-{os.environ.get('SLURM_JOB_ID', '')}"
    return uuid.replace("/", "-")
