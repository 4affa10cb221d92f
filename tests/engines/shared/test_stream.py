"""Prompts that have tokens, and the training stream: epochs, and blocks of difficulty (train.blocks)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.late import LATE

from bapo import tasks
from bapo.algorithm.rollouts import Prompt
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.tasks.base import Document, Problem
from bapo.tasks.files import write_problems

if LATE:
    from bapo.engines.shared.prompts import PromptStream, read_prompts, training_stream
    from bapo.engines.torch import base_model

NUMBERS = [[1, 2, 3], [1, 2, 3, 4], [2, 3, 4], [2, 3, 4, 5], [3, 4, 5]]
TRUTHS = [f'{{"numbers": {n}, "target": 5, "format": "chain"}}' for n in NUMBERS]
PROMPTS = [Prompt(str(i)) for i in range(5)]


def stream(blocks: str, *options: str) -> PromptStream:
    """3 steps of 4 prompts."""
    size = ["train.steps=3", "train.batch_size=4", "train.mini_batch_size=4"]
    config = compose_config(["task=countdown", *size, f"train.blocks={blocks}", *options])
    return training_stream(config, PROMPTS, TRUTHS, tasks.get("countdown"))


def test_an_epoch_has_every_prompt_once_and_a_position_is_the_whole_state() -> None:
    whole = PromptStream(PROMPTS, 1)
    drawn = [p.id for p in whole.next_prompts(10)]
    assert sorted(drawn[:5]) == sorted(drawn[5:]) == list("01234") and drawn[:5] != drawn[5:]
    resumed = PromptStream(PROMPTS, 1)
    resumed.position = 3
    assert [p.id for p in resumed.next_prompts(7)] == drawn[3:]
    assert [p.id for p in stream("null").next_prompts(10)] == drawn


def test_blocks_follow_each_other_and_the_last_has_no_end() -> None:
    hard, easy = {"1", "3"}, {"0", "2", "4"}
    drawn = [p.id for p in stream("[4,3,3]").next_prompts(16)]
    assert [set(drawn[:4]), set(drawn[4:8]), set(drawn[8:])] == [hard, easy, easy]
    assert [drawn[:4].count(i) for i in hard] == [2, 2]
    again = stream("[4,3,4]")
    again.position = 7
    assert [p.id for p in again.next_prompts(1)] == drawn[7:8] and {p.id for p in again.next_prompts(6)} == hard


@pytest.mark.parametrize(("task", "blocks"), [("countdown", "[7]"), ("mathematics", "[3]")])
def test_a_difficulty_without_problems_is_named(task: str, blocks: str) -> None:
    config = compose_config([f"task={task}", f"train.blocks={blocks}"])
    with pytest.raises(UserError, match=r"train\.blocks"):
        training_stream(config, PROMPTS, TRUTHS, tasks.get(task))


@pytest.mark.parametrize(
    "method", ["dapo", "mopps", "fifo_replay", "grpo_stale", "remix", "exgrpo", "partial_rollouts"]
)
def test_blocks_are_refused_where_a_step_draws_another_number_of_prompts(method: str) -> None:
    with pytest.raises(UserError, match=r"train\.blocks.*" + method):
        stream("[4,3]", f"method={method}")


def test_fewer_steps_than_blocks_are_refused() -> None:
    with pytest.raises(UserError, match=r"train\.steps=2"):
        stream("[4,3,4]", "train.steps=2")


def test_a_text_of_which_the_tokenizer_drops_every_word_is_named(tmp_path: Path) -> None:
    config = compose_config(["scale=smoke", "task=countdown"])
    tokenizer = tasks.get("countdown").build_tokenizer(config)
    write_problems(tmp_path / "train.parquet", [Problem("p:0", "Sort cab", "abc")], "x", "x", "train")
    with pytest.raises(UserError, match=r"the prompt of problem p:0 has no token.*build_tokenizer"):
        read_prompts(tmp_path / "train.parquet", tokenizer, 8)
    write_problems(tmp_path / "train.parquet", [Problem("p:0", "1 2 3", "6")], "x", "x", "train")
    with pytest.raises(UserError, match=r"p:0 has 3 tokens, but 2 are allowed; raise sampling\.max_prompt"):
        read_prompts(tmp_path / "train.parquet", tokenizer, 2)
    for prompt, response, part in (("Sort cab", "1", "prompt"), ("1 2", "abc", "response")):
        with pytest.raises(UserError, match=f"the {part} of document d:0 has no token.*build_tokenizer"):
            base_model._buckets(config, [Document("d:0", prompt, response)], tokenizer)
