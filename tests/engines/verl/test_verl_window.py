"""Which steps are sampled at once, and what each of them is given and charged; no Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

from transfer_queue import KVBatchMeta

from bapo import methods
from bapo.algorithm.rollouts import Prompt
from bapo.engines.shared.prompts import PromptStream
from bapo.engines.verl.rollout import Submission
from bapo.engines.verl.rollout_window import RolloutWindow
from bapo.engines.verl.trainer import MethodTrainer
from bapo.experiments.compose import compose_config

PROMPTS = [Prompt(f"p{i}") for i in range(9)]


@pytest.mark.parametrize(
    ("words", "step", "version", "coming"),
    [
        (["method=bapo"], 1, 0, [2]),  # v = 3: the initial policy serves two steps
        (["method=bapo"], 3, 2, [4, 5]),
        (["method=grpo_v5"], 3, 2, [4, 5]),
        (["method=bapo"], 4, 2, []),  # alpha is no longer the current policy
        (["method=bapo"], 6, 5, [7]),  # the run ends with step 7
        (["method=bapo", "verl.rollout_window=false"], 3, 2, []),
        (["method=bapo", "train.budget={unit: rollouts, like: grpo, most: 2}"], 3, 2, []),  # who knows its last step
        (["method=bapo", "task=geometry"], 3, 2, []),
        (["method=grpo"], 3, 2, []),  # its policy is never delayed
    ],
)
def test_the_prompts_of_all_steps_that_alpha_serves_are_known_while_it_is_current(
    words: list[str], step: int, version: int, coming: list[int]
) -> None:
    config = compose_config(["engine=verl", "scale=smoke", "verl.rollout_window=true", *words])
    if hasattr(config.method, "v"):
        config.method.v = 3
    stream = PromptStream(PROMPTS, seed=1)
    stream.position = 2
    trainer = SimpleNamespace(
        global_steps=step,
        rollout_version=version,
        total_training_steps=7,
        run=config,
        method=methods.build(config.method, 2, config.seed),
        source=SimpleNamespace(stream=stream),
        recorder=SimpleNamespace(budget=config.train.budget),
        sampling=SimpleNamespace(task=SimpleNamespace(images=config.task.name == "geometry")),
    )
    found = MethodTrainer._coming_prompts(trainer)
    assert found == {s: stream.next_prompts(2) for s in coming}  # as the steps themselves will draw them


class OwnPrompts(methods.get("bapo")):
    def draw_prompts(self, step, sampler):
        return sampler.draw(1)


@pytest.mark.parametrize(
    ("method", "known"),
    [
        ("bapo", True),
        ("ba_ppo", True),
        ("mu_grpo", True),
        ("dots", False),
        ("bapo_filled", False),
        ("partial_rollouts", False),
        (OwnPrompts, False),
    ],
)
def test_a_hook_of_its_own_may_decide_by_what_a_method_has_seen(method: str | type, known: bool) -> None:
    cls = methods.get(method) if isinstance(method, str) else method
    assert cls(cls.Config(), batch_size=2, seed=1).draws_next_prompts is known


class Queue:
    """A rollout engine that has answered all prompts by the time that they are waited for, the last ones first."""

    def __init__(self, lengths: dict[str, list[int]]) -> None:
        """lengths: of the responses to each prompt."""
        self.lengths, self.steps = lengths, dict[int, list[str]]()

    def batch(self, prompts: list[Prompt], group_size: int, step: int, purpose: tuple, budget: int | None):
        self.steps[step] = [p.id for p in prompts]
        return step, Submission({f"{p.id}at{step}": p for p in prompts}, group_size)

    def collect(self, step: int, partition: str, count: int) -> tuple[KVBatchMeta, dict]:
        assert count == sum(map(len, self.steps.values()))
        rows = {
            f"{name}at{s}_{i}_0": {"response_len": length}
            for s, names in reversed(self.steps.items())
            for name in names
            for i, length in enumerate(self.lengths[name])
        }
        return KVBatchMeta(partition_id=partition, keys=list(rows), tags=list(rows.values())), {}


def test_each_step_gets_its_rows_and_its_share_of_the_time() -> None:
    """Steps 3, 4 and 5 have 30, 60 and 10 tokens. The time passes in step 3, which answers for 0.3 of it."""
    queue, sent = Queue({"p0": [20, 10], "p1": [30, 30], "p2": [5, 5]}), list[int]()
    window = RolloutWindow(queue, sent.append, queue.collect)
    drawn = {3: PROMPTS[:1], 4: PROMPTS[1:2], 5: PROMPTS[2:3]}
    window.submit(drawn, 2, None)
    assert sent == [3, 4, 5] and 3 not in window
    first = window.take(3, drawn[3])
    assert first.meta.keys == ["p0at3_0_0", "p0at3_1_0"] and first.passed > 0
    assert 4 in window and 5 in window and 3 not in window
    second, third = window.take(4, drawn[4]), window.take(5, drawn[5])
    assert second.meta.keys == ["p1at4_0_0", "p1at4_1_0"] and third.submission.prompts == {"p2at5": PROMPTS[2]}
    shares = [rollout.seconds / first.passed for rollout in (first, second, third)]
    assert shares == pytest.approx([0.3, 0.6, 0.1])
    assert second.passed == third.passed == 0


def test_a_response_that_is_missing_ends_the_run_before_a_checkpoint_holds_its_step() -> None:
    queue = Queue({"p0": [1, 1], "p1": [1]})
    window = RolloutWindow(queue, print, queue.collect)
    window.submit({1: PROMPTS[:1], 2: PROMPTS[1:2]}, 2, None)
    with pytest.raises(RuntimeError, match="problem p1: 1 of 2 responses arrived"):
        window.take(1, PROMPTS[:1])
    assert not window.finished


def test_other_prompts_than_those_answered_end_the_run() -> None:
    queue = Queue({"p0": [1], "p1": [1]})
    window = RolloutWindow(queue, print, queue.collect)
    window.submit({1: PROMPTS[:1], 2: PROMPTS[1:2]}, 1, None)
    window.take(1, PROMPTS[:1])
    with pytest.raises(RuntimeError, match=r"step 2: .*leave verl\.rollout_window out"):
        window.take(2, PROMPTS[2:3])
