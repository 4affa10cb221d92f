"""``bapo watch`` and Snakemake's line of progress: counts, states, times by hand, and hostile text."""

from __future__ import annotations

import io
import json
import logging
import platform
import re
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from snakemake.logging import ColorizingTextHandler, DefaultFormatter, LogEvent
from support.shared_results import write_results

from analysis import live, text
from analysis.live import Job, Jobs, Line
from analysis.watch import Times, is_running, last_line, left, rows_of, table
from bapo.errors import UserError
from bapo.store.files import write_json
from bapo.store.lock import locked

BASE, TRAIN, LOOK = 1, 2, 3
GROUP = ("countdown", "tiny", "grpo")


# ------------------------------------------------------------------------------------------------ the time left


def test_the_time_left_is_that_of_jobs_alike() -> None:
    times = Times()
    times.add("train", GROUP, 100.0)
    times.add("train", ("countdown", "tiny", "bapo"), 200.0)
    assert [times.usual("train", group) for group in (GROUP, ("countdown", "other", "x"))] == [100.0, 150.0]
    waiting = {("train", GROUP): 3, ("evaluate", GROUP): 2}
    found = left([40.0, 10.0], waiting, times)
    assert (found.seconds, found.unknown) == ((50 + 300) / 2, 2)
    assert left([400.0, None], {}, times).seconds == 400.0 and left([], {("x", ()): 1}, times).seconds is None


def test_durations() -> None:
    words = ["0 s", "1 min 00 s", "1 min 35 s", "2 h 05 min", "2 d 7 h"]
    assert [text.duration(s) for s in (-1, 59.7, 95, 7500, 200_000)] == words


def test_jobs_are_counted_as_they_begin_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    done = tmp_path / "grpo"
    write_json(done / "summary.json", {})
    write_json(done / "manifest.json", {"started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:01:40Z"})
    runs = {n: Job("train", GROUP, (tmp_path / str(n) / "summary.json",)) for n in range(4)}
    jobs = Jobs(runs, [Job("train", GROUP, (done / "summary.json",))])
    assert jobs.left().seconds == 4 * 100  # of an earlier command's
    for number in (0, 1):
        jobs.begin(number)
    now[0] += 40
    assert jobs.left().seconds == (2 * 60 + 2 * 100) / 2
    jobs.end(0)  # it took 40 s
    jobs.end(1, failed=True)  # which says nothing
    jobs.begin(2)
    assert jobs.left().seconds == 70 + 70
    jobs.begin(2)  # a retry is no further job
    assert jobs.waiting[runs[3].kind, runs[3].group] == 1


# ------------------------------------------------------------------------------------------------ watch


def test_watch_counts_runs_and_shows_the_last_line(tmp_path: Path) -> None:
    home = write_results(tmp_path / "laptop")
    (home / "countdown/tiny/bapo/seed2/summary.json").unlink()
    (home / "countdown/tiny/bapo/seed2/eval/summary.json").unlink()
    evaluated = home / "countdown/tiny/bapo/seed1/eval/summary.json"
    evaluated.write_text(json.dumps({**json.loads(evaluated.read_text()), "benchmarks": {"cd": {"accuracy": 0.25}}}))
    log = home / "logs/train/countdown/tiny/bapo/seed2.log"
    log.parent.mkdir(parents=True)
    log.write_text("step 15/150\n[red]step 30/150\x1b[2J, 00:40 left\n\n")
    with locked(home / "countdown/tiny/bapo/seed2"):
        (row,) = (r for r in rows_of(home, Times()) if r.method == "bapo")
        console = Console(file=io.StringIO(), width=140)
        console.print(table(home))
    assert (row.runs, row.done, row.evaluated, row.accuracies) == (2, 1, 1, [0.25])
    assert row.now == ["train seed2: [red]step 30/150 [2J, 00:40 left"]
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1/2" in shown and "[red]step 30/150" in shown and "25.0" in shown


def test_a_job_runs_while_its_process_lives_or_its_log_is_young(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert not is_running(tmp_path, log) and last_line(log) == ""
    for words, runs in ((f"process {2**22 + 1} on {platform.node()}", False), ("process 1 on elsewhere", False)):
        (tmp_path / ".lock").write_text(words)
        assert is_running(tmp_path, log) is runs
    log.write_text("step 1\n")
    assert is_running(tmp_path, log)


def test_a_folder_without_studies_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=str(tmp_path)):
        rows_of(tmp_path, Times())


# ------------------------------------------------------------------------------------------------ Snakemake's line


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def shown(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A line over three jobs: an evaluation, a run and the first look."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # which must not reach a file
    write_json(tmp_path / "eval" / "summary.json", {"benchmarks": {"cd34": {"accuracy": 0.142}}})
    (tmp_path / "first_look.md").write_text("# A first look\n\n- three rows\n\n![x](first_look.png)\n")
    todo = {
        BASE: Job("evaluate_base", GROUP[:2], (tmp_path / "eval" / "summary.json",)),
        TRAIN: Job("train", GROUP, (tmp_path / "summary.json",)),
        LOOK: Job("first_look", (), (tmp_path / "first_look.md",)),
    }
    usual = ColorizingTextHandler(stream=Stream(request.param))
    usual.setFormatter(DefaultFormatter())
    handler = Line(usual, Jobs(todo, []), {BASE})
    yield handler
    handler.end()


def say(handler: logging.Handler, event: LogEvent | None, message: str | None = None, **fields: Any) -> None:
    level = fields.pop("level", logging.INFO)
    record = logging.LogRecord("snakemake", level, "", 0, message, (), None)
    record.__dict__.update({"event": event} if event else {}, **fields)
    handler.emit(record)


def begin(handler: Line, number: int, message: str) -> None:
    say(handler, LogEvent.JOB_INFO, jobid=number, rule_msg=message, rule_name="rule")


def test_jobs_become_a_line(shown: Line) -> None:
    begin(shown, BASE, "Evaluate: tiny before training, countdown")
    begin(shown, TRAIN, "Train: grpo, seed 1, tiny, countdown")
    words = str(shown.words())
    assert words.startswith("0 of 3 jobs done") and "Train: grpo, seed 1, countdown (" in words
    say(shown, LogEvent.JOB_FINISHED, job_id=BASE)
    say(shown, LogEvent.PROGRESS, done=1, total=3)
    say(shown, None, live.CHOICE)
    out = shown.console.file.getvalue()
    assert "cd34 14.2%" in out and live.CHOICE not in out
    if shown.live is None:
        assert "1 of 3 jobs done" in out and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", out)
    say(shown, LogEvent.PROGRESS, done=2, total=3)
    assert str(shown.words()).startswith("2 of 3 jobs done")
    if shown.live is None:  # not a line for every job
        assert "2 of 3 jobs done" not in shown.console.file.getvalue()


def test_the_first_look_is_shown(shown: Line) -> None:
    begin(shown, LOOK, "First look")
    say(shown, LogEvent.JOB_FINISHED, job_id=LOOK)
    out = shown.console.file.getvalue()
    assert "A first look" in out and "png" not in out and ("\x1b" in out) is (shown.live is not None)


def test_an_error_is_handed_on_with_the_end_of_the_log(shown: Line, tmp_path: Path) -> None:
    begin(shown, TRAIN, "Train: grpo, seed 1, tiny, countdown")
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {i}\n" for i in range(40)) + "error: no \x1b[2Jspace left\n")
    fields = dict.fromkeys(("input", "output", "conda_env", "shellcmd"))
    fields |= {"rule_name": "train", "rule_msg": "m", "jobid": TRAIN, "log": [str(log)], "aux": {}, "indent": False}
    say(shown, LogEvent.JOB_ERROR, "Error in rule train", level=logging.ERROR, **fields)
    out = shown.console.file.getvalue()
    assert "error: no  [2Jspace left" in out and "step 39" in out and "step 20\n" not in out
    assert "Train" not in str(shown.words()) and str(tmp_path / "none") in live.tail(tmp_path / "none")


def test_after_ctrl_c_the_end_of_each_job_is_no_error(shown: Line) -> None:
    say(shown, None, f"{live.INTERRUPTED}, this might take some time.")
    say(shown, None, "RuleException: exit status 130", level=logging.ERROR)
    out = shown.console.file.getvalue()
    assert live.INTERRUPTED in out and "RuleException" not in out
