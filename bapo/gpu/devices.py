"""Finds the GPUs that may be used here, and reserves some of them for a job.

A job locks a file for each of its GPUs and sees no other GPU. The locks belong to the kernel: they end with the
process, also after kill -9, and hold between all jobs of a machine, whoever started them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bapo.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: the folder of the locks, not in TMPDIR, which a batch system may change with each job
FOLDER = Path("/tmp/bapo-gpus")


@dataclass(frozen=True)
class Gpu:
    """Describes a GPU as nvidia-smi lists it. memory: in MiB; 0 where GPU and host share their memory."""

    index: str
    uuid: str
    memory: int

    @property
    def gigabytes(self) -> float:
        return self.memory * 2**20 / 1e9


@cache
def installed() -> tuple[Gpu, ...]:
    """Return the GPUs that nvidia-smi lists; none without nvidia-smi or a working driver."""
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        print(f"warning: no GPU is used: {error} {getattr(error, 'stdout', '')}", file=sys.stderr)
        return ()
    rows = [[value.strip() for value in line.split(",")] for line in listing.splitlines() if line.count(",") == 2]
    return tuple(Gpu(index, uuid, int(memory) if memory.isdigit() else 0) for index, uuid, memory in rows)


def visible() -> list[str]:
    """Return the names of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES.

    That variable decides where it is set, as in a Slurm job with GPUs. Elsewhere all installed GPUs may be used, but
    none in a Slurm job.
    """
    if VISIBLE in os.environ:
        names = [name.strip() for name in os.environ[VISIBLE].split(",")]
        # CUDA ignores a name that it does not know, and all that follow; -1, NoDevFiles and an empty text mean no GPU
        valid = [name[:1].isdigit() or name.startswith(("GPU-", "MIG-")) for name in names]
        return list(dict.fromkeys(names[: valid.index(False)] if False in valid else names))
    return [] if "SLURM_JOB_ID" in os.environ else [gpu.index for gpu in installed()]


def known_gpus() -> dict[str, Gpu]:
    """Return the visible GPUs that nvidia-smi lists, by their names in CUDA_VISIBLE_DEVICES.

    A name may be the beginning of a uuid. Parts of a GPU (MIG) are not listed.
    """
    return {
        name: gpu
        for name in visible()
        for gpu in installed()
        if name == gpu.index or (name.startswith("GPU-") and gpu.uuid.startswith(name))
    }


def require(count: int, present: int) -> None:
    """Raise UserError where a job asks for more GPUs than there are."""
    if count > present:
        raise UserError(
            f"{count} GPUs asked for, {present} here ({VISIBLE}={os.environ.get(VISIBLE, 'not set')}): set "
            f"verl.gpus_per_node or device=cpu, or submit to a cluster with --gpus={count} (docs/paper_scale.md)"
        )


@contextlib.contextmanager
def reserve(count: int) -> Iterator[list[str]]:
    """Reserve ``count`` of the visible GPUs for this process, waiting until they are free; yields their names.

    CUDA_VISIBLE_DEVICES names only these GPUs within the block, also for child processes, so nothing may start CUDA
    before it. With ``count`` 0 no GPU is visible, as device=auto could otherwise use a GPU of another job. Raises
    UserError where fewer than ``count`` are visible.
    """
    names = visible() if count else []
    require(count, len(names))
    previous = {key: os.environ.get(key) for key in (VISIBLE, "CUDA_DEVICE_ORDER")}
    locks = _lock(names, count) if count else {}
    os.environ[VISIBLE] = ",".join(locks)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of nvidia-smi; CUDA's begins with the fastest
    try:
        yield list(locks)
    finally:
        for key, value in previous.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        for descriptor in locks.values():
            os.close(descriptor)


def _lock(names: Sequence[str], count: int) -> dict[str, int]:
    """Lock ``count`` GPUs. While waiting, hold none, so that two jobs never wait for each other."""
    with contextlib.suppress(FileExistsError):
        FOLDER.mkdir()
    status = FOLDER.lstat()
    if not stat.S_ISDIR(status.st_mode):  # a link of another user may lead to a folder of this one
        raise UserError(f"{FOLDER}: is no folder, and GPUs are locked by files in it; remove it")
    if status.st_uid == os.getuid():
        FOLDER.chmod(0o1777)  # sticky: nobody removes the file of a lock that another user holds
    paths = {name: FOLDER / _lock_name(name) for name in names}
    announced = False
    while True:
        locks: dict[str, int] = {}
        for name in sorted(paths, key=paths.__getitem__):
            if len(locks) < count and (lock := _lock_file(paths[name])) is not None:
                locks[name] = lock
        if len(locks) == count:
            return locks
        for descriptor in locks.values():
            os.close(descriptor)
        if not announced:
            print(f"waiting for {count} of the GPUs {', '.join(names)}", file=sys.stderr, flush=True)
            announced = True
        time.sleep(1.0)


def _lock_file(path: Path) -> int | None:
    """Lock a file and return its descriptor, or None where it is locked; ``filelock`` refuses files of other users."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL)
        os.fchmod(descriptor, 0o444)  # whatever the umask is
        os.close(descriptor)
    descriptor = os.open(path, os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _lock_name(name: str) -> str:
    """Name the lock of a GPU, by its uuid: under cgroups each Slurm job counts its GPUs from 0."""
    gpu = known_gpus().get(name)
    if gpu is None and name.isdigit():  # without nvidia-smi, Slurm has to give it to one job at a time
        return f"gpu-{name}-{os.environ.get('SLURM_JOB_ID', '')}"
    return (gpu.uuid if gpu else name).replace("/", "-")
