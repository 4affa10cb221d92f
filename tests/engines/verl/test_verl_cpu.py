"""The server that stands in for vLLM on CPU cores refuses what vLLM would not survive. No Ray."""

from __future__ import annotations

import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

from bapo.engines.verl.cpu import CACHE, WEIGHTS, Sleeper

STEPS = {
    "sleep": lambda engine: engine.sleep(0),
    "sleep over 3": lambda engine: engine.sleep(3),
    "wake weights": lambda engine: engine.wake([WEIGHTS]),
    "wake cache": lambda engine: engine.wake([CACHE]),
    "push": Sleeper.push,
    "generate": Sleeper.generate,
}
#: as verl has it after a push
PUSHED = ("sleep", "wake weights", "push", "wake cache")


def engine(*steps: str) -> Sleeper:
    made = Sleeper()
    for step in steps:
        STEPS[step](made)
    return made


def test_it_samples_after_a_push() -> None:
    engine(*PUSHED, "generate", "sleep", "wake weights", "push", "wake cache", "generate")


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        ((), "generate"),  # no weights before the first push
        ((*PUSHED, "sleep"), "generate"),
        ((*PUSHED, "sleep", "wake weights", "wake cache"), "generate"),  # the weights are lost
        (("sleep", "wake weights", "push"), "generate"),
        (PUSHED, "push"),
        (("sleep",), "push"),
        (("sleep", "wake weights"), "wake weights"),  # vLLM would map them twice
        (PUSHED, "sleep over 3"),
    ],
)
def test_what_vllm_would_not_survive_is_refused(before: tuple[str, ...], refused: str) -> None:
    made = engine(*before)
    with pytest.raises(AssertionError):
        STEPS[refused](made)
