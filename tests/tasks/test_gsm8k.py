"""GSM8K at scale single_gpu: rows in its form become problems, the probe is kept out of training, golds are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.tasks import files, sources
from bapo.tasks.job import make_data

#: question, answer as in the set: a solution with its calculations between << and >>, then the number
TRAIN = [
    ("Ann has 3 apples and buys 4. How many has she?", "She has 3 + 4 = <<3+4=7>>7 apples.\n#### 7"),
    (
        "A house of 50,000 dollars gains a fifth. What is it worth?",
        "1.2 * 50000 = <<1.2*50000=60000>>60000\n#### 60,000",
    ),
    ("It was 5 degrees and fell by 8. How cold is it?", "5 - 8 = -3\n#### -3"),
    ("Ann has 3 apples and  buys 4. How many has she?", "The first problem again. #### 7"),
    ("Ben walks 2 miles a day. How far in a week?", "2 * 7 = 14\n#### 14"),
    ("Cy shares 10 sweets with a friend. How many each?", "10 / 2 = 5\n#### 5"),
]
TEST = [("Dee reads 20 pages an hour. How many in 3 hours?", "20 * 3 = <<20*3=60>>60\n#### 60"), ("Cost?", "#### 2.50")]


def write(path: Path, rows: list[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The two files of OpenAI's repository, as a user's data folder holds them."""
    write(tmp_path / "sets/gsm8k/train.jsonl", TRAIN)
    write(tmp_path / "sets/gsm8k/test.jsonl", TEST)
    return tmp_path / "sets"


def config_of(folder: Path, *more: str) -> Any:
    start = len(TRAIN) - 2
    rows = [f"data.hub.{name}.rows={len(TRAIN)}" for name in ("train", "probe")] + [f"data.hub.gsm8k.rows={len(TEST)}"]
    words = ["scale=single_gpu", "task=mathematics", f"paths.data_folder={folder}", *rows]
    words += [f"data.hub.probe.start={start}", "data.split_sizes.probe=1", f"data.split_sizes.gsm8k={len(TEST)}"]
    return compose_config([*words, f"paths.results={folder.parent}", *more])


def test_rows_become_problems_and_the_probe_is_no_training_problem(folder: Path) -> None:
    said: list[str] = []
    config = config_of(folder)
    summary = make_data(config, said.append)
    data = folder.parent / "single_gpu/mathematics/data"
    problems = {split: files.read_problems(data / f"{split}.parquet") for split in config.data.split_sizes}
    assert [p.id for p in problems["train"]] == [f"gsm8k:{i}" for i in (0, 1, 2, 3, 5)]
    assert [p.id for p in problems["probe"]] == ["gsm8k:4"]  # row 5 is asked for by nobody, so it is trained on
    assert [p.id for p in problems["gsm8k"]] == ["gsm8k-test:0", "gsm8k-test:1"]
    assert (
        problems["train"][0].prompt
        == f"{TRAIN[0][0]} Let's think step by step and output the final answer within \\boxed{{}}."
    )
    golds = [json.loads(p.ground_truth)["answers"] for p in (*problems["train"], *problems["gsm8k"])]
    assert golds == [["7"], ["60,000"], ["-3"], ["7"], ["5"], ["60"], ["2.50"]]
    assert summary["golds"] == {"gsm8k": 2}
    report = json.loads((data / "cleaning.json").read_text(encoding="utf-8"))
    assert report["rows"] == {"train": 5, "probe": 1, "gsm8k": 2}
    assert report["duplicates"]["groups"] == 1 and set(report["overlap"]) == {"probe", "gsm8k"}
    assert any(line.startswith("overlap with gsm8k: 0 of 2") for line in said)


def test_a_row_without_the_mark_is_named(folder: Path) -> None:
    write(folder / "gsm8k/test.jsonl", [("How many?", "Nobody knows."), TEST[0]])
    with pytest.raises(
        UserError, match=r"test.jsonl line 1: no '####' in column 'answer'.*data.hub.gsm8k.answer_after"
    ):
        make_data(config_of(folder))


def test_the_setting_takes_every_row_once() -> None:
    config = compose_config(["scale=single_gpu", "task=mathematics"])
    sizes, hub = config.data.split_sizes, config.data.hub
    assert sizes.train == hub.probe.start and sizes.train + sizes.probe == hub.train.rows == hub.probe.rows
    assert sizes.gsm8k == hub.gsm8k.rows
    assert len({entry.revision for entry in hub.values()}) == 1
    assert sources.source(hub, "gsm8k").name != sources.source(hub, "train").name
