"""Which GPUs may be used here, and which of them a job has to itself.

A job locks a file for each of its GPUs and sees no other GPU. The locks are the kernel's: they end with the process,
also after kill -9, and hold between all jobs of a machine, whoever started them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bapo.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: the folder of the locks: not TMPDIR, which a batch system makes new for each job
FOLDER = Path("/tmp/bapo-gpus")


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi lists it. memory: MiB; 0 where GPU and host share theirs."""

    index: str
    uuid: str
    memory: int

    @property
    def gigabytes(self) -> float:
        return self.memory * 2**20 / 1e9


@cache
def installed() -> tuple[Gpu, ...]:
    """List the GPUs that nvidia-smi finds; none without nvidia-smi or a working driver."""
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        print(f"warning: no GPU is used: {error} {getattr(error, 'stdout', '')}", file=sys.stderr)
        return ()
    rows = [[part.strip() for part in line.split(",")] for line in listed.splitlines() if line.count(",") == 2]
    return tuple(Gpu(index, uuid, int(memory) if memory.isdigit() else 0) for index, uuid, memory in rows)


def visible() -> list[str]:
    """Name the GPUs that this process may use, as CUDA_VISIBLE_DEVICES does.

    That variable decides where it is set, as it is in a Slurm job with GPUs; elsewhere every installed GPU counts, and
    in a Slurm job that asked for none, none.
    """
    if VISIBLE in os.environ:
        names = [name.strip() for name in os.environ[VISIBLE].split(",")]
        # CUDA ignores what follows a name that it does not know; -1, NoDevFiles and nothing at all stand for none
        valid = [name[:1].isdigit() or name.startswith(("GPU-", "MIG-")) for name in names]
        return list(dict.fromkeys(names[: valid.index(False)] if False in valid else names))
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


def require(count: int, present: int) -> None:
    """Raise UserError where a job asks for more GPUs than there are."""
    if count > present:
        raise UserError(
            f"{count} GPUs asked for, {present} here ({VISIBLE}={os.environ.get(VISIBLE, 'not set')}): set "
            f"verl.gpus_per_node or device=cpu, or submit to a cluster with --gpus={count} (docs/paper_scale.md)"
        )


@contextlib.contextmanager
def taken(count: int) -> Iterator[list[str]]:
    """Have ``count`` of the visible GPUs for this process alone, waiting for others to finish; yields their names.

    CUDA_VISIBLE_DEVICES names them and no others, for this process and those that it starts, so this comes before
    anything that starts CUDA. A job that asks for none sees none: with device=auto it would start CUDA on a GPU that
    another job has. Raises UserError if there are fewer than ``count``.
    """
    names = visible() if count else []
    require(count, len(names))
    before = {key: os.environ.get(key) for key in (VISIBLE, "CUDA_DEVICE_ORDER")}
    locks = _lock(names, count) if count else {}
    os.environ[VISIBLE] = ",".join(locks)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's; CUDA's own begins with the fastest
    try:
        yield list(locks)
    finally:
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.__setitem__(key, value)
        for descriptor in locks.values():
            os.close(descriptor)


def _lock(names: Sequence[str], count: int) -> dict[str, int]:
    """Lock ``count`` GPUs, or wait holding none, so that two waiting jobs never hold what the other one needs."""
    FOLDER.mkdir(exist_ok=True)
    with contextlib.suppress(PermissionError):  # another user made it
        FOLDER.chmod(0o1777)  # sticky: nobody removes the file of a lock that another user holds
    paths = {name: FOLDER / _lock_name(name) for name in names}
    announced = False
    while True:
        held: dict[str, int] = {}
        for name in sorted(paths, key=paths.__getitem__):
            if len(held) < count and (lock := _locked(paths[name])) is not None:
                held[name] = lock
        if len(held) == count:
            return held
        for descriptor in held.values():
            os.close(descriptor)
        if not announced:
            print(f"waiting for {count} of the GPUs {', '.join(names)}", file=sys.stderr, flush=True)
            announced = True
        time.sleep(1.0)


def _locked(path: Path) -> int | None:
    """Lock a file and return its descriptor; None where it is taken. It may be another user's: ``filelock`` refuses."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL)
        os.fchmod(descriptor, 0o444)  # the umask must not matter
        os.close(descriptor)
    descriptor = os.open(path, os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _lock_name(name: str) -> str:
    """Name a GPU whatever number a job knows it by: under cgroups every Slurm job counts its own from 0."""
    gpu = known().get(name)
    if gpu is None and name.isdigit():  # nvidia-smi does not know it; Slurm gives it to one job at a time
        return f"gpu-{name}-{os.environ.get('SLURM_JOB_ID', '')}"
    return (gpu.uuid if gpu else name).replace("/", "-")
