"""Wandb's offline file: every step's metrics, and the last of each as the run's summary."""

from __future__ import annotations

import re
from pathlib import Path

from support.late import LATE

from bapo.experiments.compose import compose_config
from bapo.store import tracking

if LATE:
    import wandb


def test_the_summary_is_written_once(tmp_path: Path) -> None:
    run = tracking.start(compose_config(["tracking=wandb"]), tmp_path, "identity")
    for step in (1, 2, 3):
        run.log({"reward_mean": step / 10, "kl": float("nan") if step == 3 else 0.5}, step)
    run.finish()
    wandb.teardown()  # its service writes the file, and may still be at it
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert len(re.findall(rb"reward_mean", content)) == 3 + 1  # with a summary of every step they are 6
