"""The lm-eval tasks on real copies of the public sets, where they lie beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from support.late import LATE
from support.paths import needs_shared

from bapo import tasks
from bapo.errors import UserError
from bapo.evaluation import scores

if LATE:
    from support.scripted_lm import Scripted, evaluate, manager


REAL = {"aime24": 30, "amc": 83, "math500": 500, "minerva": 272, "olympiad": 675, "geo3k_val": 300}


@pytest.fixture(scope="module")
def real() -> Path:
    needs_shared("data", "geometry3k", "val")
    return needs_shared("data")


@pytest.mark.parametrize("split", REAL)
def test_the_real_sets_load_and_gold_against_gold_is_right(real: Path, split: str) -> None:
    """Loading checks the golds as they are; here they also stand in a sentence, after thinking with another answer."""
    loaded = manager(data_folder=str(real)).load([f"bapo_{split}"])["tasks"][f"bapo_{split}"]
    documents = loaded.dataset["test"].select_columns(["id", "ground_truth"])
    assert len(documents) == REAL[split] == len(set(documents["id"]))
    graded = 0
    for doc in documents:
        for response in loaded.grader.gold_responses(doc["ground_truth"]):
            text = f"<think>Is it \\boxed{{-98765}}?</think> The answer is ${response}$."
            assert loaded.grader.verify(text, doc["ground_truth"]).correct, (doc["id"], response)
            graded += 1
    assert graded >= REAL[split]
    if split == "geo3k_val":
        image = loaded.doc_to_image(loaded.eval_docs[0])[0]
        with Image.open(real / "geometry3k" / "val" / "2101.png") as theirs:
            assert image.mode == "RGB" and image.tobytes() == theirs.convert("RGB").tobytes()


def test_countdown_real_rows_have_solutions(real: Path) -> None:
    from bapo.tasks.countdown.task import to_problem
    from bapo.tasks.job import check_golds

    for name, rows in (("countdown_3to4_first4000", 4000), ("countdown_3to4_tinyzero_test", 1024)):
        lines = (real / "countdown" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        made = [to_problem(row["nums"], row["target"], "think-answer") for row in map(json.loads, lines)]
        assert check_golds(tasks.get("countdown"), [(p.id, p.ground_truth) for p in made], name) == rows


def test_mathematics_and_geometry_scores_by_hand_on_the_real_sets(real: Path) -> None:
    """All repeats of the YAML files, 32, for the first problems of every set: 0, 2, 8 and 5 right answers of 32."""
    for group, grader in (("bapo_table1_math", "mathematics"), ("bapo_geo3k_val", "geometry")):
        model = Scripted(r"\boxed{-98765}", grader)
        found = evaluate(model, [group], real, limit=4)
        means = [right / 32 for right in Scripted.RIGHT]
        for name, samples in found["samples"].items():
            result = found["results"][name]
            assert result["acc,all"] == pytest.approx(sum(means) / 4), name
            assert result["acc_stderr,all"] == pytest.approx(scores.standard_error(means))
            assert result["pass@32,all"] == pytest.approx(3 / 4) and result["pass@1,all"] == pytest.approx(
                sum(means) / 4
            )
            assert [sum(sample["bits"]) for sample in samples] == list(Scripted.RIGHT)
            assert all(len(sample["bits"]) == 32 == len(sample["resps"][0]) for sample in samples)
        if grader == "mathematics":
            assert found["groups"][group]["acc,all"] == pytest.approx(sum(means) / 4)
            assert all(len(arguments) == 2 for arguments in model.asked)
        else:
            for text, _, extra in model.asked:
                assert text.count("<image>") == 1 == len(extra["visual"]) and extra["visual"][0].mode == "RGB"


def test_a_set_that_is_not_there_is_named(real: Path) -> None:
    with pytest.raises(UserError, match=r"no file geometry3k"):
        manager(data_folder=str(real)).load(["bapo_geo3k_test"])
