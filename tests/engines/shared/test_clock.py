"""When time asks for a checkpoint, and when a run stops before its job ends."""

from __future__ import annotations

import time

from omegaconf import OmegaConf

from bapo.engines.shared.clock import PARTING, JobClock, end_of_job
from bapo.gpu import allocation


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_checkpoint_is_due_after_its_minutes() -> None:
    time = Time()
    clock = JobClock(None, 2.0, time)
    time.now += 119
    assert not clock.checkpoint_due()
    time.now += 1
    assert clock.checkpoint_due()
    clock.checkpoint_written()
    assert not clock.checkpoint_due() and not clock.ending()
    assert not JobClock(None, None, time).checkpoint_due()


def test_a_run_stops_when_the_end_is_nearer_than_two_steps_and_a_checkpoint() -> None:
    time = Time()
    clock = JobClock(1000 + 500, None, time)
    time.now += 100
    clock.step_ended()  # 400 left; two steps of 100 and a checkpoint that is taken for a third
    assert not clock.ending()
    time.now += 20
    clock.checkpoint_written()  # 380 left, a checkpoint takes 20
    time.now += 90
    clock.step_ended()  # 290 left; the longest step counts
    assert not clock.ending()
    time.now += 290 - (2 * 100 + 20 + PARTING)
    assert not clock.ending()
    time.now += 1
    assert clock.ending()
    assert clock.left() == "3.8 minutes before the end of its job"


def test_the_time_between_step_and_checkpoint_counts_once() -> None:
    time = Time()
    clock = JobClock(None, None, time)
    for step, checkpoint in ((5, 30), (7, 10)):
        time.now += step
        clock.step_ended()
        time.now += checkpoint
        clock.checkpoint_written()
    assert (clock.step, clock.checkpoint) == (7, 30)


def test_the_end_is_the_settings_before_slurms(monkeypatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "20000000000")  # in the year 2603
    assert end_of_job(OmegaConf.create({"job_minutes": None})) == 20_000_000_000
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert end_of_job(OmegaConf.create({"job_minutes": 1.0})) == 1060
    with allocation.begun():
        monkeypatch.setattr(time, "time", lambda: 1600.0)  # waited for a GPU
        assert end_of_job(OmegaConf.create({"job_minutes": 1.0})) == 1060
    monkeypatch.undo()
    assert end_of_job(OmegaConf.create({"job_minutes": None})) is None
