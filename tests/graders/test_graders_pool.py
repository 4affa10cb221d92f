"""The checkers' processes: limits of time and memory, recovery, forks, threads, and that nothing stays behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from support.processes import alive, gone

from bapo.graders import mathematics, pool, symbolic
from bapo.graders.extract import boxed
from bapo.graders.pool import Pool
from bapo.graders.verdict import DIFFERENT, EQUAL, TIME_LIMIT, UNREADABLE

pytestmark = pytest.mark.system

ROOT = (r"\sqrt{8}", r"2\sqrt{2}")
HOPELESS = r"\sum_{n=1}^{90000}\frac{1}{n^2}"


@pytest.fixture(scope="module")
def one() -> Iterator[Pool]:
    it = Pool(workers=2)
    yield it
    it.close()


@pytest.fixture
def made(one: Pool) -> Pool:
    """A pool with one idle checker and a wall limit that a busy machine does not reach."""
    one.wall_seconds = 600.0
    while len(one.idle) > 1:
        one.idle.pop().end()
    assert one.judge(*ROOT) == EQUAL and len(one.idle) == 1
    one.kills = 0
    return one


def test_a_stuck_checker_is_killed_and_replaced(made: Pool) -> None:
    first = made.idle[0].process.pid
    assert made.judge("8", r"9^{9^{9^9}}") == TIME_LIMIT  # stopped by the kernel after CPU_SECONDS in one C call
    assert made.kills == 1 and not alive(first) and made.idle == []
    assert made.judge(*ROOT) == EQUAL and made.judge(ROOT[0], r"3\sqrt{2}") == DIFFERENT
    assert made.judge("8", r"\frac{}{") == UNREADABLE and made.kills == 1


def test_a_hit_of_the_wall_limit_is_not_remembered(monkeypatch: pytest.MonkeyPatch, made: Pool) -> None:
    monkeypatch.setattr(pool, "shared", lambda: made)
    mathematics.outcome_of.cache_clear()
    stopped = made.idle[0].process.pid
    os.kill(stopped, signal.SIGSTOP)  # it uses no CPU time at all
    made.wall_seconds = 0.3
    assert mathematics.judge(ROOT[1], ROOT[:1]) == (False, False, "overloaded")
    assert gone(stopped)
    made.wall_seconds = 600.0
    assert mathematics.judge(ROOT[1], ROOT[:1]).correct
    assert mathematics.outcome_of.cache_info().currsize == 1
    assert mathematics.judge(HOPELESS, ROOT) == (False, False, "time_limit")
    kills = made.kills
    assert mathematics.judge(HOPELESS, ROOT) == (False, False, "time_limit")
    assert made.kills == kills  # the CPU limit does not depend on the machine's load: that is remembered


@pytest.mark.parametrize("seen", [False, True], ids=["resumed", "seen before"])
def test_a_batch_stops_asking_of_algebra_whatever_was_seen_before(
    monkeypatch: pytest.MonkeyPatch, made: Pool, seen: bool
) -> None:
    monkeypatch.setattr(pool, "shared", lambda: made)
    monkeypatch.setattr(pool, "HOPELESS", 1)
    mathematics.outcome_of.cache_clear()
    answers = [ROOT[1], HOPELESS, ROOT[1], "8", r"9^{9^9}", ROOT[0]]
    if seen:
        assert mathematics.judge(ROOT[1], ROOT[:1]).correct
    with made.one_batch() as counted:
        found = [counted(mathematics.judge(answer, ROOT[:1])).reason for answer in answers]
    assert found == ["", "time_limit", "time_limit", "time_limit", "unreadable", ""] and made.kills == 1
    assert mathematics.judge(ROOT[1], ROOT[:1]).correct  # the next batch begins anew


def test_several_hopeless_boxes_cost_as_much_as_one_and_count_in_a_batch(
    monkeypatch: pytest.MonkeyPatch, made: Pool
) -> None:
    monkeypatch.setattr(pool, "shared", lambda: made)
    monkeypatch.setattr(pool, "HOPELESS", 1)
    mathematics.outcome_of.cache_clear()
    boxes = [boxed(HOPELESS.replace("90000", str(90000 + i))) for i in range(8)]
    with made.one_batch() as counted:
        assert counted(mathematics.grade(", ".join(boxes), ["8"])).reason == "time_limit"
        assert made.kills <= 2 and made.refuses
        assert Pool(module="bapo.tasks.reasoning_gym").judge("8", "8") == "time_limit"  # of another module


@pytest.mark.parametrize("end", ["as after its last check", "killed by others"])
def test_an_idle_checker_that_ended_gives_no_verdict(made: Pool, end: str) -> None:
    checker = made.idle[0]
    if end == "killed by others":
        os.kill(checker.process.pid, signal.SIGKILL)
    else:
        with socket.socket(fileno=os.dup(checker.stream.fileno())) as stream:
            stream.shutdown(socket.SHUT_WR)
        assert checker.process.wait(900) == 0
    assert made.judge(*ROOT) == EQUAL


@pytest.mark.parametrize(
    ("change", "said"),
    [("symbolic.judge = lambda gold, answer: bytearray(2 << 30)", "end 0"), ("symbolic.CHECKS = 1", "different end 0")],
)
def test_a_checker_ends_by_itself_for_lack_of_memory_and_after_its_last_check(change: str, said: str) -> None:
    program = (
        "import multiprocessing, os\nfrom bapo.graders import symbolic\n"
        f"{change}\nours, theirs = multiprocessing.Pipe()\n"
        "if os.fork() == 0:\n    ours.close()\n    symbolic.serve(theirs)\n"
        "theirs.close()\nassert ours.recv_bytes() == b'ready'\nours.send_bytes(b'[\"x\", \"y+1\"]')\n"
        "try:\n    while True:\n        print(ours.recv_bytes().decode())\nexcept EOFError:\n"
        "    print('end', os.wait()[1])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == said.split()
    assert symbolic.ADDRESS_SPACE <= 1 << 30


def test_threads_share_a_pool(made: Pool) -> None:
    found: dict[int, bool] = {}

    def check(k: int) -> None:
        found[k] = made.judge(rf"\sqrt{{{k}}}+1", rf"1+\sqrt{{{k}}}+0") == EQUAL

    threads = [threading.Thread(target=check, args=(k,)) for k in range(2, 14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12 and all(found.values())
    assert 1 <= len(made.idle) <= 2


def _in_child(queue: multiprocessing.Queue) -> None:
    mathematics.outcome_of.cache_clear()
    before = len(pool.shared().idle)
    correct = mathematics.grade(boxed(r"2\sqrt{7}"), [r"\sqrt{28}"]).correct
    queue.put((before, correct, pool.shared().idle[0].process.pid))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_its_own_checker_and_leaves_ours_alone() -> None:
    assert pool.shared().judge(*ROOT) == EQUAL
    ours = pool.shared().idle[-1].process.pid
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    before, correct, theirs = queue.get(timeout=900)
    child.join(900)
    assert before == 0 and correct and theirs != ours
    assert child.exitcode == 0 and gone(theirs)  # ends with the child, though it left by os._exit
    assert alive(ours) and pool.shared().judge(*ROOT) == EQUAL and pool.shared().idle[-1].process.pid == ours


@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_nothing_outlives_its_process(end: str) -> None:
    program = (
        "import os, signal\nfrom bapo.graders import pool\npool.shared().wall_seconds = 600\n"
        f"assert pool.shared().judge({ROOT[0]!r}, {ROOT[1]!r}) == 'equal'\n"
        "print(*(c.process.pid for c in pool.shared().idle), flush=True)\n" + end
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 1 and gone(*pids) and done.stderr == ""


NASTY = {
    "a tower": r"9^{9^{9^9}}",
    "a factorial": "10000000!",
    "a sum": r"\sum_{n=1}^{10^9}\frac{1}{n^2}",
    "a polynomial": "(x+y+z+1)^{300}",
    "an integral": r"\int_0^1 e^{-x^2}\sin(x^3)\,dx",
    "braces": "{" * 300 + "1" + "}" * 300,
    "symbols": "+".join(f"x_{{{i}}}" for i in range(60)),
    "matrix": r"\begin{pmatrix}" + r"\\".join(["&".join(["x+1"] * 6)] * 8) + r"\end{pmatrix}",
    "list": ",".join(rf"\sqrt{{{k}}}" for k in range(2, 60)),
    "null bytes": "\x00\x00",
    "backslashes": "\\" * 399 + " 9",
    "commas": "," * 400,
    "units": r"9 \text{ x } " * 30,
    "surrogate": "\ud800",
    "degrees apart": r"5^\circ " + r"^\circ " * 40 + "x",
    "blanks": " " * 900 + r"\text{" + " " * 900,
    "sets": r"\{" * 120 + "1" + r"\}" * 120,
    "digits and e": "1" * 1900 + "e",
}


@pytest.mark.parametrize("answer", NASTY.values(), ids=NASTY)
def test_no_input_hangs_or_raises(answer: str) -> None:
    for gold in ("8", r"\sqrt{2}+x"):
        assert not mathematics.grade(f"so \\boxed{{{answer}}}", [gold]).correct


@pytest.mark.parametrize(
    "response",
    [
        "x" * 10**6,
        r"\boxed{" * 10**5,
        "\\" * 10**6,
        "<think>" * 10**5 + r"\boxed{8}",
        "\\boxed{" + "1" * 10**6 + "}",
        "\\boxed{1} " * 10**5,
    ],
)
def test_a_megabyte_is_graded_at_once(response: str) -> None:
    """What took more than a few passes over the text would not end."""
    assert not mathematics.grade(response, ["8"]).correct
