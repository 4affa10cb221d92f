"""The checkers' processes: limits of time and memory, recovery, forks, threads, and that nothing stays behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bapo.errors import UserError
from bapo.graders import mathematics, pool, worker
from bapo.graders.extract import boxed
from bapo.graders.pool import Pool
from bapo.graders.verdict import DIFFERENT, EQUAL, TIME_LIMIT, UNREADABLE

pytestmark = pytest.mark.system

ROOT = (r"\sqrt{8}", r"2\sqrt{2}")


@pytest.fixture(scope="module")
def one() -> Iterator[Pool]:
    it = Pool(workers=2)
    yield it
    it.close()


@pytest.fixture
def made(one: Pool) -> Pool:
    """A pool with one idle checker and a wall limit that a busy machine does not reach."""
    one.wall_seconds, one.kills = 60.0, 0
    for checker in one._idle[1:]:
        one._idle.remove(checker)
        one._kill(checker)
    one.kills = 0
    assert one.judge(*ROOT) == EQUAL and len(one._idle) == 1
    return one


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _end(checker: pool._Checker) -> None:
    """Send no more; the connection still says what the checker answers."""
    with socket.socket(fileno=os.dup(checker.stream.fileno())) as stream:
        stream.shutdown(socket.SHUT_WR)


def _gone(*pids: int) -> bool:
    deadline = time.monotonic() + 120
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(_alive, pids))


def test_a_stuck_checker_is_killed_and_replaced(made: Pool) -> None:
    (first,) = (checker.pid for checker in made._idle)
    helper = made._helper.pid
    start = time.process_time()
    assert made.judge("8", r"9^{9^{9^9}}") == TIME_LIMIT  # stopped by the kernel after CPU_SECONDS in one C call
    assert made.kills == 1 and not _alive(first)
    assert made.judge(*ROOT) == EQUAL and made.judge(ROOT[0], r"3\sqrt{2}") == DIFFERENT
    assert made._helper.pid == helper  # it was forked, not started anew
    assert made.judge("8", "10000000!") == TIME_LIMIT and made.judge("8", r"\frac{}{") == UNREADABLE
    assert time.process_time() - start < worker.CPU_SECONDS  # none of it happened here


def test_the_wall_limit(made: Pool) -> None:
    (checker,) = made._idle
    os.kill(checker.pid, signal.SIGSTOP)  # it uses no CPU time at all
    made.wall_seconds = 0.3
    with pytest.raises(pool.Overloaded):
        made.judge(*ROOT)
    assert _gone(checker.pid)
    made.wall_seconds = 60.0
    assert made.judge(*ROOT) == EQUAL


def test_a_hit_of_the_wall_limit_is_not_remembered(monkeypatch: pytest.MonkeyPatch, made: Pool) -> None:
    monkeypatch.setattr(pool, "_POOL", made)
    mathematics.outcome_of.cache_clear()
    os.kill(made._idle[0].pid, signal.SIGSTOP)
    made.wall_seconds = 0.3
    assert mathematics.judge(ROOT[1], ROOT[:1]) == (False, False, "overloaded")
    made.wall_seconds = 60.0
    assert mathematics.judge(ROOT[1], ROOT[:1]).correct
    assert mathematics.outcome_of.cache_info().currsize == 1
    assert mathematics.judge(r"\binom{10^9}{10^8}", ("8",)) == (False, False, "time_limit")
    kills = made.kills
    assert mathematics.judge(r"\binom{10^9}{10^8}", ("8",)) == (False, False, "time_limit")
    assert made.kills == kills  # the CPU limit does not depend on the machine's load: that is remembered


def test_used_up_checkers_give_no_verdict(made: Pool) -> None:
    """Two idle ones have ended: the second attempt takes neither."""
    made._idle.append(made._take(fresh=True))
    for checker in made._idle:
        _end(checker)  # it reads the end of its stream, and exits as after its last check
        assert _gone(checker.pid)
    assert made.judge(*ROOT) == EQUAL


def test_a_checker_killed_by_others_gives_no_verdict(made: Pool) -> None:
    os.kill(made._idle[0].pid, signal.SIGKILL)
    assert made.judge(*ROOT) == EQUAL


def test_the_wait_for_a_checker_is_limited(made: Pool) -> None:
    made.wall_seconds = 0.2
    for _ in range(made.workers):
        made._slots.acquire()
    start = time.monotonic()
    try:
        with pytest.raises(pool.Overloaded):
            made.judge(*ROOT)
    finally:
        for _ in range(made.workers):
            made._slots.release()
    assert time.monotonic() - start >= 0.2
    made.wall_seconds = 60.0
    assert made.judge(*ROOT) == EQUAL


def test_memory_is_limited() -> None:
    program = (
        "import multiprocessing, os\nfrom bapo.graders import symbolic, worker\n"
        "symbolic.judge = lambda gold, answer: bytearray(2 << 30)\nours, theirs = multiprocessing.Pipe()\n"
        "if os.fork() == 0:\n    ours.close()\n    worker.serve(theirs)\n"
        "theirs.close()\nours.send(('', ''))\n"
        "try:\n    print(ours.recv())\nexcept EOFError:\n    print('end', os.wait()[1])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["end", "0"]  # it ended by itself, without an answer
    assert worker.ADDRESS_SPACE <= 1 << 30


def test_a_killed_checker_or_helper_does_not_matter(made: Pool) -> None:
    helper = made._helper.pid
    os.kill(helper, signal.SIGKILL)
    made._helper.wait()
    assert made.judge(*ROOT) == EQUAL and made._helper.pid != helper


def test_closing_ends_every_process_and_the_next_check_starts_new_ones(made: Pool) -> None:
    pids = [made._helper.pid, *(checker.pid for checker in made._idle)]
    made.close()
    assert _gone(*pids) and made._helper is None
    assert made.judge(*ROOT) == EQUAL


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
    assert 1 <= len(made._idle) <= 2


def _in_child(queue: multiprocessing.Queue) -> None:
    mathematics.outcome_of.cache_clear()
    before = pool.shared()._helper
    correct = mathematics.grade(boxed(r"2\sqrt{7}"), [r"\sqrt{28}"]).correct
    queue.put((before is None, correct, pool.shared()._helper.pid, os.getpid()))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_its_own_helper_and_leaves_ours_alone() -> None:
    assert pool.shared().judge(*ROOT) == EQUAL
    ours = pool.shared()._helper.pid
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    fresh, correct, theirs, _ = queue.get(timeout=120)
    child.join(60)
    assert fresh and correct and theirs != ours
    assert child.exitcode == 0 and _gone(theirs)  # ends with the child, though it left by os._exit
    assert _alive(ours) and pool.shared()._helper.pid == ours and pool.shared().judge(*ROOT) == EQUAL


@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_nothing_outlives_its_process(end: str) -> None:
    program = (
        "import os, signal\nfrom bapo.graders import pool\n"
        f"assert pool.shared().judge({ROOT[0]!r}, {ROOT[1]!r}) == 'equal'\n"
        "print(pool.shared()._helper.pid, *(c.pid for c in pool.shared()._idle), flush=True)\n" + end
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2 and _gone(*pids), done.stderr
    assert done.stderr == ""


def test_a_checker_retires(made: Pool) -> None:
    """After CHECKS checks; the pool forks the next one and nobody notices."""
    (first,) = (checker.pid for checker in made._idle)
    for _ in range(worker.CHECKS + 5):
        assert made.judge("x", "y+1") == DIFFERENT
        if made._idle[0].pid != first:
            break
    assert made._idle[0].pid != first


def test_a_helper_that_cannot_start_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError, match="helper process did not start"):
        Pool().judge(*ROOT)


NASTY = {
    "a tower": r"9^{9^{9^9}}",
    "a factorial": "10000000!",
    "a binomial": r"\binom{10^9}{10^8}",
    "a sum": r"\sum_{n=1}^{10^9}\frac{1}{n^2}",
    "a polynomial": "(x+y+z+1)^{300}",
    "an integral": r"\int_0^1 e^{-x^2}\sin(x^3)\,dx",
    "braces": "{" * 300 + "1" + "}" * 300,
    "fractions": r"\frac{1}{" * 30 + "2" + "}" * 30,
    "symbols": "+".join(f"x_{{{i}}}" for i in range(60)),
    "nested functions": r"\sin(" * 30 + "x" + ")" * 30,
    "matrix": r"\begin{pmatrix}" + r"\\".join(["&".join(["x+1"] * 6)] * 8) + r"\end{pmatrix}",
    "list": ",".join(rf"\sqrt{{{k}}}" for k in range(2, 60)),
    "digits": "9" * 499,
    "null bytes": "\x00\x00",
    "zero": r"\frac{1}{0}",
    "infinity": r"\tan(\pi/2)",
    "backslashes": "\\" * 399 + " 9",
    "equals": "=" * 300,
    "commas": "," * 400,
    "spaces": "-" + " " * 400 + "-",
    "units": r"9 \text{ x } " * 30,
    "colons": "9:" * 150 + "9",
    "surrogate": "\ud800",
    "degrees apart": r"5^\circ " + r"^\circ " * 40 + "x",
    "many percent": "6" + "%" * 490,
    "blanks": " " * 900 + r"\text{" + " " * 900,
    "sets": r"\{" * 120 + "1" + r"\}" * 120,
    "bars": "|" * 440 + "=1",
    "digits and e": "1" * 1900 + "e",
}


@pytest.mark.parametrize("answer", NASTY.values(), ids=NASTY)
def test_no_input_takes_long_or_raises(answer: str) -> None:
    pool.shared().warm()
    for gold in ("8", r"\sqrt{2}+x"):
        start = time.process_time()
        verdict = mathematics.grade(f"so \\boxed{{{answer}}}", [gold])
        assert not verdict.correct
        assert time.process_time() - start < worker.CPU_SECONDS  # what is slow is elsewhere, where it can be stopped


def test_several_golds_have_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.shared(), "wall_seconds", 1.7)
    pool.shared().warm()
    mathematics.outcome_of.cache_clear()
    answer, golds = r"\binom{10^9}{10^8}", ["8", "9", r"\sqrt{2}", "x+1", r"\pi"]
    kills = pool.shared().kills
    verdict = mathematics.grade(boxed(answer), golds)
    # on a busy machine the wall limit strikes before the first gold has used up its CPU time
    assert not verdict.correct and verdict.reason in ("time_limit", "overloaded")
    assert pool.shared().kills <= kills + 2  # one by its CPU time, one by the verdict's wall time
    assert mathematics.outcome_of.cache_info().currsize <= 2  # those that were not tried are tried another time


@pytest.mark.parametrize(
    "response",
    [
        "x" * 10**6,
        r"\boxed{" * 10**5,
        "}" * 10**6,
        "\\" * 10**6,
        "<think>" * 10**5 + r"\boxed{8}",
        "\\boxed{" + "1" * 10**6 + "}",
        "\\boxed{1} " * 10**5,
        "$" * 10**6,
        "\n" * 10**6,
    ],
)
def test_a_megabyte(response: str) -> None:
    """What takes quadratic time would not end."""
    assert not mathematics.grade(response, ["8"]).correct
