"""The first minutes of a reader: the demo, then Table 1, through Ctrl-C to its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.workflow import PATIENCE, SMALL, command, environment

from bapo.store.files import read_json

pytestmark = pytest.mark.system

SET = f"set={[*SMALL, 'base.iterations=50', 'train.steps=4', 'evaluation.samples=4']}"
SETTINGS = ("--config", "scale=smoke", "tracking=none", SET)
DEMO = (sys.executable, "-m", "bapo", "demo", *SETTINGS)
METHODS = "methods=[repo,grpo,dapo,bapo]"
TABLE1 = (*command("--cores", "2", "table1", *SETTINGS), METHODS)
#: what a terminal would obey
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def start(folder: Path, words: tuple[str, ...], output: int) -> subprocess.Popen[bytes]:
    """Start a command as a shell does: Ctrl-C reaches all of it."""
    return subprocess.Popen(
        words,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # where this runs in the background
    )


def into_a_file(folder: Path, words: tuple[str, ...], stop_at: Path | None = None) -> tuple[int, str]:
    """(exit status, output) of a command; Ctrl-C as soon as a file exists."""
    log = folder / "run.log"
    with open(log, "wb") as output:
        process = start(folder, words, output.fileno())
        if stop_at:
            deadline = time.monotonic() + PATIENCE
            while not stop_at.exists():
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)
        status = process.wait(PATIENCE)
    text = log.read_text()
    assert not CONTROL.search(text), CONTROL.search(text)
    return status, text


def test_demo_then_the_table_through_ctrl_c(tmp_path: Path) -> None:
    home = Path("results", "smoke")
    there = tmp_path / home

    status, text = into_a_file(tmp_path, (*DEMO, METHODS))
    assert status == 0, text[-3000:]
    assert {p.name for p in (there / "countdown" / "qwen2-112k").iterdir()} == {"base", "dapo", "grpo", "bapo"}
    assert not (there / "mathematics").exists()  # nothing but the first look
    assert "of 11 jobs done" in text and "step 4/4" not in text
    assert "step 4/4" in (there / "logs/train/countdown/qwen2-112k/grpo/seed1.log").read_text()
    assert f"First look: {home}/first_look.md" in text and f"Picture: {home}/first_look.png" in text
    looked = (there / "first_look.md").read_text()

    stop_at = there / "countdown" / "qwen2-112k" / "repo" / "seed1" / "eval" / "summary.json"
    status, text = into_a_file(tmp_path, TABLE1, stop_at)
    assert status != 0 and "Error in rule" not in text  # Ctrl-C is no error of a job
    assert not (there / "tables" / "table1.md").exists()
    assert f"First look: {home}/first_look.md" in text

    status, text = into_a_file(tmp_path, TABLE1)
    assert status == 0, text[-3000:]
    assert (there / "tables" / "table1.md").exists()
    assert (there / "first_look.md").read_text() == looked  # made once
    assert "step 4/4" not in text and "jobs done, " in text
    assert text.index(f"Table 1: {home}/tables/table1.md") < text.index(f"Figures: {home}/figures")
    began = {str(m.relative_to(there)): read_json(m)["started"] for m in there.rglob("seed*/manifest.json")}
    first, *rest = sorted(began, key=began.__getitem__)  # Countdown, which the demo shows, comes first
    assert first.startswith("countdown/") and any(name.startswith("mathematics/") for name in rest)
