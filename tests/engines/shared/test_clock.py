"""When time asks for a checkpoint, and when a run stops before its job ends."""

from __future__ import annotations

import time

import pytest

from bapo.engines.shared.records import PARTING, JobClock, end_of_job
from bapo.experiments.schema import CheckpointConfig
from bapo.gpu import allocation


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in a list of one number that a test changes."""
    found = [1000.0]
    monkeypatch.setattr(time, "time", lambda: found[0])
    return found


def test_a_checkpoint_is_due_after_its_minutes_and_a_run_stops_before_the_end_of_its_job(now: list[float]) -> None:
    clock = JobClock(1000 + 600, 1.5)
    now[0] += 89
    assert not clock.checkpoint_due() and not JobClock(None, None).checkpoint_due()
    now[0] += 11
    assert clock.checkpoint_due()
    clock.step_ended()  # 500 left; two steps of 100 and a checkpoint that is taken for a third
    assert not clock.ending()
    now[0] += 20
    clock.checkpoint_written()
    assert not clock.checkpoint_due()
    now[0] += 90
    clock.step_ended()  # 390 left; the longest step took 110 with the checkpoint before it
    assert not clock.ending() and clock.step == 110
    now[0] += 390 - (3 * 110 + PARTING)
    assert not clock.ending()
    now[0] += 1
    assert clock.ending()
    assert clock.left() == "5.7 minutes before the end of its job"


def test_the_end_is_the_settings_before_slurms(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "20000000000")  # in the year 2603
    one_minute = CheckpointConfig(job_minutes=1.0)
    assert end_of_job(CheckpointConfig()) == 20_000_000_000
    assert end_of_job(one_minute) == 1060
    with allocation.begun():
        now[0] = 1600.0  # waited for a GPU
        assert end_of_job(one_minute) == 1060
    monkeypatch.delenv("SLURM_JOB_ID")
    assert end_of_job(CheckpointConfig()) is None
