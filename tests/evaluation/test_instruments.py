"""The authors' scorers beside the suite's graders, and math-verify as a second one: verdicts, limits, refusals."""

from __future__ import annotations

import ast
import io
import json
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
import yaml
from support.configs import changed

from bapo import tasks
from bapo.errors import UserError
from bapo.evaluation import instruments, run
from bapo.evaluation.grade import grade_file
from bapo.evaluation.scores import summarise
from bapo.experiments.schema import Config, EvaluationConfig
from bapo.graders import pool
from bapo.store.files import read_table
from bapo.tasks.base import Problem
from bapo.tasks.countdown import grammar
from bapo.tasks.files import write_problems
from bapo.tasks.rows import RowsTask

CASES = yaml.safe_load(Path(__file__).with_name("scorers.yaml").read_text(encoding="utf-8"))
COUNTDOWN = grammar.to_ground_truth([3, 4, 5], 35, "answer")


def _truth(gold: str) -> str:
    return json.dumps({"answers": [gold], "format": "boxed"})


@pytest.mark.parametrize(
    ("task", "truth", "response", "authors", "suite"),
    [
        *(("countdown", COUNTDOWN, *row) for row in CASES["countdown"]),
        ("countdown", COUNTDOWN, "<answer>" + "(" * 900 + "</answer>", False, False),
        *(("mathematics", _truth(gold), *row) for gold, *row in CASES["mathematics"]),
        *(("geometry", _truth(gold), *row) for gold, *row in CASES["geometry"]),
    ],
)
def test_the_authors_scorer_and_the_suites(task: str, truth: str, response: str, authors: bool, suite: bool) -> None:
    if task == "geometry" and not find_spec("mathruler"):
        pytest.skip("needs the extra `authors`")
    found = [grader.verify(response, truth).correct for grader in (instruments.Authors(task), tasks.get(task))]
    assert found == [authors, suite]


@pytest.mark.parametrize(
    "text", ["open('x')", "sin('1')", "(1).real", "[1 for x in y]", "lambda: 1", "x", "'a'", "f(x=1)"]
)
def test_nothing_but_numbers_and_known_names_is_worked_out(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        instruments.work_out(ast.parse(text, mode="eval").body, {"sin": float, "f": float})


@pytest.mark.parametrize(
    ("gold", "response", "verdict"),
    [
        (r"2\sqrt{2}", r"so \boxed{\sqrt{8}}", (True, True, "")),
        ("8", r"\boxed{9}", (False, True, "wrong")),
        ("8", "nothing", (False, False, "unreadable")),
        ("8", r"\boxed{9^{9^{9}}}", (False, False, "time_limit")),
    ],
)
def test_math_verify_is_bounded(gold: str, response: str, verdict: tuple[bool, bool, str]) -> None:
    assert instruments.second_verdict(response, [gold]) == verdict
    assert pool.shared(instruments.__name__).kills == 0


@pytest.mark.parametrize(
    ("second", "responses", "said"),
    [
        (None, [r"\boxed{8}"], "1 graded, 1 correct, 0 without a readable answer\n"),
        (
            "math-verify",
            [r"\boxed{8}", r"<think>\boxed{8}", r"\boxed{8 \text{ cm}}"],
            "math-verify disagrees on 1 (33.3%): 0 are right here alone; lines 2\n",
        ),
    ],
)
def test_grade_counts_and_names_disagreements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], second: str | None, responses: list[str], said: str
) -> None:
    (tmp_path / "r.jsonl").write_text("\n".join(json.dumps({"gold": "8", "response": r}) for r in responses))
    out = io.StringIO()
    grade_file("mathematics", tmp_path / "r.jsonl", out, second)
    assert capsys.readouterr().err.endswith(said)
    assert all(("second" in json.loads(line)) == bool(second) for line in out.getvalue().splitlines())


def test_grade_refuses_a_second_grader_of_what_has_no_box(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--second=math-verify: .*countdown"):
        grade_file("countdown", tmp_path / "r.jsonl", second="math-verify")


def test_no_other_grader_reads_answers_that_lie_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    class InTags(RowsTask):
        name, answer_in = "in_tags", "tag"

    monkeypatch.setattr(instruments.tasks, "get", lambda name: InTags())
    for key in ({"grader": "authors"}, {"second_grader": "math-verify"}):
        with pytest.raises(UserError, match=f"evaluation.{next(iter(key))}.*problem p does not ask for it"):
            instruments.require(
                EvaluationConfig.model_construct(**key), "in_tags", Problem("p", "Capital?", _truth("Lima"))
            )


def test_a_verdict_that_the_machine_had_no_time_for_disagrees_with_nothing() -> None:
    frame = pd.DataFrame({"problem_id": "a", "correct": [True, False, True], "parsed": True})
    assert summarise(frame.assign(second_correct=[True, None, False]))["second_grader_disagreement"] == 0.5


def test_an_evaluation_with_both_graders(
    world: tuple[Config, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model writes no boxes; where the gold of a problem is empty of them, both graders say so."""
    problems = [Problem(f"p{i}", "3 4 7 : 14 =", _truth(str(i))) for i in range(2)]
    write_problems(tmp_path / "cd34.parquet", problems, "mathematics", "mathematics", "cd34")
    monkeypatch.setattr(run, "data_folder", lambda config: tmp_path)
    monkeypatch.setattr(instruments, "second_verdict", lambda response, golds: instruments.RIGHT)
    asked = {"task__name": "mathematics", "evaluation__benchmarks": ["cd34"], "evaluation__samples": 2}
    config = changed(world[0], **asked, evaluation__grader="authors", evaluation__second_grader="math-verify")
    found = run.evaluate(config, world[1], tmp_path / "eval")["benchmarks"]["cd34"]
    assert (found["accuracy"], found["second_grader_disagreement"]) == (0.0, 1.0)
    frame = read_table(tmp_path / "eval" / "cd34.parquet")
    assert frame["second_correct"].all() and set(frame["reason"]) == {"no_answer"}
