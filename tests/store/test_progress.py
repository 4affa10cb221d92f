"""What a job tells: plain lines in a log file, which ``bapo watch`` shows, and wandb's offline file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.late import LATE

from analysis.watch import last_line
from bapo.experiments.compose import compose_config
from bapo.store.progress import Progress, Tracking

if LATE:
    import wandb


def test_a_log_file_gets_a_plain_line_for_each_tenth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("countdown tiny grpo seed 2", 40, start=8)
    for step in range(9, 41):
        progress.add(1, f"reward 0.{step}")
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 8
    assert all(line.isprintable() and "\r" not in line for line in text.split("\n"))
    log = tmp_path / "log"
    log.write_text(text)
    assert last_line(log).startswith("countdown tiny grpo seed 2: step 40/40, reward 0.40, ")


def test_wandbs_summary_is_written_once(tmp_path: Path) -> None:
    run = Tracking(compose_config(["tracking=wandb"]), tmp_path, "identity")
    for step in (1, 2, 3):
        run.log({"reward_mean": step / 10, "kl": float("nan") if step == 3 else 0.5}, step)
    run.finish()
    wandb.teardown()  # its service writes the file, and may still be at it
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert len(re.findall(rb"reward_mean", file.read_bytes())) == 3 + 1  # with a summary of every step they are 6
