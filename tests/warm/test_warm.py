"""A child of the warm process against ``python -m``: same output, same end, and nothing outlives what it should."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT
from support.processes import gone, within

from bapo.warm import launch
from bapo.warm.server import Declined, Request, Server, state_of

pytestmark = [pytest.mark.system, pytest.mark.skipif(not launch.supported(), reason="Linux without a GPU only")]

JOB = """
import gc, os, random, signal, sys, tempfile, threading
found = [__name__, sys.argv[1:], os.path.basename(sys.argv[0]), os.getcwd(), sys.path, sys.flags, sys.stdin.read()]
found += [(n, signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)]
found += sorted((k, v) for k, v in os.environ.items() if k not in ("_", "SHLVL"))
found += [os.umask(0o22), tempfile.gettempdir(), gc.get_threshold(), threading.active_count()]
found += [sys.stdout.line_buffering, {"0", "1", "2"} <= {*os.listdir("/proc/self/fd")}]
print(*map(repr, found), sep="\\n")
print("said", file=sys.stderr)
sys.exit(3)
"""
#: says that it has begun, then what it was told by a signal
WAITING = """
import os, signal, sys, time
def note(number, _):
    print("got", number, flush=True)
    sys.exit(number)
if "note" in sys.argv:
    signal.signal(signal.SIGTERM, note)
print(os.getpid(), os.getppid(), flush=True)
for _ in range(6000):
    time.sleep(0.1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with modules to run, in the environment of a job of one thread."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "waiting.py").write_text(WAITING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in launch.THREADS:
        monkeypatch.setenv(f"{name}_NUM_THREADS", "1")
    monkeypatch.setenv("VECLIB_MAXIMUM_THREADS", "1")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # another one in the test itself
    return tmp_path


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """SIGINT as a terminal leaves it: what a shell starts in the background ignores it, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def server(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = launch.start()
    assert process is not None
    with process:
        yield process
        process.kill()


def start(*words: str, plain: bool = False) -> subprocess.Popen[str]:
    command = [sys.executable] if plain else launch.command()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return subprocess.Popen([*command, "-m", *words], text=True, env=environment, **streams)


def finish(process: subprocess.Popen[str], text: str = "") -> tuple[str, str, int]:
    out, errors = process.communicate(text, timeout=900)
    return out, errors, process.returncode


def begun(process: subprocess.Popen[str]) -> tuple[int, int]:
    """Wait for the job of ``waiting.py`` to begin; return its process and its parent's."""
    job, parent = map(int, process.stdout.readline().split())
    return job, parent


def test_a_child_is_what_a_fresh_process_is(server: subprocess.Popen[bytes]) -> None:
    warm, plain = (finish(start("job", "a b", "ü", plain=p), "asked\n") for p in (False, True))
    assert {*warm[0].splitlines()} ^ {*plain[0].splitlines()} == set()
    assert warm == plain and warm[2] == 3 and "asked" in warm[0]


def test_random_numbers_and_peak_memory_are_a_childs_own(folder: Path, server: subprocess.Popen[bytes]) -> None:
    text = "import random, sys, uuid; from bapo.store.provenance import peak_memory; x = b'x' * int(sys.argv[1])\n"
    (folder / "own.py").write_text(text + "print(peak_memory(), random.random(), uuid.uuid4())")
    ran = [finish(start("own", size, plain=plain)) for size, plain in (("300000000", False), ("0", False), ("0", True))]
    (large, *first), (small, *second), (plain, *_) = (out.split() for out, *_ in ran)
    assert set(first).isdisjoint(second) and int(large) > 300_000_000
    assert int(small) < int(plain) + 50_000_000  # what the warm process imported is not its own


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_client_ends_the_job_with_its_status(server: subprocess.Popen[bytes], number: int) -> None:
    statuses = []
    for plain in (False, True):
        client = start("waiting", plain=plain)
        job, parent = begun(client)
        assert (parent == server.pid) is not plain
        client.send_signal(number)
        statuses.append(finish(client)[2])
        assert gone(job)
    assert statuses == [-number, -number]


def test_killing_the_client_kills_the_job(server: subprocess.Popen[bytes]) -> None:
    client = start("waiting")
    job, _ = begun(client)
    client.kill()
    assert gone(job)
    finish(client)
    assert finish(start("job"))[2] == 3  # the server goes on


def test_killing_the_warm_process_kills_the_job_and_the_client_says_so(server: subprocess.Popen[bytes]) -> None:
    client = start("waiting")
    job, _ = begun(client)
    server.kill()
    _, errors, status = finish(client)
    assert gone(job) and status == -signal.SIGKILL and "the warm process was killed" in errors


def test_the_warm_process_ends_with_snakemake_after_its_last_job(server: subprocess.Popen[bytes]) -> None:
    client = start("waiting", "note")
    job, _ = begun(client)
    server.stdin.close()  # as when the process that holds the other end dies
    assert within(300, lambda: socket.socket(socket.AF_UNIX).connect_ex(str(launch.SOCKET)) != 0)  # nobody listens
    assert finish(start("job"))[2] == 3  # a later job starts by itself
    assert server.poll() is None and not gone(job, 0.1)
    client.terminate()
    assert finish(client)[2] == 15 and server.wait(300) == 0


def test_without_a_warm_process_and_in_another_environment_a_job_starts_by_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finish(start("job"))[2] == 3
    with launch.start() as process:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        client = start("waiting")
        job, parent = begun(client)
        client.kill()
        finish(client)
        assert parent != process.pid and job == client.pid
        process.kill()


@pytest.mark.parametrize(
    ("reason", "said"), [("folder", "runs in /"), ("code", r"job\.py has changed"), ("threads", "threads run")]
)
def test_what_the_warm_process_declines(folder: Path, reason: str, said: str) -> None:
    """A server in this process. A lock that another thread holds at the fork would never be free in the child."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    with socket.socket(socket.AF_UNIX) as listener:
        server = Server(listener)
        request = Request("/" if reason == "folder" else os.getcwd(), ["job"], server.environment, [])
        if reason == "code":
            server.sources[str(folder / "job.py")] = state_of(str(folder / "job.py"))
            (folder / "job.py").write_text(JOB + "\n")
        elif reason == "threads":
            thread.start()
        try:
            with pytest.raises(Declined, match=said):
                server._prepare(request)
        finally:
            done.set()
            server.events.close()
