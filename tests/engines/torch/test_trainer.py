"""The training loop on a tiny world: what is recorded, and that interruptions leave no trace in the numbers."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.late import LATE
from support.paths import ROOT
from support.runs import without_a_line
from support.trackio import needs_trackio

from bapo.__main__ import main
from bapo.algorithm.rollouts import Group
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import probe_identity, train_identity
from bapo.experiments.places import base_directory, run_directory
from bapo.graders.verdict import OVERLOADED, Verdict
from bapo.methods import Batch, Method
from bapo.store import files
from bapo.store.lock import locked
from bapo.tasks.countdown.task import Countdown

if LATE:
    from support.resumed import assert_same

    from bapo.engines.shared.records import model_folder
    from bapo.engines.torch import checkpoints
    from bapo.engines.torch.rollout import ResponseGenerator
    from bapo.engines.torch.trainer import train


#: BAPO with v, m and a window for X3 that matter within six steps
BUSY = [
    "method=bapo",
    "method.v=2",
    "method.m=2",
    "method.high_admission=informative",
    "method.c2_range=[0.125,0.125]",
    "method.c3_range=[0.625,0.625]",
]


def forked(work: Callable[[], object]) -> int:
    """Do work in a child and return its process."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def killed(overrides: list[str], now: Callable[[list[str]], bool]) -> bool:
    """Train in a child that kill -9 ends right before it changes a name on the disk; whether it did.

    now: told the last parts of all paths whose names the child was about to change so far, whether this is the moment.
    """
    changed: list[str] = []

    def watch(change: Callable[..., None]) -> Callable[..., None]:
        def watched(*paths: Any, **named: Any) -> None:
            if named or os.path.lexists(paths[0]) is not (change is mkdir):  # else it changes nothing
                changed.append(Path(paths[change is rename]).name)
                if now(changed):
                    os.kill(os.getpid(), signal.SIGKILL)
            change(*paths, **named)

        return watched

    def work() -> None:
        for name in ("mkdir", "replace", "rmdir", "unlink"):
            setattr(os, name, watch(getattr(os, name)))
        train(compose_config(overrides))

    mkdir, rename = os.mkdir, os.replace  # which is told the new name second
    ended = os.waitstatus_to_exitcode(os.waitpid(forked(work), 0)[1])
    assert ended in (0, -signal.SIGKILL)
    return ended != 0


@pytest.fixture(scope="module")
def undisturbed(tiny_world: list[str]) -> Path:
    config = compose_config([*tiny_world, *BUSY, "seed=11"])
    train(config)
    return run_directory(config)


def test_the_undisturbed_run_exercises_all_three_parts(undisturbed: Path) -> None:
    """Else the comparisons below would compare nothing: fresh, re-evaluated and replayed groups, and a delay."""
    steps = pd.read_parquet(undisturbed / files.STEPS)
    assert steps["x1"].sum() > 0 and steps["x3"].sum() > 0 and steps["reevaluated_prompts"].sum() > 0
    assert steps["staleness"].max() > 0 and steps["updates"].min() >= 0 and steps["updates"].sum() >= 6


def twin(tiny_world: list[str], undisturbed: Path, name: str) -> tuple[list[str], Path]:
    """Overrides of the same run under another label (labels have no meaning), and its folder."""
    overrides = [*tiny_world, *BUSY, "seed=11", f"method.name={name}"]
    config = compose_config(overrides)
    assert train_identity(config) == files.read_json(undisturbed / files.MANIFEST)["identity"]
    return overrides, run_directory(config)


@pytest.mark.parametrize("method", ["dapo", "bapo"])
def test_a_method_trains_and_records(tiny_world: list[str], method: str) -> None:
    config = compose_config([*tiny_world, f"method={method}", "seed=1"])
    summary = train(config)
    folder = run_directory(config)
    steps, groups, probe = (pd.read_parquet(folder / n) for n in files.TABLES)
    assert steps["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert (steps["x1"] + steps["x2"] + steps["x3"] == steps["batch_groups"]).all()
    used = groups[groups["used"]].groupby("step").size().reindex(steps["step"], fill_value=0)
    assert used.tolist() == steps["batch_groups"].tolist()
    assert (steps["fresh_rollouts"] == 8 * 8 * steps["generation_batches"]).all()
    assert summary["totals"]["rollouts"] == (steps["fresh_rollouts"] + steps["regenerated_rollouts"]).sum()
    assert set(probe["step"]) == {0, 3, 6} and set(probe["set"]) == {"train", "probe"}
    assert steps["reward_mean"].sum() > 0 and steps["updates"].sum() > 0
    assert np.isfinite(steps.loc[steps["updates"] > 0, ["loss", "gradient_norm", "entropy"]]).all().all()
    assert not files.damaged_files(folder, summary["files"])
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = folder / summary["checkpoint"]
    assert AutoModelForCausalLM.from_pretrained(checkpoint).config.model_type == "qwen2"
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer("12 / 3 = 4")["input_ids"]
    assert len(ids) == 5 and tokenizer.decode(ids).replace(" ", "") == "12/3=4"


def test_groups_that_no_list_names_are_recorded_and_a_run_without_an_update_is_named(
    tiny_world: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build_batch(self: Method, step: int, fresh: list[Group], _: object) -> Batch:
        self.kept = fresh[:1]
        return Batch([], [(fresh[1], "never solved")])

    monkeypatch.setattr(Method, "build_batch", build_batch)
    config = compose_config([*tiny_world, "method=grpo", "seed=5", "train.steps=2"])
    assert train(config)["totals"]["updates"] == 0
    groups = pd.read_parquet(run_directory(config) / files.GROUPS)
    assert groups["reason"].tolist() == ["never solved", *["not chosen"] * 6] * 2 and not groups["used"].any()
    assert f"warning: {run_directory(config)}: no update was made" in capsys.readouterr().err


@pytest.mark.parametrize("damaged", [False, True])
def test_the_probe_before_training_is_made_once_for_all_methods_of_a_seed(
    tiny_world: list[str], undisturbed: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    overrides = [*tiny_world, "method=grpo", "seed=11", "train.steps=1", f"method.name=probe-{damaged}"]
    config, made = compose_config(overrides), []
    kept = base_directory(config) / "probe" / f"{probe_identity(config, 'cpu')}.parquet"
    if damaged:
        kept.write_bytes(kept.read_bytes()[:-20])
    generate = ResponseGenerator.generate

    def noted(self: ResponseGenerator, model: object, prompts: list, size: int, purpose: tuple, *rest: int) -> list:
        made.append((purpose, rest[1]))
        return generate(self, model, prompts, size, purpose, *rest)

    monkeypatch.setattr(ResponseGenerator, "generate", noted)
    train(config)
    assert [purpose for purpose, version in made if purpose[0] == "probe" and version == 0] == (
        [("probe", "train"), ("probe", "probe")] if damaged else []
    )
    ours, theirs = (files.read_table(folder / files.PROBE) for folder in (run_directory(config), undisturbed))
    assert set(ours["step"]) == {0, 1}
    pd.testing.assert_frame_equal(ours[ours["step"] == 0], theirs[theirs["step"] == 0])
    pd.testing.assert_frame_equal(ours[ours["step"] == 0], files.read_table(kept))


def test_delay_shows_in_the_record(tiny_world: list[str]) -> None:
    config = compose_config([*tiny_world, "method=grpo_v5", "method.v=3", "seed=2"])
    train(config)
    steps = pd.read_parquet(run_directory(config) / files.STEPS)
    # t mod 3 = 0 refreshes before the rollout of steps 3 and 6; version = updates-steps behind the weights
    for name in files.TABLES:  # a line for every column
        assert without_a_line(name, pd.read_parquet(run_directory(config) / name).columns) == []
    assert steps["rollout_version"].tolist() == [0, 0, 2, 2, 2, 5]
    assert steps["staleness"].tolist() == [0, 1, 0, 1, 2, 0]


def test_a_grader_that_is_overloaded_is_counted(tiny_world: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose_config([*tiny_world, "method=grpo", "train.steps=1", "seed=83"])
    monkeypatch.setattr(Countdown, "verify", staticmethod(lambda *_: Verdict(False, False, OVERLOADED)))
    train(config)
    steps = files.read_table(run_directory(config) / files.STEPS)
    assert steps["overloaded"].tolist() == steps["fresh_rollouts"].tolist()


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("killed-before-its-name", lambda changed: changed[-1] == "step_000004"),
        ("killed-behind-its-name", lambda changed: changed[-2:-1] == ["step_000004"]),
    ],
)
def test_kill_and_resume_bit_for_bit(
    tiny_world: list[str], undisturbed: Path, name: str, now: Callable[[list[str]], bool]
) -> None:
    """Once a checkpoint is written to its end: it is used when it has its name, and gone when it has none."""
    overrides, folder = twin(tiny_world, undisturbed, name)
    assert killed(overrides, now)
    assert any((folder / "checkpoints").glob(".step_000004.*.tmp")) is (name == "killed-before-its-name")
    assert checkpoints.steps_with_trainer(folder)[0] == (2 if name == "killed-before-its-name" else 4)
    train(compose_config(overrides))
    assert_same(undisturbed, folder)
    assert not list((folder / "checkpoints").glob(".step_*.tmp"))


#: a training without tracking, then one with it that is killed when its tenth step begins
KILLED = """
import os, signal, sys
from bapo.engines.torch import trainer
from bapo.experiments.compose import compose_config
step = trainer.Trainer._train_step
def dying(run, number):
    return os.kill(os.getpid(), signal.SIGKILL) if number == 10 else step(run, number)
trainer.Trainer._train_step = dying
*untracked, tracking = sys.argv[1:]
trainer.train(compose_config([*untracked, "method.name=untracked", "train.steps=1"]))
assert not {"wandb", "trackio"} & set(sys.modules)
trainer.train(compose_config(sys.argv[1:]))
"""


def cut_short(world: list[str], tracking: str, seed: int) -> list[str]:
    """The overrides of a tracked run that KILLED has left after nine steps, and its last checkpoint after eight."""
    overrides = [o for o in world if not o.startswith("tracking=")]
    overrides += ["method=grpo", f"seed={seed}", "train.steps=12", "checkpoint.every=4", f"tracking={tracking}"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *overrides], capture_output=True, text=True, timeout=900)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    return overrides


def curve_of(folder: Path) -> list[tuple[int, float]]:
    return list(files.read_table(folder / files.STEPS)[["step", "reward_mean"]].itertuples(index=False))


def test_with_wandb_a_killed_run_is_one_curve_and_without_it_is_not_imported(tiny_world: list[str]) -> None:
    config = compose_config(cut_short(tiny_world, "wandb", 71))
    folder, name = run_directory(config), f"offline-run-*-{train_identity(config)}"
    (first,) = (folder / "wandb").glob(name)
    train(config)
    (part,) = (folder / "wandb").glob(name)
    assert part != first
    inspect = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", part]
    records = map(json.loads, subprocess.run(inspect, capture_output=True, text=True, check=True).stdout.splitlines())
    curve = [(r["history"]["item"]["_step"], r["history"]["item"]["reward_mean"]) for r in records if "history" in r]
    assert curve == curve_of(folder)


@needs_trackio
@pytest.mark.parametrize(("storage", "seed"), [("sqlite", 72), ("jsonl", 73)])
def test_with_trackio_a_killed_run_is_one_curve_in_the_database_of_all(
    tiny_world: list[str], storage: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jsonl: what trackio takes where the results are on a network's disk. No Space is asked for what is kept here."""
    monkeypatch.setenv("TRACKIO_STORAGE_MODE", storage)
    monkeypatch.setenv("TRACKIO_SPACE_ID", "nobody/nothing")
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    overrides = cut_short(tiny_world, "trackio", seed)
    config = compose_config(overrides)
    train(config)

    from trackio import Api, fragments
    from trackio.sqlite_storage import SQLiteStorage

    fragments.import_inbox_dir()
    assert (Path(config.paths.results) / "trackio" / "bapo.db").exists()
    name = f"grpo-seed{seed}-{train_identity(config)}"
    (run,) = (run for run in Api().runs("bapo") if run.name == name)
    rows = SQLiteStorage.get_logs("bapo", run.name, run_id=run.id)
    assert [(row["step"], row["reward_mean"]) for row in rows] == curve_of(run_directory(config))
    assert run.config["train"]["steps"] == 12 and run.config["identity"] == train_identity(config)
    assert run.config["_Group"] == "smoke/countdown/" + config.model.name and run.config["_Username"] is None


@pytest.mark.system
def test_a_kill_at_any_moment_of_the_last_checkpoint(tiny_world: list[str], undisturbed: Path, tmp_path: Path) -> None:
    """At each change of a name: files are written, an older checkpoint and the state go, and the run is sealed."""
    overrides, folder = twin(tiny_world, undisturbed, "killed-anywhere")
    overrides += ["checkpoint.every=1", "checkpoint.keep_state=false"]
    assert killed(overrides, lambda changed: changed[-1].startswith(".step_000006"))
    start = folder.rename(tmp_path / "start")
    for moment in itertools.count(1):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(start, folder)
        if not killed(overrides, lambda changed, moment=moment: len(changed) == moment):
            break
        train(compose_config(overrides))
        assert_same(undisturbed, folder)
        assert not list((folder / "checkpoints").glob(".step_*.tmp")), moment
    assert moment > 20


def test_ctrl_c_stops_between_steps_and_resumes(
    tiny_world: list[str], undisturbed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides, folder = twin(tiny_world, undisturbed, "interrupted")
    rename = os.replace

    def interrupting(source: Path, target: Path) -> None:
        if Path(target).name == "step_000002":
            signal.raise_signal(signal.SIGINT)
        rename(source, target)

    monkeypatch.setattr(os, "replace", interrupting)
    assert main(["train", *overrides]) == 130
    assert "the same command continues it" in capsys.readouterr().err and not (folder / files.SUMMARY).exists()
    train(compose_config(overrides))
    assert_same(undisturbed, folder)


def test_damaged_checkpoint_is_named_and_passed_over(
    tiny_world: list[str], undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides, folder = twin(tiny_world, undisturbed, "damaged")
    shutil.copytree(undisturbed, folder)
    (folder / files.SUMMARY).unlink()
    newest = model_folder(folder, 6) / "trainer" / "optimizer.safetensors"
    newest.write_bytes(newest.read_bytes()[:-10])
    train(compose_config(overrides))
    assert "optimizer.safetensors is missing or damaged" in capsys.readouterr().err
    assert_same(undisturbed, folder)


def test_changed_configuration_sets_the_old_run_aside(tiny_world: list[str]) -> None:
    first = compose_config([*tiny_world, "method=grpo", "seed=21", "train.steps=2"])
    train(first)
    folder = run_directory(first)
    old = (folder / files.STEPS).read_bytes()
    train(compose_config([*tiny_world, "method=grpo", "seed=21", "train.steps=2", "method.clip_low=0.1"]))
    (aside,) = folder.parent.glob(".seed21.was-*")
    assert (aside / files.STEPS).read_bytes() == old
    assert json.loads((folder / files.SUMMARY).read_text())["steps"] == 2


def test_two_processes_do_not_share_a_run(tiny_world: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    config = compose_config([*tiny_world, "method=grpo", "seed=31", "train.steps=1"])
    folder = run_directory(config)
    with locked(folder):
        message = rf"another process \(process {os.getpid()} on .*\) is working here"
        with pytest.raises(UserError, match=message), locked(folder, patience=0):
            pytest.fail("the folder was given to two")
        child = forked(lambda: train(config))
        while "waiting for process" not in capfd.readouterr().err:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            time.sleep(0.01)
        assert not (folder / files.STEPS).exists()
    assert os.waitpid(child, 0)[1] == 0
    assert (folder / files.SUMMARY).exists()


@pytest.mark.system
@pytest.mark.parametrize("place", [".snakemake/bapo", "out/smoke"])
def test_a_second_snakemake_is_refused_while_the_first_one_works(tmp_path: Path, place: str) -> None:
    """In the same folder, or from another one on the same results.

    The lock that `onstart` takes (workflows/common.smk) is the kernel's: after kill -9 see tests/workflows.
    """
    with locked(tmp_path / place):
        command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
        command += ["--cores", "1", str(tmp_path / "out" / "smoke" / "studies" / "table1.json")]
        command += ["--config", "scale=smoke", f"results={tmp_path / 'out'}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert done.returncode != 0
    assert "another process (process " in done.stderr and "is working here; wait for it or stop it" in done.stderr
    assert not (tmp_path / "out" / "smoke" / "studies").exists()


def test_missing_problems_and_base_model(tiny_world: list[str], tmp_path: Path) -> None:
    results = compose_config(tiny_world).paths.results
    overrides = [*tiny_world, f"paths.results={tmp_path}"]
    with pytest.raises(UserError, match="`bapo data"):
        train(compose_config(overrides))
    shutil.copytree(Path(results) / "smoke/countdown/data", tmp_path / "smoke/countdown/data")
    with pytest.raises(UserError, match="no problems of this configuration"):
        train(compose_config([*overrides, "data.generator.noise=0.1"]))
    with pytest.raises(UserError, match="`bapo base"):
        train(compose_config(overrides))


def test_a_restart_keeps_its_new_checkpoints_beside_damaged_later_ones(
    tiny_world: list[str], undisturbed: Path
) -> None:
    overrides, folder = twin(tiny_world, undisturbed, "damaged-later")
    shutil.copytree(undisturbed, folder)
    (folder / files.SUMMARY).unlink()
    for step in checkpoints.steps_with_trainer(folder):
        (model_folder(folder, step) / "trainer" / "state.json").write_text("{")
    assert killed(overrides, lambda changed: changed[-1].startswith(".step_000004"))
    assert checkpoints.newest_intact(folder)[0] == model_folder(folder, 2)
    train(compose_config(overrides))
    assert_same(undisturbed, folder)


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tiny_world: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and folder of it: after a power failure there is a whole checkpoint under its name, or none."""
    flush, rename = os.fsync, os.replace
    flushed: set[str] = set()
    named: list[str] = []

    def flushing(descriptor: int) -> None:
        flush(descriptor)
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    def renaming(source: Path, target: Path) -> None:
        if Path(target).name.startswith("step_"):
            named.append(Path(target).name)
            assert {str(p) for p in [*Path(source).rglob("*"), Path(source)]} <= flushed
        rename(source, target)

    monkeypatch.setattr(os, "fsync", flushing)
    monkeypatch.setattr(os, "replace", renaming)
    settings = ("method=grpo", "seed=72", "train.steps=2", "checkpoint.every=1")
    config = compose_config([*tiny_world, *settings])
    summary = train(config)
    assert named == ["step_000001", "step_000002"]
    last = run_directory(config) / summary["checkpoint"] / "trainer"
    assert all((last / name).read_bytes() == (run_directory(config) / name).read_bytes() for name in files.TABLES)


def test_a_disk_that_is_full_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file stays whole, and nothing half is left."""
    file = tmp_path / "a.json"
    files.write_text(file, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_text(file, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"] and file.read_text() == "old"


def test_a_finished_run_keeps_models_and_tables_and_no_state(tiny_world: list[str], undisturbed: Path) -> None:
    """And a truncated table is refused, and rebuilt from the last checkpoint."""
    overrides, folder = twin(tiny_world, undisturbed, "finished")
    train(compose_config([*overrides, "checkpoint.keep_state=false"]))
    assert checkpoints.steps_with_trainer(folder) == [6]
    last = model_folder(folder, 6)
    assert sorted(p.name for p in (last / "trainer").iterdir()) == sorted(["state.json", *files.TABLES])
    assert (last / "trainer" / "state.json").stat().st_size < 200  # nothing of the buffers, which this run has
    assert not files.damaged_files(last, files.read_json(last / "checksums.json"))
    assert_same(undisturbed, folder)
    table = folder / files.STEPS
    table.write_bytes(table.read_bytes()[:-20])
    for read, place in ((files.read_table, table), (files.verify_files, folder)):
        with pytest.raises(UserError, match=r"steps\.parquet"):
            read(place)
    (folder / files.SUMMARY).unlink()  # the cure that the message names
    train(compose_config([*overrides, "checkpoint.keep_state=false"]))
    files.verify_files(folder)
    assert_same(undisturbed, folder)
