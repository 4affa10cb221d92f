"""A job whose limit is shorter than the run leaves a checkpoint, and the last one the undisturbed result; its clock."""

from __future__ import annotations

import time

import pytest
from support.late import LATE

from bapo.__main__ import main
from bapo.engines.shared.schedule import END_MARGIN, RunClock
from bapo.errors import Interrupted
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import train_identity
from bapo.experiments.places import run_directory
from bapo.experiments.schema import CheckpointConfig
from bapo.gpu import allocation

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
    assert "before the end of its job" in capsys.readouterr().err
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
    minutes = "checkpoint={every: 4, minutes: 1.0e-6, keep_state: false}"
    ended = compose_config([*tiny_world, "method=grpo", "seed=25", minutes])
    train(ended)
    left = sorted(p.name for p in (run_directory(ended) / "checkpoints").glob("step_*"))
    assert left == ["step_000004", "step_000006"]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in a list of one number that a test changes."""
    found = [1000.0]
    monkeypatch.setattr(time, "time", lambda: found[0])
    monkeypatch.setattr(time, "monotonic", lambda: found[0])
    return found


def clock_of(job_end: float | None, minutes: float | None) -> RunClock:
    """A clock of a run with a checkpoint every 10 steps."""
    return RunClock(job_end, CheckpointConfig(every=10, minutes=minutes))


def test_a_clock_that_is_set_back_delays_no_checkpoint(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    clock = clock_of(None, 1.0)
    monkeypatch.setattr(time, "time", lambda: now[0] - 7200)
    now[0] += 60
    assert clock.step_ended(1, False, False) == (True, "")
    assert clock.longest_step == 60


@pytest.mark.parametrize(
    ("step", "finished", "requested", "end"),
    [
        (9, False, False, (False, "")),
        (10, False, False, (True, "")),
        (9, True, False, (True, "")),
        (9, False, True, (True, "as asked")),
        (9, True, True, (True, "")),  # what is over is not stopped
    ],
)
def test_a_step_is_followed_by_a_checkpoint_when_one_is_due(
    now: list[float], step: int, finished: bool, requested: bool, end: tuple[bool, str]
) -> None:
    assert clock_of(None, None).step_ended(step, finished, requested) == end


def test_a_checkpoint_is_due_after_its_minutes_and_a_run_stops_before_the_end_of_its_job(now: list[float]) -> None:
    clock = clock_of(1000 + 700, 1.5)
    now[0] += 89
    assert clock.step_ended(1, False, False) == (False, "")  # 611 left, two steps of 89 and a third for a checkpoint
    now[0] += 11
    assert clock.step_ended(2, False, False) == (True, "")
    now[0] += 20
    clock.checkpoint_written()
    now[0] += 89
    assert clock.step_ended(3, False, False) == (False, "")  # 491 left; the step took 109 with the checkpoint before it
    assert clock.longest_step == 109
    now[0] += 491 - (3 * 109 + END_MARGIN)
    clock.mark = now[0]
    clock.checkpoint_written()
    assert clock.step_ended(4, False, False) == (False, "")
    now[0] += 1
    assert clock.step_ended(5, False, False) == (True, "5.6 minutes before the end of its job")


def test_the_end_is_the_settings_before_slurms(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "20000000000")  # in the year 2603
    assert allocation.end() == 20_000_000_000
    assert allocation.end(1.0) == 1060
    with allocation.job_clock():
        now[0] = 1600.0  # waited for a GPU
        assert allocation.end(1.0) == 1060
    monkeypatch.delenv("SLURM_JOB_ID")
    assert allocation.end() is None
