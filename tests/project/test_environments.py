"""A task that is a single-turn environment: problems are seeds, rewards are grades, what breaks the rules is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import example

from bapo import tasks
from bapo.errors import UserError
from bapo.experiments.compose import compose_config, forget
from bapo.experiments.identity import data_identity
from bapo.graders import environment, pool
from bapo.graders.verdict import RIGHT
from bapo.store.files import STEPS, SUMMARY, read_json, read_table
from bapo.tasks.files import read_problems
from bapo.tasks.job import make_data

CODE, TASK, SETTING = "environments/sums.py", "experiments/task/sums.yaml", "experiments/setting/laptop_sums.yaml"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project of docs/project.md, with fewer problems."""
    for language, file in (("python", CODE), ("yaml", TASK), ("yaml", SETTING)):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        text = example(language, file)
        (tmp_path / file).write_text(
            text.replace("train: 500, probe: 50, sums_test: 100", "train: 30, probe: 4, sums_test: 10")
        )
    (tmp_path / "bapo.yaml").write_text("scale: laptop\n")
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    forget()


def configuration(*words: str) -> object:
    forget()
    return compose_config(["task=sums", *words])


def write(
    project: Path, step: str = "return '', 1.0, True, False, {}", reset: str = "return f'Problem {seed}', {}"
) -> None:
    """Put another environment in the project's file."""
    (project / CODE).write_text(
        f"class Sums:\n    def reset(self, seed):\n        {reset}\n    def step(self, action):\n        {step}\n"
    )


def grade(action: str = "x", seed: int = 1, right_from: float | None = None) -> object:
    path = Path.cwd() / CODE
    begun = environment.start(path, "Sums", seed)
    with pool.patience(60):  # the limit of CPU time strikes first, however busy the machine is
        return environment.judge(path, "Sums", seed, begun.digest, action, right_from)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """A file that changes within one process needs another pool; in use it does not change."""
    yield
    environment.user.shared.cache_clear()


def test_the_pages_example_makes_problems_and_grades_them(project: Path) -> None:
    summary = make_data(configuration())
    assert summary["problems"]["train"]["problems"] == 30 and summary["golds"] == {"sums_test": 10}
    splits = [read_problems(project / f"results/laptop/sums/data/{name}.parquet") for name in ("train", "sums_test")]
    prompts = [problem.prompt for split in splits for problem in split]
    assert len(set(prompts)) == 40  # within and between the splits
    assert prompts[0].startswith("What is ") and prompts[0].endswith("? Answer in <answer> tags.")
    task, problem = tasks.get("sums"), splits[1][0]
    total = eval(problem.prompt.removeprefix("What is ").partition("?")[0])
    assert task.verify(f"so <answer> {total} </answer>", problem.ground_truth) == RIGHT
    assert task.verify(f"<answer>{total + 1}</answer>", problem.ground_truth).reason == "wrong"
    assert task.verify(str(total), problem.ground_truth).reason == "no_answer"
    assert task.gold_responses(problem.ground_truth) == (f"<answer>{total}</answer>",)
    again = make_data(configuration("data.split_sizes.train=5"))
    assert again["files"]["sums_test.parquet"] == summary["files"]["sums_test.parquet"]  # whatever the others' size


def test_the_command_grades_lines(project: Path) -> None:
    begun = environment.start(project / CODE, "Sums", 7)
    lines = [{"seed": 7, "response": f"<answer>{begun.answer}</answer>"}, {"seed": 7, "response": "<answer>0</answer>"}]
    (project / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "bapo", "grade", "--task", "sums", "lines.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [json.loads(line)["correct"] for line in done.stdout.splitlines()] == [True, False]


@pytest.mark.parametrize(
    ("reward", "right_from", "correct"),
    [("True", None, True), ("0", None, False), ("0.7", 0.5, True), ("-3", 0.5, False), ("2", 1.0, True)],
)
def test_rewards_that_are_taken(project: Path, reward: str, right_from: float | None, correct: bool) -> None:
    write(project, step=f"return '', {reward}, False, True, {{}}")
    assert grade(right_from=right_from).correct is correct


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("return '', 0.7, True, False, {}", r"step gave the reward 0\.7; it must be 0 or 1, or .* right_from"),
        ("return '', float('nan'), True, False, {}", "must be a number"),
        ("return '', 'good', True, False, {}", "must be a number"),
        ("return '', 1.0, False, False, {}", "must end the episode"),
        ("return 1.0", "step must return"),
    ],
)
def test_a_step_that_breaks_the_rules_is_refused_with_the_seed(project: Path, step: str, message: str) -> None:
    write(project, step=step)
    with pytest.raises(UserError, match=rf"sums\.py:Sums: seed 1: .*{message}"):
        grade()


@pytest.mark.parametrize(
    ("reset", "message"),
    [
        ("return 'text'", "reset must return"),
        ("return '', {}", "not empty"),
        ("return 3, {}", "not empty"),
        ("raise ValueError('no such seed')", "reset raised ValueError: no such seed"),
        ("return 'text', {'answer': 3}", "must be a text"),
        ("return 'x' * 200_000, {}", "200000 characters"),
        ("import time, random; return str(time.time()) + str(random.random()), {}", "another observation"),
    ],
)
def test_a_reset_that_breaks_the_rules_is_refused(project: Path, reset: str, message: str) -> None:
    write(project, reset=reset)
    with pytest.raises(UserError, match=message):
        grade()


def test_actions_run_within_limits_and_apart(project: Path) -> None:
    write(
        project,
        reset="self.__class__.count = getattr(self.__class__, 'count', 0); return 'Problem', {}",
        step="""
        if action == "loop":
            while True:
                pass
        if action == "memory":
            bytearray(4 << 30)
        if action == "network":
            import socket; socket.create_connection(("127.0.0.1", 9))
        if action == "raise":
            raise ValueError(action)
        return "", 1.0, True, False, {}""",
    )
    verdicts = {word: grade(word) for word in ("loop", "memory", "network", "raise", "fine")}
    assert [word for word, verdict in verdicts.items() if verdict.correct] == ["fine"]
    assert verdicts["loop"].reason == verdicts["memory"].reason == "time_limit"
    assert verdicts["network"].reason == verdicts["raise"].reason == "unreadable"


def test_too_few_different_problems_are_said(project: Path) -> None:
    write(project, reset="return f'Problem {seed % 7}', {}")
    with pytest.raises(UserError, match=r"data\.split_sizes\.sums_test=10: 200 seeds gave 7 observations"):
        make_data(configuration())


def test_a_gold_that_the_environment_does_not_accept_stops_the_data_job(project: Path) -> None:
    write(project, reset="return f'Problem {seed}', {'answer': '1'}", step="return '', 0.0, True, False, {}")
    with pytest.raises(UserError, match="does not accept the gold answer of 10 of 10 problems"):
        make_data(configuration())


def test_code_and_rule_belong_to_the_identity_and_comments_do_not(project: Path) -> None:
    first = data_identity(configuration())
    code = (project / CODE).read_text()
    (project / CODE).write_text(f"# a comment\n{code}")
    assert data_identity(configuration()) == first
    (project / CODE).write_text(code.replace("range(10, 100)", "range(10, 90)"))
    assert data_identity(configuration()) != first
    (project / CODE).write_text(code)
    (project / TASK).write_text((project / TASK).read_text() + "right_from: 1.0\n")
    assert data_identity(configuration()) != first


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("environment: nowhere.py:Sums\nbenchmarks: {t: T}\n", "no file"),
        (f"environment: {CODE}:Sums\n", "benchmarks is empty"),
        (f"environment: {CODE}:Sums\nanswers: exact\n", "answers and environment: give one of them"),
        ("answers: exact\nright_from: 0.5\nbenchmarks: {t: T}\n", "right_from"),
    ],
)
def test_what_is_wrong_with_the_tasks_file_is_said(project: Path, yaml: str, message: str) -> None:
    (project / TASK).write_text(f"name: sums\n{yaml}")
    with pytest.raises(UserError, match=message):
        tasks.get("sums")


def test_a_class_that_is_not_there_and_a_model_without_words(project: Path) -> None:
    with pytest.raises(UserError, match=r"sums\.py has no Other"):
        environment.start(project / CODE, "Other", 1)
    (project / CODE).write_text("class Sums:\n    def reset(self, seed):\n        return 'x', {}\n")
    with pytest.raises(UserError, match="has no method step"):
        environment.start(project / CODE, "Sums", 1)
    config = configuration("model=qwen2-112k")
    with pytest.raises(UserError, match="choose a pretrained model"):
        tasks.get("sums").build_tokenizer(config)


@pytest.mark.slow
def test_a_model_is_trained_and_evaluated_in_an_environment(project: Path) -> None:
    """Two steps of a tiny model whose random answers are right by their length: rewards of both kinds come out."""
    from support.paths import ROOT

    from bapo.engines.shared import models

    forget()
    built, tokenizer = models.build_scratch(compose_config(["task=countdown"]))
    built.save_pretrained(project / "model")
    tokenizer.save_pretrained(project / "model")
    write(
        project,
        reset="return f'{seed % 60} + {seed // 60 % 60} =', {}",
        step="return '', float(len(action) % 2), True, False, {}",
    )
    (project / TASK).write_text((project / TASK).read_text().replace("answer_in: tag", "answer_in: all"))
    (project / "experiments/model").mkdir()
    (project / "experiments/model/mine.yaml").write_text("name: mine\ntitle: Mine\nkind: pretrained\npath: model\n")
    words = ["task=sums", "model=mine", "train.steps=2", "train.batch_size=4", "train.mini_batch_size=4"]
    words += ["probe.prompts=4", "probe.samples=2", "evaluation.samples=2", "tracking=none", "checkpoint.every=2"]
    words += ["sampling.max_response_tokens=8"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for command, more in (("data", []), ("base", []), ("train", ["method=grpo"]), ("evaluate", ["method=grpo"])):
        done = subprocess.run(
            [sys.executable, "-m", "bapo", command, *words, *more], env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
    run = project / "results/laptop/sums/mine/grpo/seed1"
    steps = read_table(run / STEPS)
    assert len(steps) == 2 and 0 < steps["reward_mean"].mean() < 1
    assert 0 <= read_json(run / "eval" / SUMMARY)["benchmarks"]["sums_test"]["accuracy"] <= 1
