"""A job's lines, ``bapo watch`` and Snakemake's line of progress: counts, states, times by hand, hostile text."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
from snakemake.logging import ColorizingTextHandler, DefaultFormatter, LogEvent
from support.runs import write_results

from analysis import text
from analysis.__main__ import main
from analysis.watch import CHOICE, ProgressLine, log_end, rows_of, watch
from bapo.errors import UserError
from bapo.store.progress import Progress

TRAIN, LOOK = 1, 2


def test_durations() -> None:
    words = ["0 s", "1 min 00 s", "1 min 35 s", "2 h 05 min", "2 d 7 h"]
    assert [text.duration(s) for s in (-1, 59.7, 95, 7500, 200_000)] == words
    assert [text.minutes(s) for s in (0, 3, 95, 7500)] == ["0 s", "1 min", "2 min", "2 h 05 min"]


def test_watch_without_a_folder_takes_the_scale_that_was_described_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["watch"]) == 2 and "results: holds no results; name the scale's folder" in capsys.readouterr().err
    for described, scale in ((2, "laptop"), (1, "smoke")):
        home = write_results(tmp_path / "results" / scale)
        os.utime(home / "studies", (described, described))
    assert main(["watch"]) == 0 and "results/laptop: " in capsys.readouterr().out


def test_watch_counts_runs_and_shows_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = write_results(tmp_path / "laptop")
    (home / "countdown/tiny/bapo/seed2/summary.json").unlink()
    (home / "countdown/tiny/bapo/seed2/eval/summary.json").unlink()
    evaluated = home / "countdown/tiny/bapo/seed1/eval/summary.json"
    evaluated.write_text(json.dumps({**json.loads(evaluated.read_text()), "benchmarks": {"cd": {"accuracy": 0.25}}}))
    log = home / "logs/train/countdown/tiny/bapo/seed2.log"
    log.parent.mkdir(parents=True)
    log.write_text("step 15/150\n[red]step 30/150\x1b[2J, 00:40 left\n\n")
    row = rows_of(home).loc[("countdown", "tiny", "bapo")]
    watch(home)
    assert (row.runs, row.done, row.evaluated, row.accuracy) == (2, 1, 1, 0.25)
    assert row.now == "train seed2: [red]step 30/150 [2J, 00:40 left\n"
    shown = capsys.readouterr().out
    assert "1/2" in shown and "[red]step 30/150" in shown and "25.0" in shown
    os.utime(log, (0, 0))  # of a job that has ended long ago
    assert rows_of(home).now[("countdown", "tiny", "bapo")] == ""


def test_a_folder_without_studies_is_named(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()  # whose runs lie there
    with pytest.raises(UserError, match=f"^{tmp_path}: no study has begun here"):
        rows_of(tmp_path)


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def shown(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A line over two jobs: a run and the first look."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # which must not reach a file
    (tmp_path / "first_look.md").write_text("# A first look\n\n- three rows\n\n![x](first_look.png)\n")
    usual = ColorizingTextHandler(stream=Stream(request.param))
    usual.setFormatter(DefaultFormatter())
    handler = ProgressLine(usual, 2, {"grpo+v2": "GRPO, v = 2"}.__getitem__)
    yield handler
    handler.end()


def say(handler: logging.Handler, event: LogEvent | None, message: str | None = None, **fields: Any) -> None:
    level = fields.pop("level", logging.INFO)
    record = logging.LogRecord("snakemake", level, "", 0, message, (), None)
    record.__dict__.update({"event": event} if event else {}, **fields)
    handler.emit(record)


def begin(handler: ProgressLine, number: int, message: str, rule: str, output: Path = Path("none")) -> None:
    names = {"method": "grpo+v2"} if rule == "train" else {}
    fields = {"rule_msg": message, "rule_name": rule, "output": [str(output)], "wildcards": names}
    say(handler, LogEvent.JOB_INFO, jobid=number, **fields)


def test_jobs_become_a_line_and_the_first_look_is_shown(shown: ProgressLine, tmp_path: Path) -> None:
    begin(shown, TRAIN, "Train: grpo+v2, seed 1, tiny, countdown", "train")
    begin(shown, LOOK, "First look", "first_look", tmp_path / "first_look.md")
    words = str(shown.words())
    assert words.startswith("0 of 2 jobs done") and "Train: GRPO, v = 2, seed 1, tiny, countdown (" in words
    say(shown, LogEvent.JOB_FINISHED, job_id=LOOK)
    say(shown, LogEvent.PROGRESS, done=1, total=2)
    say(shown, None, CHOICE)
    out = shown.console.file.getvalue()  # type: ignore[attr-defined]
    assert "A first look" in out and "png" not in out and CHOICE not in out
    assert ("\x1b" in out) is (shown.live is not None)
    if shown.live is None:
        assert "1 of 2 jobs done" in out and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", out)
    say(shown, LogEvent.PROGRESS, done=2, total=2)
    assert str(shown.words()).startswith("2 of 2 jobs done, about 0 s left; now Train")
    if shown.live is None:  # not a line for every job
        assert "2 of 2 jobs done" not in shown.console.file.getvalue()  # type: ignore[attr-defined]


def test_an_error_is_handed_on_with_the_end_of_the_log(shown: ProgressLine, tmp_path: Path) -> None:
    begin(shown, TRAIN, "Train: grpo+v2, seed 1, tiny, countdown", "train")
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {i}\n" for i in range(40)) + "error: no \x1b[2Jspace left\n")
    fields = dict.fromkeys(("input", "output", "conda_env", "shellcmd"))
    fields |= {"rule_name": "train", "rule_msg": "m", "jobid": TRAIN, "log": [str(log)], "aux": {}, "indent": False}
    say(shown, LogEvent.JOB_ERROR, "Error in rule train", level=logging.ERROR, **fields)
    out = shown.console.file.getvalue()
    assert "error: no  [2Jspace left" in out and "step 39" in out and "step 20\n" not in out
    assert "Train" not in str(shown.words())
    say(shown, LogEvent.JOB_ERROR, "Error", level=logging.ERROR, **fields | {"log": [str(tmp_path / "none")]})
    lines = shown.console.file.getvalue().split()  # type: ignore[attr-defined]
    assert f"The end of {tmp_path / 'none'}:" in " ".join(lines)  # a terminal breaks the line


def test_a_log_file_gets_a_plain_line_for_each_tenth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("countdown tiny grpo seed 2", 40, start=8)
    for step in range(9, 41):
        progress.add(1, f"reward 0.{step}")
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 8
    assert all(line.isprintable() and "\r" not in line for line in text.split("\n"))
    log = tmp_path / "log"
    log.write_text(text)
    assert log_end(log, 1)[0].startswith("countdown tiny grpo seed 2: step 40/40, reward 0.40, ")
