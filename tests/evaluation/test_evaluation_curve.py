"""Curves: every kept checkpoint of a run, sampled, counted, written and resumed; and which runs have one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.configs import changed
from support.late import LATE

from bapo.__main__ import main
from bapo.errors import UserError
from bapo.evaluation import curve
from bapo.evaluation.run import evaluate
from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory, data_directory, run_directory
from bapo.experiments.schema import Config
from bapo.store.files import damaged_files, read_json

if LATE:
    from bapo.engines.torch.trainer import train


Done = tuple[Path, dict[str, Any]]
SPLITS = ["cd34", "cd4", "probe"]


@pytest.fixture(scope="module")
def config(tiny_world: list[str]) -> Config:
    return compose_config([*tiny_world, "device=cpu", "evaluation.curve_samples=8"])


@pytest.fixture(scope="module")
def run(config: Config) -> Path:
    """A run of six steps that keeps the checkpoints of steps 2, 4 and 6."""
    train(config)
    return run_directory(config)


@pytest.fixture(scope="module")
def done(config: Config, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("curve") / "curve"
    return folder, curve.evaluate_curve(config, run, folder)


def table(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder / f"{name}.parquet")


def test_a_row_for_every_step_and_problem(done: Done, config: Config) -> None:
    folder, summary = done
    assert summary["steps"] == [0, 2, 4, 6] and summary["validation"] == "probe"
    for name, problems in zip(SPLITS, (6, 6, 8), strict=True):
        frame = table(folder, name)
        assert list(frame.columns) == ["step", "problem_id", "correct", "samples"]
        ids = [row["id"] for row in pd.read_parquet(data_directory(config) / f"{name}.parquet").extra_info]
        assert len(ids) == problems and frame["step"].tolist() == [s for s in (0, 2, 4, 6) for _ in ids]
        assert frame["problem_id"].tolist() == ids * 4
        assert (frame["samples"] == 8).all() and frame["correct"].between(0, 8).all()
        assert summary["benchmarks"][name]["problems"] == problems
        at_four = frame.loc[frame["step"] == 4, "correct"].sum() / (8 * problems)
        assert summary["benchmarks"][name]["accuracy"]["4"] == pytest.approx(at_four)
    assert sum(table(folder, name)["correct"].sum() for name in SPLITS) > 0  # or nothing was tested
    assert damaged_files(folder, summary["files"]) == []


def test_the_ends_are_the_first_samples_of_the_evaluations(
    config: Config, run: Path, done: Done, tmp_path: Path
) -> None:
    """lm-eval's path, with 12 samples, against the first 8: the base model and the last checkpoint."""
    more = changed(config, evaluation__samples=12)
    for step, checkpoint in ((0, base_directory(config) / "checkpoint"), (6, curve.kept_checkpoints(run, 2)[6])):
        evaluate(more, checkpoint, tmp_path / str(step))
        for name in ("cd34", "cd4"):
            rows = table(tmp_path / str(step), name)
            first = rows[rows["sample"] < 8].groupby("problem_id", sort=False)["correct"].sum()
            frame = table(done[0], name)
            counted = frame[frame["step"] == step].set_index("problem_id")["correct"]
            assert (counted - first).abs().sum() <= 1  # a sum may round otherwise once in a million tokens


def test_an_interrupted_curve_goes_on_at_its_checkpoint_and_a_finished_one_is_left_alone(
    config: Config, run: Path, done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bapo.engines.shared import models

    loaded, load = [], models.load
    monkeypatch.setattr(models, "load", lambda path, *rest: loaded.append(path.name) or load(path, *rest))
    folder = Path(shutil.copytree(done[0], tmp_path / "curve"))
    for path in [*folder.glob("*.*"), *(folder / "step_000004").glob("*.json"), folder / "step_000004" / "cd4.parquet"]:
        path.unlink()
    shutil.rmtree(folder / "step_000006")
    summary = curve.evaluate_curve(config, run, folder)
    assert loaded == ["step_000004", "step_000006"]
    assert summary["benchmarks"] == done[1]["benchmarks"] and summary["identity"] == done[1]["identity"]
    for name in SPLITS:
        pd.testing.assert_frame_equal(table(folder, name), table(done[0], name), check_exact=True)
    assert curve.evaluate_curve(config, run, folder) == summary and len(loaded) == 2


def test_checkpoints_are_those_of_the_schedule(config: Config, run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.copytree(other / "checkpoints" / "step_000002", other / "checkpoints" / "step_000003")  # an interruption's
    assert list(curve.kept_checkpoints(other, 2)) == [2, 4, 6]
    assert list(curve.kept_checkpoints(other, 4)) == [4, 6]
    assert list(curve.kept_checkpoints(other, 100)) == [6]
    shutil.rmtree(other / "checkpoints" / "step_000002")
    with pytest.raises(UserError, match="step_000002: "):
        curve.evaluate_curve(config, other, tmp_path / "curve")
    with pytest.raises(UserError, match=r"evaluation\.validation=geo3k_val: .*probe"):
        curve.evaluate_curve(changed(config, evaluation__validation="geo3k_val"), run, tmp_path)


def test_the_command(tiny_world: list[str], run: Path, done: Done, capsys: pytest.CaptureFixture) -> None:
    words = ["evaluate", "--curve", *tiny_world, "device=cpu"]
    assert main(words) == 0
    assert read_json(run / "curve" / "summary.json")["benchmarks"] == done[1]["benchmarks"]
    assert f"cd34: accuracy {done[1]['benchmarks']['cd34']['accuracy']}" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--base"])
    assert main([*words, "train.learning_rate=0.5"]) == 2  # another run than the one that is there
    assert "trained under another configuration" in capsys.readouterr().err
    assert main([*words, "seed=77"]) == 2
    assert "seed77: no finished run of this configuration; run `bapo train`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "key", "said"),
    [
        ("run", {}, "something other than an? (evaluation|curve) is here; name another folder"),
        ("data", {}, "something other than an? (evaluation|curve) is here; name another folder"),
        ("curve", {"evaluation__benchmarks": ["cd5"]}, "evaluation.benchmarks=cd5: no such split; allowed: .*cd34"),
    ],
)
def test_no_other_files_than_an_evaluations_are_replaced(
    config: Config, run: Path, done: Done, what: str, key: dict, said: str, tmp_path: Path
) -> None:
    source = {"run": run, "data": data_directory(config), "curve": done[0]}[what]
    folder = Path(shutil.copytree(source, tmp_path / what))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    last = curve.kept_checkpoints(run, 2)[6]
    for evaluated, start in ((curve.evaluate_curve, run), (evaluate, last)):
        with pytest.raises(UserError, match=said):
            evaluated(changed(config, **key), start, folder)
    with pytest.raises(UserError, match="something other than an evaluation"):
        evaluate(config, last, folder)  # not even a curve
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_validation_problems_were_kept_out_of_training() -> None:
    """At paper scale the probe of mathematics and of geometry is a sample of the training problems."""

    def kept_out(scale: str) -> list[str | None]:
        names = ("countdown", "mathematics", "geometry")
        return [compose_config([f"scale={scale}", f"task={task}"]).evaluation.validation for task in names]

    assert kept_out("laptop") == kept_out("gpu") == ["probe", "probe", "diagrams_val"]
    assert kept_out("paper") == ["probe", None, "geo3k_val"]
    assert curve.splits(compose_config(["task=geometry"])) == ["diagrams_val", "diagrams_test"]  # each once
    assert curve.splits(compose_config(["task=countdown"])) == ["cd34", "cd4", "probe"]
