"""Evaluation through lm-eval on a tiny world, its statistics against values worked out by hand, and grading."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.configs import changed
from support.runs import without_a_line

from bapo import tasks
from bapo.errors import UserError
from bapo.evaluation.backends import build
from bapo.evaluation.checkpoints import checkpoint_digest
from bapo.evaluation.grade import grade_file
from bapo.evaluation.run import evaluate, run_benchmark
from bapo.evaluation.scores import summarise
from bapo.experiments.places import data_directory
from bapo.experiments.schema import Config
from bapo.graders.verdict import OVERLOADED, Verdict
from bapo.store.columns import EVALUATION
from bapo.store.files import damaged_files, fingerprints, read_json, read_table, write_json
from bapo.tasks.base import Task

World = tuple[Config, Path]
Evaluated = tuple[Path, dict[str, Any]]
COLUMNS = ["problem_id", "sample", "correct", "parsed", "reason", "tokens", "seed", "response"]


class Lengths(Task):
    """A verifier for the tests, with right, wrong and unparsed answers even from a model that has learnt nothing."""

    name = "lengths"

    def verify(self, response: str, ground_truth: str) -> Verdict:
        kind = len(response) % 3
        return Verdict(kind == 0, kind != 2, ("", "wrong", "unparsed")[kind])


@pytest.fixture(scope="module")
def evaluated(world: World, tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    folder = tmp_path_factory.mktemp("evaluated") / "eval"
    return folder, evaluate(*world, folder)


@pytest.fixture
def copied(evaluated: Evaluated, tmp_path: Path) -> Path:
    """A finished evaluation to do something to."""
    return Path(shutil.copytree(evaluated[0], tmp_path / "eval"))


@pytest.fixture(scope="module")
def model(world: World) -> Any:
    return build(*world, advance=lambda count: None)


def benchmark(config: Config, samples: int = 32, **sampling: float) -> Any:
    from bapo.evaluation.tasks import Benchmark

    path, longest = data_directory(config) / "cd34.parquet", config.sampling.max_response_tokens
    return Benchmark("cd34", path, Lengths(), samples=samples, max_tokens=longest, **sampling)


def table(folder: Path, name: str = "cd34") -> pd.DataFrame:
    return pd.read_parquet(folder / f"{name}.parquet")


#: A matrix product may round differently in a batch of another size and, about once in a million tokens, turn one into
#: another: two responses of 18 and more may differ, where any mistake in the keys makes most of them differ.
ROUNDING = 2


def differing(first: pd.DataFrame, second: pd.DataFrame) -> int:
    assert first["problem_id"].tolist() == second["problem_id"].tolist()
    return sum(a != b for a, b in zip(first["response"], second["response"], strict=True))


def test_summary_of_a_table_by_hand() -> None:
    """Two problems of four samples: 1 and 3 correct, one response unparsed."""
    frame = pd.DataFrame(
        {
            "problem_id": ["a"] * 4 + ["b"] * 4,
            "correct": [True, False, False, False, True, True, True, False],
            "parsed": [True, True, True, False, True, True, True, True],
            "response": ["1", "2", "2", "3", "1", "1 ", " 1", "2"],
        }
    )
    assert summarise(frame) == {
        "accuracy": 0.5,
        "standard_error": pytest.approx(0.25),  # deviations of 1/4 each: sqrt(2/16 / 2)
        "problems": 2,
        "samples": 4,
        "pass@1": 0.5,
        "pass@4": 1.0,
        "unparsed": 0.125,
    }
    assert summarise(frame[:4])["standard_error"] is None  # one problem has no error bar


def test_what_could_not_be_graded_is_counted(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, base = world
    config = changed(config, evaluation__benchmarks=["cd34"], evaluation__samples=2)
    busy = Verdict(False, False, OVERLOADED)
    monkeypatch.setattr(type(tasks.get("countdown")), "verify", staticmethod(lambda *_: busy))
    summary = evaluate(config, base, tmp_path / "eval")
    assert summary["overloaded"] == 2 * summary["benchmarks"]["cd34"]["problems"]


def test_keeps_32_differing_samples_of_every_problem(world: World, evaluated: Evaluated) -> None:
    config, _ = world
    folder, summary = evaluated
    for name in ("cd34", "cd4"):
        frame, problems = table(folder, name), read_table(data_directory(config) / f"{name}.parquet")
        assert list(frame.columns) == COLUMNS and without_a_line(EVALUATION, frame.columns) == []
        ids = [extra["id"] for extra in problems["extra_info"]]
        assert frame["problem_id"].tolist() == [i for i in ids for _ in range(32)]
        assert frame["sample"].tolist() == list(range(32)) * len(ids)
        assert frame.groupby("problem_id")["response"].nunique().min() > 1
        assert frame["tokens"].between(1, config.sampling.max_response_tokens).all()
        assert (frame["seed"] == config.evaluation.seed).all()
        truths = dict(zip(ids, (r["ground_truth"] for r in problems["reward_model"]), strict=True))
        for row in frame.itertuples():
            verdict = tasks.get("countdown").verify(row.response, truths[row.problem_id])
            assert (row.correct, row.parsed, row.reason) == verdict
        assert summary["benchmarks"][name]["problems"] == len(ids) == 6
        assert summary["benchmarks"][name]["samples"] == 32
    assert damaged_files(folder, summary["files"]) == []
    assert set(summary["files"]) == {"cd34.parquet", "cd4.parquet", "lm_eval.json"}
    assert summary == read_json(folder / "summary.json")


def test_lm_eval_reports_the_mean_and_clustered_error_of_the_table(
    world: World, evaluated: Evaluated, model: Any
) -> None:
    results, frame = run_benchmark(model, benchmark(world[0]))
    means = frame.groupby("problem_id")["correct"].mean()
    assert 0 < means.mean() < 1  # or the comparison says nothing
    lm_eval, ours = results["results"]["cd34"], summarise(frame)
    assert lm_eval["acc,all"] == pytest.approx(frame["correct"].mean(), abs=1e-12)
    assert lm_eval["acc_stderr,all"] == pytest.approx(means.sem(), abs=1e-12)
    assert ours["standard_error"] == pytest.approx(means.sem(), abs=1e-12)
    for key in ("pass@1", "pass@8", "pass@32", "unparsed"):
        assert lm_eval[f"{key},all"] == pytest.approx(ours[key], abs=1e-12)
    assert results["configs"]["cd34"]["repeats"] == 32

    folder, summary = evaluated
    written = read_json(folder / "lm_eval.json")
    assert set(written["results"]) == {"cd34", "cd4"}
    for name in written["results"]:
        assert written["results"][name]["acc,all"] == pytest.approx(table(folder, name)["correct"].mean(), abs=1e-12)
        assert summary["benchmarks"][name]["accuracy"] == pytest.approx(table(folder, name)["correct"].mean())


def test_samples_depend_on_the_seed_alone(world: World, evaluated: Evaluated, model: Any, tmp_path: Path) -> None:
    """Not on the batch size, the order and number of benchmarks, or the number of problems."""
    config, checkpoint = world
    other = changed(config, evaluation__benchmarks=["cd4", "cd34"], evaluation__batch_size=64)
    evaluate(other, checkpoint, tmp_path / "a")
    for name in ("cd34", "cd4"):
        assert differing(table(tmp_path / "a", name), table(evaluated[0], name)) <= ROUNDING
    _, first = run_benchmark(model, benchmark(config), limit=2)
    assert len(first) == 64
    assert differing(first, table(evaluated[0]).head(64)) <= ROUNDING
    _, fewer = run_benchmark(model, benchmark(config, samples=3))
    assert differing(fewer, table(evaluated[0]).query("sample < 3")) <= ROUNDING

    evaluate(changed(config, evaluation__seed=1, evaluation__benchmarks=["cd34"]), checkpoint, tmp_path / "b")
    other = table(tmp_path / "b")
    assert differing(other, table(evaluated[0])) > len(other) / 2


def test_prompts_are_those_of_training(world: World, model: Any) -> None:
    from bapo.engines.shared.prompts import read_prompts

    config, task = world[0], benchmark(world[0])
    run_benchmark(model, task)
    trained = read_prompts(task.path, model.tokenizer, config.sampling.max_prompt_tokens)
    assert [tuple(model.tok_encode(i.args[0])) for i in task.instances] == [p.row.tokens for p in trained]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling__max_prompt_tokens": 3}, "cd34: .* problem FIRST .*sampling.max_prompt_tokens"),  # never truncated
        ({"sampling__max_response_tokens": 10**6}, "but the model has"),
        ({"evaluation__benchmarks": ["cd5"]}, r"evaluation.benchmarks=cd5: no such split"),
        ({"evaluation__benchmarks": []}, r"^evaluation\.benchmarks"),
        ({"evaluation__grader": "authors"}, r"evaluation\.grader=.*problem countdown"),
        ({"evaluation__second_grader": "math-verify"}, r"evaluation\.second_grader=.*problem countdown"),
    ],
)
def test_what_cannot_be_evaluated_is_named(world: World, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    config, checkpoint = world
    first = read_table(data_directory(config) / "cd34.parquet")["extra_info"][0]["id"]
    with pytest.raises(UserError, match=message.replace("FIRST", first)):
        evaluate(changed(config, **change), checkpoint, tmp_path)
    assert not (tmp_path / "cd34.parquet").exists()
    with pytest.raises(UserError, match="step_000100: "):
        evaluate(config, tmp_path / "step_000100", tmp_path / "eval")


def test_a_collapsed_policy_is_evaluated(
    world: World, model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its samples are equal. From a backend of others they may be one sample that is repeated."""
    summary = evaluate(changed(world[0], evaluation__temperature=1e-6), world[1], tmp_path)
    assert "warning: cd34: all 32 samples" in capsys.readouterr().err
    assert set(table(tmp_path).groupby("problem_id")["response"].nunique()) == {1}
    assert summary["benchmarks"]["cd34"]["samples"] == 32
    with pytest.raises(UserError, match="cd34: all 2 samples"):
        run_benchmark(model, benchmark(world[0], samples=2, temperature=1e-6))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="reward_model"), "column reward_model is missing; .* extra_info.id, prompt .*"),
        (lambda f: pd.concat([f, f.iloc[:1]]), "row 6: problem .* occurs twice"),
        (lambda f: f.assign(reward_model=[{"ground_truth": ""}] * len(f)), "row 0: .*ground_truth"),
        (lambda f: f.assign(prompt=[[{"role": "system", "content": "x"}]] * len(f)), "row 0: .*prompt"),
        (lambda f: f.assign(prompt="x"), "row 0: .*prompt"),
        (lambda f: f.assign(extra_info=[{"index": 1}] * len(f)), r"row 0: .*extra_info\.id"),
        (lambda f: f.assign(extra_info=[{"id": 7}] * len(f)), r"row 0: .*extra_info\.id"),
    ],
)
def test_broken_problems_are_named(world: World, tmp_path: Path, change: Any, message: str) -> None:
    from bapo.tasks.files import read_problems

    path = tmp_path / "cd34.parquet"
    change(read_table(data_directory(world[0]) / "cd34.parquet")).to_parquet(path)
    with pytest.raises(UserError, match=rf"cd34\.parquet: {message}"):
        read_problems(path)


def test_gold_against_gold_is_checked_and_named(world: World) -> None:
    """By the data job, which says so in its summary."""
    from bapo.tasks.job import check_golds

    summary = read_json(data_directory(world[0]) / "summary.json")
    assert summary["golds"] == {"cd34": 6, "cd4": 6}

    def truth(target: int) -> str:
        return json.dumps({"numbers": [1, 2, 3], "target": target, "format": "answer"})

    countdown = tasks.get("countdown")
    with pytest.raises(UserError, match=r"own\.parquet: row 1 \(p77\)"):
        check_golds(countdown, [(f"p{t}", truth(t)) for t in (6, 77)], "own.parquet")  # 6 = 1 + 2 + 3
    assert check_golds(countdown, [("a", truth(5)), ("b", truth(6))], "here") == 2
    assert check_golds(Lengths(), [("a", truth(5))], "here") == 0  # it knows no gold responses


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_one_verdict(path: Path) -> None:
    frame = pd.read_parquet(path)
    frame.loc[3, "correct"] = not frame.loc[3, "correct"]
    frame.to_parquet(path, index=False)  # a valid file


@pytest.mark.parametrize(
    ("finished", "damage"),
    [
        *((True, d) for d in (None, Path.unlink, truncate, flip_one_verdict)),
        *((False, d) for d in (None, Path.unlink, truncate)),
    ],
)
def test_only_what_is_missing_or_damaged_is_evaluated_again(
    world: World, evaluated: Evaluated, copied: Path, finished: bool, damage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if damage is not None:
        damage(copied / "cd4.parquet")
    if not finished:
        (copied / "summary.json").unlink()
        (copied / "lm_eval.json").unlink()
    before = {p.name: p.stat().st_mtime_ns for p in copied.glob("*.*")}
    summary = evaluate(*world, copied)
    redone = {name for name, time in before.items() if (copied / name).stat().st_mtime_ns != time}
    assert "cd34.parquet" not in redone and ("cd4.parquet" in redone) == (damage in (truncate, flip_one_verdict))
    assert not redone or not finished or damage is not None
    assert ("cd4.parquet" in capsys.readouterr().err) == (damage is not None and finished)
    pd.testing.assert_frame_equal(table(copied, "cd4"), table(evaluated[0], "cd4"), check_exact=True)
    assert summary["benchmarks"] == evaluated[1]["benchmarks"] and damaged_files(copied, summary["files"]) == []
    assert read_json(copied / "lm_eval.json") == read_json(evaluated[0] / "lm_eval.json")


def test_other_weights_or_settings_are_evaluated_anew(
    world: World, evaluated: Evaluated, copied: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    config, checkpoint = world
    config = changed(config, evaluation__benchmarks=["cd34"])
    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    save_file({k: 0.5 * v for k, v in weights.items()}, other / "model.safetensors", metadata={"format": "pt"})
    first = evaluate(config, other, copied)
    assert first["identity"] != evaluated[1]["identity"]
    assert (table(copied)["response"] != table(evaluated[0])["response"]).any()
    second = evaluate(changed(config, evaluation__top_p=0.5), other, copied)
    assert second["identity"] not in (first["identity"], evaluated[1]["identity"])


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        *((d, "model.safetensors") for d in (truncate, Path.unlink)),
        *((d, "checksums.json") for d in (truncate, Path.unlink, lambda p: p.write_text("{}"))),
    ],
)
def test_damaged_checkpoint_is_named(world: World, tmp_path: Path, damage: Any, name: str) -> None:
    """With one cure, which does not switch the check off."""
    checkpoint = Path(shutil.copytree(world[1], tmp_path / "checkpoints" / "step_000002"))
    names = sorted(p.name for p in checkpoint.iterdir())
    files = {**fingerprints(checkpoint, names), "trainer/state.json": {"sha256": "", "bytes": 1}}
    write_json(checkpoint / "checksums.json", files)
    assert checkpoint_digest(checkpoint) == checkpoint_digest(world[1])
    damage(checkpoint / name)
    with pytest.raises(UserError, match=rf"{name} is missing or damaged; delete \S+step_000002 and the summary\.json"):
        checkpoint_digest(checkpoint)


@pytest.mark.parametrize("summary", [None, "{", '{"identity": "a"}', '{"identity": "a", "files": {}}'])
def test_a_base_model_whose_summary_is_damaged_is_not_evaluated(
    world: World, tmp_path: Path, summary: str | None
) -> None:
    base = Path(shutil.copytree(world[1].parent, tmp_path / "base"))
    assert checkpoint_digest(base / "checkpoint") == checkpoint_digest(world[1])
    (base / "summary.json").unlink() if summary is None else (base / "summary.json").write_text(summary)
    with pytest.raises(UserError, match=r"base/summary\.json"):
        checkpoint_digest(base / "checkpoint")


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (b"[1]", "JSON object"),
        (b"1" * 5000, "JSON"),
        (b"[" * 100_000, "JSON"),
        (b'{"response": "\xe9"}', "UTF-8"),
        (b'{"numbers": [1, 2], "response": "x"}', "target"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, bad: bytes, named: str) -> None:
    path, good = tmp_path / "r.jsonl", b'{"numbers": [12, 3], "target": 15, "response": "<answer>12 + 3</answer>"}'
    path.write_bytes(b"\n".join([good, b"", bad, good]))  # an empty line is none, but it counts
    out = io.StringIO()
    with pytest.raises(UserError, match=rf"r\.jsonl, line 3: .*{named}"):
        grade_file("countdown", path, out)
    assert len(out.getvalue().splitlines()) == 1  # the verdicts before it are out: the file is a stream
    path.write_bytes(b"\n")
    with pytest.raises(UserError, match=r"r\.jsonl: has no line"):
        grade_file("countdown", path, out)
