"""The stand-in for vLLM's server refuses what vLLM would not survive. No Ray."""

from __future__ import annotations

import pytest

from bapo.engines.verl.cpu.sleeping import CACHE, WEIGHTS, Sleeper


def pushed() -> Sleeper:
    """As verl has it after a push: slept, woken for the weights, given them, woken for the cache."""
    engine = Sleeper()
    engine.sleep(0)
    engine.wake([WEIGHTS])
    engine.push()
    engine.wake([CACHE])
    return engine


def test_it_samples_after_a_push_and_loses_its_weights_when_it_sleeps() -> None:
    engine = pushed()
    engine.generate()
    engine.sleep(0)
    with pytest.raises(RuntimeError, match="sleeps: nothing can be generated"):
        engine.generate()
    engine.wake([WEIGHTS, CACHE])
    with pytest.raises(RuntimeError, match="lost its weights when it slept"):
        engine.generate()


def test_it_has_no_weights_before_the_first_push() -> None:
    with pytest.raises(RuntimeError, match="lost its weights"):
        Sleeper().generate()


def test_weights_come_between_the_two_steps_of_waking() -> None:
    with pytest.raises(RuntimeError, match="is awake; put it to sleep first"):
        pushed().push()
    engine = Sleeper()
    engine.sleep(0)
    with pytest.raises(RuntimeError, match="that sleeps; wake it first"):
        engine.push()
    engine.wake([WEIGHTS])
    with pytest.raises(RuntimeError, match="weights are awake"):
        engine.wake([WEIGHTS])
    with pytest.raises(RuntimeError, match="sleeps"):
        engine.generate()


def test_it_does_not_sleep_over_responses_under_way() -> None:
    with pytest.raises(RuntimeError, match="while 3 responses are under way"):
        pushed().sleep(3)
