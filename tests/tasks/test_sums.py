"""Sums for a pretrained model: problems, splits, prompts and grading."""

import pandas as pd
import pytest

from bapo import tasks
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.graders.verdict import NO_ANSWER, RIGHT, WRONG, Verdict
from bapo.tasks.mathematics import sums

mathematics = tasks.get("mathematics")


def configured(*overrides):
    return compose_config(["scale=pocket", "task=mathematics", *overrides])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """split -> its rows, of the scale's own setting."""
    folder = tmp_path_factory.mktemp("sums")
    mathematics.write_data(configured(), folder)
    return {file.stem: pd.read_parquet(file) for file in folder.glob("*.parquet")}


def addends(row):
    asked = row["prompt"][0]["content"].rpartition("What is ")[2].rpartition("?")[0]
    return sorted(map(int, asked.split(" + ")))


def test_no_sum_is_in_two_splits_or_among_the_examples(written):
    pairs = [tuple(addends(row)) for frame in written.values() for _, row in frame.iterrows()]
    assert {split: len(frame) for split, frame in written.items()} == {
        "train": 400,
        "probe": 64,
        "sum2": 100,
        "sum3": 100,
    }
    assert len(set(pairs)) == len(pairs) == 664
    assert not set(pairs) & {tuple(sorted(example)) for example in sums.EXAMPLES}


def test_each_split_has_numbers_of_its_size_and_their_sum_as_gold(written):
    for split, frame in written.items():
        low, high = (100, 999) if split == "sum3" else (10, 99)
        for _, row in frame.iterrows():
            a, b = addends(row)
            assert low <= a <= b <= high
            truth = row["reward_model"]["ground_truth"]
            assert mathematics.gold_responses(truth) == [str(a + b)]
            assert mathematics.verify(f" {a + b}\n", truth) == RIGHT
            assert mathematics.verify(f" {a + b + 1}", truth) == Verdict(False, True, WRONG)


def test_every_example_is_right_and_every_prompt_begins_with_them():
    prompts = [sums.Sum(10, 11).prompt, sums.Sum(345, 678).prompt]
    head = prompts[0].partition("Question: What is 10")[0]
    assert all(prompt.startswith(head) for prompt in prompts) and prompts[1].endswith("What is 345 + 678?\nAnswer:")
    assert all(f"What is {a} + {b}?\nAnswer: {a + b}\n" in head for a, b in sums.EXAMPLES)


@pytest.mark.parametrize(
    "response", ["", "85 apples", "= 85", "8 5", "85.", "+85", "-85", "٨٥", "85" + " " * 63, "1" * 70]
)
def test_only_a_bare_number_is_an_answer(response):
    assert mathematics.verify(response, sums.truth(85)) == Verdict(False, False, NO_ANSWER)


def test_answers_are_compared_as_numbers():
    assert mathematics.verify("085", sums.truth(85)) == RIGHT
    assert mathematics.answer(" 085\n") == "85"
    assert mathematics.demonstration("mathematics:38+47", "", sums.truth(85)) == "85"


@pytest.mark.parametrize(
    "override, words",
    [
        ("data.split_sizes.sum2=5000", "data.split_sizes.sum2: 5000 distinct sums are wanted but only 1163"),
        ("data.split_sizes.nested_3=5", "data.split_sizes.nested_3.*few-shot has no such split.*sum2, sum3"),
        ("data.generator.kind=chain", "data.generator.kind=chain"),
    ],
)
def test_what_cannot_be_made_is_said(override, words, tmp_path):
    with pytest.raises(UserError, match=words):
        mathematics.write_data(configured(override), tmp_path)


def test_a_model_from_scratch_has_no_sums():
    with pytest.raises(UserError, match=r"data\.prompt.*choose a pretrained model"):
        mathematics.build_tokenizer(configured())
    with pytest.raises(UserError, match=r"sum2.*no such split"):
        mathematics.problems(
            compose_config(["scale=laptop", "task=mathematics", "data.split_sizes.sum2=3"]).data, "sum2", None
        )
