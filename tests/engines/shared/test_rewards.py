"""An overloaded grader: a reason of its own, which every count shows, never a plain wrong answer."""

from __future__ import annotations

import pytest
from support.late import LATE

from bapo.experiments.compose import compose_config
from bapo.experiments.places import run_directory
from bapo.graders import mathematics
from bapo.graders.verdict import DIFFERENT, EQUAL, OVERLOADED, Verdict
from bapo.store.files import STEPS, read_table
from bapo.tasks.countdown.task import Countdown

if LATE:
    from bapo.engines.torch.trainer import train


def test_training_and_probe_of_the_torch_engine_tell(
    tiny_world: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = compose_config([*tiny_world, "method=grpo", "train.steps=1", "seed=83"])
    monkeypatch.setattr(Countdown, "verify", staticmethod(lambda *_: Verdict(False, False, OVERLOADED)))
    train(config)
    steps, error = read_table(run_directory(config) / STEPS), capsys.readouterr().err
    assert steps["overloaded"].tolist() == steps["fresh_rollouts"].tolist()
    assert "warning: step 0, probe: the machine was too busy" in error and "warning: step 1: the machine" in error


def test_one_gold_that_was_not_checked_leaves_the_answer_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {"a": OVERLOADED, "b": DIFFERENT, "c": EQUAL}
    monkeypatch.setattr(mathematics, "compare_texts", lambda gold, answer: outcomes[gold])
    assert mathematics.judge("x", ("b", "a")).reason == OVERLOADED
    assert mathematics.judge("x", ("a", "c")).correct
    assert mathematics.judge("x", ("b",)).reason == "wrong"
