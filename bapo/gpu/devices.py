"""Which GPUs may be used here, and which of them a job has to itself.

A job locks a file for each of its GPUs and sees no other GPU. The locks are the kernel's (flock): they end with the
process, also after kill -9, and hold between all jobs of a machine, whoever started them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bapo.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: not in TMPDIR, which a batch system makes new for each job
FOLDER = Path("/tmp/bapo-gpus")
#: of nvidia-smi: seconds that it may take, and what it is asked
PATIENCE = 60
QUERY = ("index", "uuid", "name", "memory.total", "driver_version")


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
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"warning: nvidia-smi gives no answer ({error}); no GPU is used", file=sys.stderr)
        return ()
    if done.returncode:
        print(f"warning: nvidia-smi: {' '.join(done.stdout.split())}; no GPU is used", file=sys.stderr)
        return ()
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
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


@contextlib.contextmanager
def taken(count: int) -> Iterator[list[str]]:
    """Have ``count`` of the visible GPUs for this process alone, waiting for others to finish; yields their names.

    CUDA_VISIBLE_DEVICES names them and no others, for this process and those that it starts, so this comes before
    anything that starts CUDA. All are taken at once or none, so two waiting jobs never hold what the other one needs; a
    job that wants many may wait long for a moment in which so many are free.

    Raises UserError if there are fewer than ``count``.
    """
    names = visible()
    require(count, len(names))
    with contextlib.ExitStack() as stack:
        files = _lock(names, count, stack)
        stack.enter_context(_seen(files))
        _HELD[:] = files.values()
        try:
            yield list(files)
        finally:
            _HELD.clear()


@contextlib.contextmanager
def shown(count: int) -> Iterator[list[str]]:
    """Have the processes started here see ``count`` GPUs that were free a moment ago, which they lock themselves.

    For what starts such jobs one after the other: holding the locks, it would be waited for by its own jobs.
    """
    with taken(count) as names:
        pass
    with _seen(names):
        yield names


@contextlib.contextmanager
def _seen(names: Iterable[str]) -> Iterator[None]:
    """Let CUDA see these GPUs alone."""
    before = {key: os.environ.get(key) for key in (VISIBLE, "CUDA_DEVICE_ORDER")}
    os.environ[VISIBLE] = ",".join(names)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's; CUDA's own begins with the fastest
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.__setitem__(key, value)


def require(count: int, there: int) -> None:
    """Raise UserError where a job asks for more GPUs than there are."""
    if count > there:
        listed = f"{VISIBLE}={os.environ[VISIBLE]!r}" if VISIBLE in os.environ else "nvidia-smi"
        if VISIBLE not in os.environ and "SLURM_JOB_ID" in os.environ:
            raise UserError(
                f"{_gpus(count)} asked for, but this Slurm job has none ({VISIBLE} is not set): submit it with "
                f"--gpus={count}, or leave CPU jobs on device=cpu (docs/slurm.md)"
            )
        raise UserError(
            f"{_gpus(count)} asked for, {there} here (by {listed}): set verl.gpus_per_node or device=cpu, name GPUs "
            "by CUDA_VISIBLE_DEVICES or --config gpus=[...], or submit to a cluster (docs/slurm.md)"
        )


#: descriptors of the locks that this process holds
_HELD: list[int] = []


def held() -> tuple[int, ...]:
    """Return the descriptors to pass on (``pass_fds``) to a process that may outlive this one and uses its GPUs."""
    return tuple(_HELD)


def _lock(names: Sequence[str], count: int, stack: contextlib.ExitStack) -> dict[str, int]:
    """Return {name: descriptor of its lock} of the first ``count`` that are free."""
    if not count:
        return {}
    told = False
    queue = _open("queue")  # so that nobody sees locks which another one is only trying
    stack.callback(os.close, queue)
    while True:
        fcntl.flock(queue, fcntl.LOCK_EX)
        try:
            files = _free(names, count)
        finally:
            fcntl.flock(queue, fcntl.LOCK_UN)
        if len(files) == count:
            for file in files.values():
                stack.callback(os.close, file)
                os.ftruncate(file, 0)
                os.pwrite(file, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)
            return files
        if not told:
            holders = {name: holder for name in names if (holder := _holder(name))}
            listed = ", ".join(f"{name} ({holder})" for name, holder in holders.items())
            print(f"waiting for {_gpus(count)}; in use: {listed}", file=sys.stderr, flush=True)
            told = True
        time.sleep(1.0)


def _free(names: Sequence[str], count: int) -> dict[str, int]:
    """Lock ``count`` of them, or none."""
    files: dict[str, int] = {}
    for name in names:
        file = _open(_lock_name(name))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        files[name] = file
        if len(files) == count:
            return files
    for file in files.values():
        os.close(file)
    return {}


def _holder(name: str) -> str:
    """Say who has a GPU, as far as its lock tells; nothing for a free one."""
    file = _open(_lock_name(name))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return ""
    except BlockingIOError:
        return os.pread(file, 200, 0).decode(errors="replace").strip() or "another process"
    finally:
        os.close(file)


def _lock_name(name: str) -> str:
    """Name a GPU whatever number a job knows it by: under cgroups every Slurm job counts its own from 0."""
    gpu = known().get(name)
    uuid = gpu.uuid if gpu else name
    if uuid.isdigit():  # nvidia-smi does not know it; Slurm gives it to one job at a time
        return "-".join(("gpu", uuid, *filter(None, [os.environ.get("SLURM_JOB_ID")])))
    return uuid.replace("/", "-")


def _open(name: str) -> int:
    """Open a lock file that every user of the machine may lock."""
    path = FOLDER / name
    try:
        if not FOLDER.exists():
            FOLDER.mkdir(exist_ok=True)
            FOLDER.chmod(0o1777)
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        # without O_CREAT above: in such a folder the kernel refuses it for another user's file
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        os.fchmod(file, 0o666)  # whatever the umask
        return file
    except OSError as error:
        raise UserError(
            f"{path}: no lock for a GPU can be had here ({error.strerror}); make {FOLDER} writable"
        ) from None


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"
