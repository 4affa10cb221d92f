"""Rows of a user's files, graded as a subclass of RowsTask says; what is wrong is said with file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from support.configs import forget
from support.late import LATE

from bapo import tasks
from bapo.__main__ import main
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import data_identity
from bapo.store.files import read_json
from bapo.tasks.files import read_problems
from bapo.tasks.job import make_data
from bapo.tasks.rows import RowsTask

if LATE:
    from bapo.engines.shared.responses import grade

TASK = "name: mine\ntitle: Mine\ncode: grader.py:Mine\n"
CODE = """\
from bapo.tasks.rows import RowsTask
class Mine(RowsTask):
    name = "mine"
    benchmarks = {"mine_test": "My test"}
    answers = "ANSWERS"
    answer_in = "PLACE"
"""
MINE = CODE.replace("ANSWERS", "exact").replace("PLACE", "tag")
#: what may be wrong with a task's code
BY_NUMBER = "    def equal(self, answer, gold):\n        return float(answer) == float(gold)\n"
NEVER = "    def equal(self, answer, gold):\n        return False\n"
A_BOOL = "    def verify(self, response, ground_truth):\n        return True\n"
A_TEXT = "    def gold_responses(self, ground_truth):\n        return 'A'\n"
SETTING = """\
# @package _global_
defaults:
  - /model: qwen2-112k
data:
  source: hub
  split_sizes: {train: 3, probe: 2, mine_test: 2}
  prompt: "Question: {problem} Answer:"
  hub:
    train: {repository: sets, files: [train.csv], columns: {problem: question}}
    mine_test: {repository: sets, files: [test.jsonl]}
sampling: {max_prompt_tokens: 32, max_response_tokens: 32}
train: {steps: 2, batch_size: 2, mini_batch_size: 2, group_size: 2, learning_rate: 1.0e-4}
evaluation: {benchmarks: [mine_test]}
"""


@pytest.fixture
def project(empty: Path) -> Path:
    for group in ("task", "setting"):
        (empty / "experiments" / group).mkdir(parents=True)
    (empty / "experiments" / "setting" / "laptop_mine.yaml").write_text(SETTING)
    (empty / "sets").mkdir()
    (empty / "sets" / "train.csv").write_text('question,answer\n"one, two?",A\nthree?,B\nfour?,C\n')
    rows = [{"problem": "five?", "answer": "D"}, {"problem": "six?", "answer": ["A", "B"]}]
    (empty / "sets" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    describe(empty, "exact", "tag")
    return empty


def describe(folder: Path, answers: str, place: str) -> None:
    (folder / "experiments" / "task" / "mine.yaml").write_text(TASK)
    (folder / "grader.py").write_text(CODE.replace("ANSWERS", answers).replace("PLACE", place))


def configuration() -> object:
    forget()
    return compose_config(["task=mine"])


def test_rows_become_problems_that_the_verifier_knows(project: Path) -> None:
    summary = make_data(configuration())
    sizes = {name: counts["problems"] for name, counts in summary["problems"].items()}
    assert sizes == {"train": 3, "probe": 2, "mine_test": 2}
    assert summary["golds"] == {"mine_test": 3}  # graded, each alternative of its own
    problems = read_problems(project / "results/laptop/mine/data/train.parquet")
    assert problems[0].prompt == "Question: one, two? Answer:"
    verify = tasks.get("mine").verify
    assert verify("thinking <answer> A </answer>", problems[0].ground_truth).correct
    assert not verify("<answer>A</answer> <answer>B</answer>", problems[0].ground_truth).correct
    assert verify("<think><answer>A</answer></think>", problems[0].ground_truth).reason == "no_answer"


@pytest.mark.parametrize(
    ("answers", "place", "gold", "right", "wrong"),
    [
        ("exact", "tag", "New York", "so <answer> New \n York</answer>", "<answer>new york</answer>"),
        ("exact", "all", "42", " 42 ", "It is 42"),
        ("mathematics", "box", "1/2", "hence \\boxed{0.5}", "\\boxed{0.51}"),
    ],
)
def test_ways_of_grading(project: Path, answers: str, place: str, gold: str, right: str, wrong: str) -> None:
    describe(project, answers, place)
    task, truth = tasks.get("mine"), json.dumps({"answers": [gold]})
    assert task.verify(right, truth).correct
    assert not task.verify(wrong, truth).correct
    assert all(task.verify(response, truth).correct for response in task.gold_responses(truth))


def test_training_lacks_the_rows_whose_gold_the_tasks_own_verifier_refuses(project: Path) -> None:
    own = "    def equal(self, answer, gold):\n        return answer.isdigit() and answer == gold\n"
    (project / "grader.py").write_text(MINE + own)
    (project / "sets" / "train.csv").write_text("question,answer\none?,1\ntwo?,2\nthree?,three\n")
    (project / "sets" / "test.jsonl").write_text('{"problem": "five?", "answer": ["5", "6"]}\n')
    assert make_data(configuration())["problems"]["train"] == {"problems": 2, "rows": 3}
    report = read_json(project / "results/laptop/mine/data/cleaning.json")
    assert report["unusable_answers"] == ["sets/train.csv:2"]


@pytest.mark.parametrize(
    ("code", "named"), [(BY_NUMBER, "line 8: Mine.verify raised ValueError"), (A_BOOL, "Mine.verify returned True")]
)
def test_a_fault_of_the_verifier_is_no_wrong_answer(
    project: Path, code: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a file to grade it is said with its line, and training and evaluation stop at it."""
    (project / "grader.py").write_text(MINE + code)
    (project / "r.jsonl").write_text('\n{"gold": "A", "response": "<answer>B</answer>"}\n')
    assert main(["grade", "--task", "mine", "r.jsonl"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: r.jsonl, line 2: grader.py") and named in error and error.count("\n") == 1
    with pytest.raises(UserError, match=named):
        grade(tasks.get("mine"), ["<answer>B</answer>"], json.dumps({"answers": ["A"]}))


def test_an_attempt_that_fails_leaves_the_problems_as_they_were(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = project / "results/laptop/mine"
    train = project / "sets" / "train.csv"
    rows = train.read_text()
    first = make_data(configuration())
    files = sorted((home / "data").iterdir())
    for broken in (rows + "seven\n", rows.replace("three?", ""), rows + "eight\n"):
        train.write_text(broken)
        with pytest.raises(UserError, match=r"train\.csv"):
            make_data(configuration())
        assert [path.name for path in home.iterdir()] == ["data"] and sorted((home / "data").iterdir()) == files
    assert "moved to" not in capsys.readouterr().err
    train.write_text(rows + "seven?,A\n")
    make_data(configuration())
    assert "was made from other settings, rows or code; moved to .data.was-" in capsys.readouterr().err
    assert {path.name for path in home.iterdir()} == {"data", f".data.was-{first['identity']}"}


def test_a_probe_from_its_own_file_takes_no_row_from_training(project: Path) -> None:
    (project / "sets" / "probe.csv").write_text("question,answer\nseven?,A\neight?,B\n")
    probe = "    probe: {repository: sets, files: [probe.csv], columns: {problem: question}}\n"
    setting = project / "experiments/setting/laptop_mine.yaml"
    setting.write_text(SETTING.replace("  hub:\n", "  hub:\n" + probe))
    assert make_data(configuration())["problems"]["train"]["rows"] == 3
    problems = {s: read_problems(project / f"results/laptop/mine/data/{s}.parquet") for s in ("train", "probe")}
    assert [p.id for p in problems["probe"]] == ["sets/probe.csv:0", "sets/probe.csv:1"]
    setting.write_text(SETTING.replace("  hub:\n", "  hub:\n" + probe.replace("probe.csv", "train.csv")))
    assert make_data(configuration())["problems"]["train"] == {"problems": 1, "rows": 3}  # two are the probe's


def test_the_examples_class_grades_its_rows(example_of: Callable[[str], Path]) -> None:
    example_of("rows")
    summary = make_data(compose_config(["task=capitals"]))
    sizes = {name: counts["problems"] for name, counts in summary["problems"].items()}
    assert sizes == {"train": 116, "probe": 16, "capitals_test": 38}
    truth = read_problems(Path("results/laptop/capitals/data/capitals_test.parquet"))[0].ground_truth
    verify = tasks.get("capitals").verify
    assert verify(" madríd.", truth).correct and not verify("Toledo", truth).correct


def test_rows_and_code_belong_to_the_identity_and_comments_do_not(project: Path) -> None:
    code = (project / "grader.py").read_text()
    first = data_identity(configuration())
    (project / "grader.py").write_text("# a comment\n" + code)
    assert data_identity(configuration()) == first
    (project / "words.py").write_text("ENDING = '.'\n")
    (project / "grader.py").write_text("import words\n" + code)
    helped = data_identity(configuration())
    (project / "words.py").write_text("ENDING = '!'\n")  # a module beside it that it imports
    assert len({first, helped, data_identity(configuration())}) == 3
    (project / "grader.py").write_text(code + "    answer_in = 'tag'\n")
    second = data_identity(configuration())
    assert second != first
    before = make_data(configuration())["problems"]["train"]["rows"]
    with (project / "sets" / "train.csv").open("a") as file:
        file.write("nine?,A\n")
    assert data_identity(configuration()) != second
    assert make_data(configuration())["problems"]["train"]["rows"] == before + 1


def test_files_that_no_split_reads_are_not_in_the_identity(project: Path) -> None:
    """A set may lie in the project's own folder, into which every job writes."""
    setting = project / "experiments/setting/laptop_mine.yaml"
    setting.write_text(SETTING.replace("{repository: sets, files: [train.csv],", "{repository: .,"))
    rows = pd.read_csv(project / "sets" / "train.csv")
    rows.to_parquet(project / "train.parquet")
    first = data_identity(configuration())
    (project / "results").mkdir(exist_ok=True)
    (project / "results" / "other.parquet").write_text("")
    assert data_identity(configuration()) == first
    rows.assign(answer="B").to_parquet(project / "train.parquet")
    assert data_identity(configuration()) != first


@pytest.mark.parametrize("files", ["/somewhere/train.csv", ""])
def test_a_pattern_that_is_none_is_named(project: Path, files: str) -> None:
    setting = project / "experiments/setting/laptop_mine.yaml"
    setting.write_text(SETTING.replace("[train.csv]", f"['{files}']"))
    with pytest.raises(UserError, match=r"data\.hub\.train\.files"):
        data_identity(configuration())


ROW = '{"problem": "x?", "answer": "A"}\n'


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("sets/train.csv", "question,answer\none?,A\ntwo?\n", "train.csv line 3"),
        ("sets/train.csv", "question,answer\none?,A\ntwo?,\udcff\n", "train.csv: .*0xff"),
        ("sets/test.jsonl", ROW + '\n{"problem": \n', r"test.jsonl line 3: .*Expecting value, column 13\)"),
        ("sets/test.jsonl", ROW * 2 + '{"answer": 1, "answer": 2}', "test.jsonl line 3: .*answer is given twice"),
        ("sets/test.jsonl", ROW + "[" * 100_000, "test.jsonl line 2: "),
        *(
            ("sets/test.jsonl", ROW + ROW.replace('"A"', answer), f"test.jsonl line 2: an answer is {said}, no finite")
            for answer, said in (("NaN", "nan"), ("-Infinity", "-inf"), ("1e400", "inf"), ('["A", NaN]', "nan"))
        ),
        ("sets/test.jsonl", ROW + ROW.replace("x?", r"\ud800"), "test.jsonl line 2: .*surrogates not allowed"),
        ("experiments/task/mine.yaml", "name: mine\ncode: nowhere.py:Task\n", "no file"),
        *(
            ("grader.py", MINE + code, message)
            for code, message in (
                (BY_NUMBER, r"csv:0 \(.*line 2\): grader\.py, line 8: Mine\.verify raised ValueError .*answer>A<"),
                (A_BOOL, r"csv:0 \(.*line 2\): grader\.py: Mine\.verify returned True for .*, must be a Verdict"),
                (A_TEXT, r"csv:0 \(.*line 2\): grader\.py: Mine\.gold_responses returned 'A' for .* a list"),
                (NEVER, r"data\.hub\.mine_test: problem sets/test\.jsonl:0 \(.*line 1\): .*gold answer \(wrong\)"),
            )
        ),
        ("grader.py", "import sys\nsys.exit(3)\n", r"grader\.py cannot be imported \(SystemExit: 3\)"),
        ("experiments/task/countdown.yaml", TASK.replace("mine", "countdown"), r"task/countdown\.yaml: "),
        ("experiments/setting/laptop_mine.yaml", SETTING.replace("train.csv", "no.csv"), "data.hub.train: .*no.csv"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_or_key(project: Path, file: str, text: str, message: str) -> None:
    (project / file).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=message):
        make_data(configuration())


@pytest.mark.parametrize("prompt", [r"{problem} Put it in \boxed{}.", "{problem} {gold}", "{problem} }"])
def test_a_prompt_with_other_places_is_refused(prompt: str) -> None:
    with pytest.raises(UserError, match=r"data.prompt="):
        RowsTask().real_prompts(prompt)
    kept = r"{problem} Put it in \boxed{{}}."
    assert RowsTask().real_prompts(kept)[kept].format(problem="1 + 1?") == r"1 + 1? Put it in \boxed{}."
