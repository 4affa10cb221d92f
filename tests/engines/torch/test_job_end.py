"""A job whose limit is shorter than the run: every job leaves a checkpoint, and the last one the undisturbed result."""

from __future__ import annotations

import pytest
from support.late import LATE

from bapo.__main__ import main
from bapo.errors import Interrupted
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import train_identity
from bapo.experiments.places import run_directory

if LATE:
    from support.resumed import assert_same

    from bapo.engines.torch import checkpoints
    from bapo.engines.torch.trainer import train


BAPO = ["method=bapo", "method.v=2", "method.m=2", "seed=21"]


def test_short_jobs_end_as_one_long_one(tiny_world: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each has time for one step; the steps kept are those of checkpoint.every and the last."""
    alone = compose_config([*tiny_world, *BAPO])
    train(alone)
    words = [*tiny_world, *BAPO, "method.name=short", "checkpoint.job_minutes=0.001"]
    config = compose_config(words)
    assert train_identity(config) == train_identity(alone)  # how long a job lasts means nothing
    folder = run_directory(config)
    assert main(["train", *words]) == 130
    assert "minutes before the end of its job; the same command goes on there" in capsys.readouterr().err
    jobs = 1
    while True:
        before = checkpoints.steps_with_trainer(folder)[0]
        jobs += 1
        try:
            train(config)
            break
        except Interrupted:
            assert checkpoints.steps_with_trainer(folder)[0] > before
    assert jobs >= 3
    assert_same(run_directory(alone), folder)


def test_checkpoints_by_the_minute_are_kept_until_there_are_newer_ones(tiny_world: list[str]) -> None:
    config = compose_config([*tiny_world, "method=grpo", "seed=22", "checkpoint.every=4", "checkpoint.minutes=1.0e-6"])
    train(config)
    kept = sorted(int(p.name.removeprefix("step_")) for p in (run_directory(config) / "checkpoints").glob("step_*"))
    assert kept == [4, 5, 6]  # 4 is checkpoint.every's, 6 the last; 5 to fall back on
    assert checkpoints.steps_with_trainer(run_directory(config)) == [6, 5]
    ended = compose_config(
        [*tiny_world, "method=grpo", "seed=25", "checkpoint={every: 4, minutes: 1.0e-6, keep_state: false}"]
    )
    train(ended)
    left = sorted(p.name for p in (run_directory(ended) / "checkpoints").glob("step_*"))
    assert left == ["step_000004", "step_000006"]
