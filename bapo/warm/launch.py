"""Start the warm process for Snakemake."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

from bapo.warm import client

#: the variables NAME_NUM_THREADS that Snakemake sets to 1 for a job of one thread; a job of more starts by itself
THREADS = ("OMP", "GOTO", "OPENBLAS", "MKL", "NUMEXPR")
SOCKET = Path(".snakemake", "bapo", "warm", "socket")  # relative, because a socket's path may have 107 bytes


def supported() -> bool:
    """Return whether the warm process works here: on Linux, and without a GPU, as a fork breaks its driver."""
    gpu = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()
    return sys.platform == "linux" and hasattr(os, "pidfd_open") and not gpu


def command() -> list[str]:
    """Return the words that stand for ``python`` in ``python -m MODULE``."""
    return [sys.executable, "-I", "-S", client.__file__, str(SOCKET)]


def environment() -> dict[str, str]:
    """Return the environment of a job of one thread, without which the warm process declines a job."""
    return {**os.environ, **{f"{name}_NUM_THREADS": "1" for name in THREADS}, "VECLIB_MAXIMUM_THREADS": "1"}


def start() -> subprocess.Popen[bytes] | None:
    """Start the warm process in this folder, to end with this process. Returns None where no socket can be made."""
    SOCKET.parent.mkdir(parents=True, exist_ok=True)
    SOCKET.parent.chmod(0o700)
    SOCKET.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, contextlib.suppress(OSError):
        listener.bind(str(SOCKET))
        listener.listen(1024)
        single_thread = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # pyarrow's import would start a thread
        return subprocess.Popen(
            [sys.executable, "-m", "bapo.warm.server", str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment() | single_thread,
            pass_fds=[listener.fileno()],
            process_group=0,
        )
    return None
