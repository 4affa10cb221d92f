"""The first minutes of a reader: the demo in a terminal, then Table 1 into a file, through Ctrl-C to its end."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.paths import ROOT

from bapo.store.files import read_json

pytestmark = pytest.mark.system

SMALL = (
    'set=["data.split_sizes.base=1000","data.split_sizes.train=48","data.split_sizes.probe=8","probe.prompts=8",'
    '"base.iterations=50","train.steps=4","train.batch_size=8","train.mini_batch_size=4","checkpoint.every=2",'
    '"evaluation.samples=4"]'
)
#: what a terminal would obey
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
PATIENCE = 1200  # seconds, for a machine that does much else


def settings(folder: Path, *more: str) -> list[str]:
    return ["--config", "scale=smoke", "tracking=none", f"results={folder / 'out'}", SMALL, *more]


def start(folder: Path, words: list[str], output: int) -> subprocess.Popen[bytes]:
    """Start ``python -m words`` as a shell does: Ctrl-C reaches all of it."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # where this runs in the background
    )


def on_a_terminal(folder: Path, words: list[str]) -> str:
    """What a command shows on a terminal; it must succeed."""
    ours, its = pty.openpty()
    process, shown = start(folder, words, its), b""
    os.close(its)
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the last of its processes has closed it
            break
    os.close(ours)
    assert process.wait(PATIENCE) == 0, shown.decode()[-3000:]
    return shown.decode()


def table1(folder: Path, *more: str) -> list[str]:
    return ["snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "2", "table1", *settings(folder, *more)]


def starts(home: Path) -> dict[str, str]:
    """Folder -> when the job that made it began."""
    found = {m.parent.relative_to(home).as_posix(): read_json(m)["started"] for m in home.rglob("manifest.json")}
    return {name: began for name, began in found.items() if "/data" not in name}


def test_demo_then_the_table_through_ctrl_c(tmp_path: Path) -> None:
    home = tmp_path / "out" / "smoke"
    so_far, log = home / "tables" / "table1_so_far.md", tmp_path / "run.log"
    methods = "methods=[repo,grpo,dapo,bapo]"

    shown = on_a_terminal(tmp_path, ["bapo", "demo", *settings(tmp_path, methods)])
    assert {p.name for p in (home / "countdown" / "qwen2-112k").iterdir()} == {"base", "dapo", "grpo", "bapo"}
    assert not (home / "mathematics").exists()  # nothing but the first look
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown)
    assert "\x1b[2K" in shown and "of 11 jobs done" in plain  # one line, drawn again
    assert (
        "step 4/4" not in plain and "step 4/4" in (home / "logs/train/countdown/qwen2-112k/grpo/seed1.log").read_text()
    )
    assert "Evaluate: qwen2-112k before training, countdown: cd34 " in plain
    assert "A first look at smoke scale" in plain and "BAPO minus GRPO" in plain
    assert f"First look: {home}/first_look.md" in plain and f"Picture: {home}/first_look.png" in plain
    looked = (home / "first_look.md").read_text()

    with open(log, "wb") as output:
        process = start(tmp_path, table1(tmp_path, methods), output.fileno())
        deadline = time.monotonic() + PATIENCE
        while not so_far.exists():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) != 0
    page = so_far.read_text()
    assert "Unfinished" in page and "+GRPO (seed 1 of 2)" in page  # of Countdown, where the demo made it
    evaluated = len(list(home.rglob("seed*/eval/summary.json")))
    assert f"Unfinished: {evaluated} of " in page  # the last evaluation before Ctrl-C is in it
    assert not (home / "tables" / "table1.md").exists()
    text = log.read_text()
    assert "\nStopped. The same command goes on" in text and f"\nTable 1 so far: {so_far}" in text
    assert "Error in rule" not in text  # Ctrl-C is no error of a job
    assert not CONTROL.search(text), CONTROL.search(text)

    with open(log, "wb") as output:
        assert start(tmp_path, table1(tmp_path, methods), output.fileno()).wait(PATIENCE) == 0, log.read_text()[-3000:]
    assert not so_far.exists() and (home / "tables" / "table1.md").exists()
    assert (home / "first_look.md").read_text() == looked  # made once
    text = log.read_text()
    assert not CONTROL.search(text) and "step 4/4" not in text and "jobs done, " in text
    assert text.index(f"Table 1: {home}/tables/table1.md") < text.index(f"Figures: {home}/figures")
    began = starts(home)
    first, *rest = [name for name in sorted(began, key=began.__getitem__) if "/seed" in name and "/eval" not in name]
    assert first.startswith("countdown/") and any(name.startswith("mathematics/") for name in rest)


def test_plain_shows_what_the_jobs_print(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with open(log, "wb") as output:
        words = ["bapo", "demo", *settings(tmp_path, "progress=plain", "methods=[grpo]")]
        assert start(tmp_path, words, output.fileno()).wait(PATIENCE) == 0, log.read_text()[-3000:]
    text = log.read_text()
    assert "step 4/4" in text and "Finished jobid" in text and "# A first look at smoke scale" in text
    assert not CONTROL.search(text)


def test_a_job_that_fails_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    (tmp_path / "out" / "smoke" / "countdown" / "data" / "train.parquet" / "in the way").mkdir(parents=True)
    with open(log, "wb") as output:
        words = ["bapo", "demo", *settings(tmp_path, "methods=[grpo]")]
        assert start(tmp_path, words, output.fileno()).wait(PATIENCE) != 0
    text = log.read_text()
    place = tmp_path / "out" / "smoke" / "logs" / "data" / "countdown.log"
    assert (
        "Error in rule data:" in text and f"The end of {place}:" in text and f"Not finished: {place} says why" in text
    )
    assert place.read_text().splitlines()[-1] in text
