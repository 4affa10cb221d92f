"""The line of progress: what Snakemake's log says becomes one line; errors and the first look stand above it."""

from __future__ import annotations

import io
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from snakemake.logging import ColorizingTextHandler, DefaultFormatter, LogEvent

from analysis.live import line
from analysis.live.jobs import Job, Jobs
from analysis.live.line import Line
from bapo.store.files import write_json

BASE, TRAIN, LOOK = 1, 2, 3


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
    group = ("countdown", "tiny", "grpo")
    todo = {
        BASE: Job("evaluate_base", group[:2], (tmp_path / "eval" / "summary.json",)),
        TRAIN: Job("train", group, (tmp_path / "summary.json",)),
        LOOK: Job("first_look", (), (tmp_path / "first_look.md",)),
    }
    usual = ColorizingTextHandler(stream=Stream(request.param))
    usual.setFormatter(DefaultFormatter())
    handler = Line(usual, Jobs(todo, []), {BASE})
    yield handler
    handler.end()


def say(handler: Line, event: LogEvent | None, message: str | None = None, level: int = logging.INFO, **fields: Any):
    record = logging.LogRecord("snakemake", level, "", 0, message, (), None)
    record.__dict__.update({"event": event} if event else {}, **fields)
    handler.emit(record)


def begin(handler: Line, number: int, message: str) -> None:
    say(handler, LogEvent.JOB_INFO, jobid=number, rule_msg=message, rule_name="rule")


def test_jobs_become_a_line(shown: Line) -> None:
    begin(shown, BASE, "Evaluate: tiny before training, countdown")
    begin(shown, TRAIN, "Train: grpo, seed 1, tiny, countdown")
    words = str(shown._text())
    assert words.startswith(
        "0 of 3 jobs done, time left not known yet; now Evaluate: tiny before training, countdown ("
    )
    assert "; Train: grpo, seed 1, countdown (" in words  # whose model says nothing
    say(shown, LogEvent.JOB_FINISHED, job_id=BASE)
    say(shown, LogEvent.PROGRESS, done=1, total=3)
    say(shown, None, "Select jobs to execute...")
    say(shown, LogEvent.SHELLCMD, None)
    out = shown.console.file.getvalue()
    assert "Evaluate: tiny before training, countdown: cd34 14.2%" in out
    assert "Select jobs" not in out
    if shown.live is None:
        assert "1 of 3 jobs done" in out and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", out)
    say(shown, LogEvent.PROGRESS, done=2, total=3)
    assert str(shown._text()).startswith("2 of 3 jobs done")
    if shown.live is None:  # not a line for every job
        assert "2 of 3 jobs done" not in shown.console.file.getvalue()


def test_the_first_look_is_shown(shown: Line) -> None:
    begin(shown, LOOK, "First look")
    say(shown, LogEvent.JOB_FINISHED, job_id=LOOK)
    out = shown.console.file.getvalue()
    assert "A first look" in out and "three rows" in out and "png" not in out
    assert ("\x1b" in out) is (shown.live is not None)


def test_an_error_is_handed_on_with_the_end_of_the_log(shown: Line, tmp_path: Path) -> None:
    begin(shown, TRAIN, "Train: grpo, seed 1, tiny, countdown")
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {i}\n" for i in range(40)) + "error: no \x1b[2Jspace left\n")
    fields = dict.fromkeys(("input", "output", "conda_env", "shellcmd"))
    fields |= {"rule_name": "train", "rule_msg": "m", "jobid": TRAIN, "log": [str(log)], "aux": {}, "indent": False}
    say(shown, LogEvent.JOB_ERROR, "Error in rule train", logging.ERROR, **fields)
    out = shown.console.file.getvalue()
    assert "Error in rule train:" in out and "error: no  [2Jspace left" in out
    assert "step 39" in out and "step 20\n" not in out
    assert "Train" not in str(shown._text())
    say(shown, None, "Trying to restart job 2.", logging.WARNING)
    assert "Trying to restart" in shown.console.file.getvalue()


def test_after_ctrl_c_the_end_of_each_job_is_no_error(shown: Line) -> None:
    say(shown, None, "Terminating processes on user request, this might take some time.")
    say(shown, None, "RuleException: exit status 130", logging.ERROR)
    out = shown.console.file.getvalue()
    assert "Terminating processes" in out and "RuleException" not in out


def test_the_time_left_is_that_of_jobs_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    done = tmp_path / "grpo"
    write_json(done / "summary.json", {})
    write_json(done / "manifest.json", {"started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:01:40Z"})
    runs = {n: Job("train", ("countdown", "tiny", "grpo"), (tmp_path / str(n) / "summary.json",)) for n in range(4)}
    jobs = Jobs(runs, [Job("train", ("countdown", "tiny", "grpo"), (done / "summary.json",))])
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


def test_the_tail_of_a_log_that_is_not_there(tmp_path: Path) -> None:
    assert "wrote no log" in line.tail(tmp_path / "none.log")
