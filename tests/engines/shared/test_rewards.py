"""An overloaded grader: one more try with more time, then a reason of its own, never a plain wrong answer."""

from __future__ import annotations

import json

import pytest
from support.late import LATE

from bapo import tasks
from bapo.engines.shared import rewards
from bapo.experiments.compose import compose_config
from bapo.experiments.places import run_directory
from bapo.graders import mathematics, pool
from bapo.graders.extract import boxed
from bapo.graders.verdict import DIFFERENT, EQUAL, OVERLOADED, Verdict
from bapo.store.files import STEPS, read_table
from bapo.tasks.countdown.task import Countdown

if LATE:
    from bapo.engines.torch.trainer import train


GOLD, ANSWER = r"\sqrt{8}", r"2\sqrt{2}"
TRUTH = json.dumps({"format": "boxed", "answers": [GOLD]})


class Busy:
    """The shared pool of a machine that is too busy for the first checks."""

    def __init__(self, refused: int) -> None:
        self.refused, self.limits = refused, []

    def judge(self, gold: str, answer: str, deadline: pool.Deadline) -> str:
        self.limits.append(deadline.seconds)
        self.refused -= 1
        if self.refused >= 0:
            raise pool.Overloaded
        return EQUAL


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch):
    def start(refused: int) -> Busy:
        machine = Busy(refused)
        monkeypatch.setattr(mathematics.pool, "shared", lambda: machine)
        monkeypatch.setattr(mathematics.compare, "same", needs_algebra)
        mathematics.outcome_of.cache_clear()
        return machine

    def needs_algebra(*_: object) -> bool:
        raise mathematics.compare.NeedsAlgebra

    yield start
    mathematics.outcome_of.cache_clear()


def test_a_busy_machine_is_asked_again_with_more_time(busy) -> None:
    machine = busy(1)
    assert rewards.judge(tasks.get("mathematics"), boxed(ANSWER), TRUTH).correct
    assert machine.limits == [rewards.WALL_SECONDS] * 2
    assert pool.deadline().seconds == pool.WALL_SECONDS  # for whoever grades next


def test_what_stays_unknown_says_so(busy) -> None:
    busy(99)
    verdict = rewards.judge(tasks.get("mathematics"), boxed(ANSWER), TRUTH)
    assert verdict == Verdict(False, False, OVERLOADED)


def test_verl_counts_what_could_not_be_graded(busy) -> None:
    from bapo.engines.verl.reward import compute_score

    busy(99)
    found = compute_score("train", boxed(ANSWER), TRUTH, {"id": "p"}, task="mathematics")
    assert (found["score"], found["overloaded"]) == (0.0, 1)
    busy(0)
    found = compute_score("train", boxed(ANSWER), TRUTH, {"id": "p"}, task="mathematics")
    assert (found["score"], found["overloaded"]) == (1.0, 0)


def test_one_line_tells_how_many_could_not_be_graded(capsys: pytest.CaptureFixture[str]) -> None:
    rewards.warn(0, "step 1")
    rewards.warn(1, "step 2")
    said = "warning: step 2: the machine was too busy to grade 1 response, counted as wrong; give it more CPU cores\n"
    assert capsys.readouterr().err == said


def test_training_and_probe_of_the_torch_engine_tell(
    tiny_world: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = compose_config([*tiny_world, "method=grpo", "train.steps=1", "seed=83"])
    monkeypatch.setattr(Countdown, "verify", staticmethod(lambda *_: Verdict(False, False, OVERLOADED)))
    train(config)
    steps, error = read_table(run_directory(config) / STEPS), capsys.readouterr().err
    assert steps["overloaded"].tolist() == steps["fresh_rollouts"].tolist()
    assert "warning: step 0, probe: the machine was too busy" in error and "warning: step 1: the machine" in error


def test_a_validation_of_verl_tells() -> None:
    pytest.importorskip("verl")
    from bapo.engines.verl.trainer import MethodTrainer

    class Recorder:
        def add_probe(self, step: int, entries: object, problems: int) -> None:
            self.entries = list(entries)

    trainer, said = MethodTrainer.__new__(MethodTrainer), []
    trainer.recorder, trainer.global_steps, trainer.val_dataset, trainer._say = Recorder(), 4, [0, 1], said.append
    infos = {"problem": ["a", "b"], "reward": [0.0, 1.0], "overloaded": [1, 0], "seconds": [0.1, 0.1]}
    trainer._val_metrics_update(["probe", "probe"], ["u", "v"], infos, [])
    assert trainer.recorder.entries == [("probe", "a", 0.0), ("probe", "b", 1.0)]
    assert [line.split(" was")[0] for line in said] == ["warning: step 4, validation: the machine"]


def test_one_gold_that_was_not_checked_leaves_the_answer_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {"a": OVERLOADED, "b": DIFFERENT, "c": EQUAL}
    monkeypatch.setattr(mathematics, "compare_texts", lambda gold, answer, deadline: outcomes[gold])
    assert mathematics.judge("x", ("b", "a")).reason == OVERLOADED
    assert mathematics.judge("x", ("a", "c")).correct
    assert mathematics.judge("x", ("b",)).reason == "wrong"
