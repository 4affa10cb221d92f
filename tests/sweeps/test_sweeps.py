"""Sweeps: the files, the space, the study's exact total, and workers that are killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.configs import edit, forget
from support.processes import wait_for
from support.workflow import PATIENCE

from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.places import run_directory
from bapo.experiments.settings import Settings
from bapo.store.files import MANIFEST, PROBE, SUMMARY, read_json, read_table, verify_files
from bapo.sweeps import files, study, worker

FREE: dict[str, Any] = {
    "title": "Tiny",
    "tasks": ["countdown"],
    "space": {
        "method.v": {"type": "int", "low": 1, "high": 6, "title": "refresh period v"},
        "method.c1": {"type": "float", "low": 0.0, "high": 0.5, "step": 0.125},
    },
    "start": {"method.v": 5, "method.c1": 0.125},
    "scales": {"smoke": {"trials": 3, "seeds": [1, 2]}},
}
GRID: dict[str, Any] = {
    "title": "Plane",
    "tasks": ["countdown"],
    "space": {f"method.{key}": {"type": "categorical", "choices": c} for key, c in (("v", [1, 2, 5]), ("m", [1, 2]))},
    "scales": {"smoke": {"seeds": [1]}},
}


class SweepWorld:
    """Sweep files in a copy of ``experiments/`` and settings with which the product's own commands find them."""

    def __init__(self, experiments: Path, results: Path, overrides: Sequence[str]) -> None:
        self.experiments, self.results = experiments, results
        shutil.rmtree(experiments / "sweep")
        (experiments / "sweep").mkdir()
        given = dict(word.partition("=")[::2] for word in overrides if not word.startswith("paths."))
        known = {"scale": given.pop("scale"), "tracking": given.pop("tracking"), "results": str(results)}
        self.settings = Settings(**known, set=tuple(f"{k}={v}" for k, v in given.items()))

    def write(self, content: dict[str, Any], **changes: Any) -> None:
        """Write the file of the sweep ``tiny_countdown``."""
        path = self.experiments / "sweep" / "tiny.yaml"
        path.write_text(yaml.safe_dump(content | changes, sort_keys=False), encoding="utf-8")

    def worker(self, name: str, slot: int) -> subprocess.Popen[str]:
        """A slot as a job of the workflow runs it."""
        command = [sys.executable, "-m", "bapo", "sweep", name, "--slot", str(slot)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "BAPO_EXPERIMENTS": str(self.experiments)}
        return subprocess.Popen(
            [*command, "--settings", self.settings.as_json()], stderr=subprocess.PIPE, text=True, env=environment
        )


@pytest.fixture
def world(tmp_path: Path, tiny_world: list[str], experiments: Path) -> SweepWorld:
    """Results of its own that begin with the tiny world's data and base model."""
    made = run_directory(compose_config(tiny_world)).parents[2]
    for part in ("data", "qwen2-112k/base"):
        shutil.copytree(made / part, tmp_path / "results/smoke/countdown" / part)
    return SweepWorld(experiments, tmp_path / "results", tiny_world)


def tiny(world: SweepWorld) -> files.Sweep:
    return files.load("tiny_countdown", world.settings)


def states(sweep: files.Sweep, settings: Settings) -> dict[int, str]:
    found = study.open_study(sweep, settings).get_trials(deepcopy=False)
    return {t.user_attrs["slot"]: t.state.name for t in found}


def drawn(world: SweepWorld, slot: int) -> dict[str, Any]:
    sweep = tiny(world)
    trial, _ = study.claim(study.open_study(sweep, world.settings, slot), sweep, slot)
    return {key: trial._suggest(key, distribution) for key, distribution in sweep.space.items()}


@pytest.mark.parametrize("scale", ["laptop", "smoke", "gpu", "paper"])
def test_every_sweep_of_the_product_is_of_one_task_and_can_be_judged(scale: str):
    settings = Settings(scale=scale)
    tasks = ["countdown"] if scale == "paper" else ["countdown", "geometry", "mathematics"]
    assert list(files.at_scale(scale)) == [f"{kind}_{t}" for kind in ("free", "frequency", "thresholds") for t in tasks]
    for name in files.at_scale(scale):
        assert files.check(files.load(name, settings), settings).probe.prompts > 0


def test_a_trial_that_is_a_named_method_has_its_runs_and_any_other_a_folder_of_its_meaning():
    settings = Settings(scale="laptop")
    plane, free = files.load("frequency_countdown", settings), files.load("free_countdown", settings)

    def name(sweep: files.Sweep, v: int, m: int, seed: int = 1) -> str:
        given = {**sweep.file.start, "method.v": v, "method.m": m}
        return worker.config_of_trial(sweep, settings, given, seed).method.name

    assert name(plane, 5, 5) == "bapo" and name(plane, 10, 5) == "bapo+v10"
    other = name(plane, 10, 1)
    assert other.startswith("bapo+") and name(plane, 10, 1, seed=2) == other
    assert name(plane, 20, 1) != other
    # another sweep that draws the same parameters finds the same runs
    assert name(free, 10, 1) == other and name(free, 5, 5) == "bapo"
    config = worker.config_of_trial(plane, settings, {"method.v": 10, "method.m": 1}, 3)
    assert str(run_directory(config)) == f"results/laptop/countdown/qwen2-112k/{other}/seed3"
    thresholds = files.load("thresholds_countdown", settings)
    assert worker.config_of_trial(thresholds, settings, {"method": "bapo+fixed_0_2"}, 1).method.name == "bapo+fixed_0_2"
    used = list(dict.fromkeys(cell.method for cell in thresholds.reused_cells()))
    assert used == ["bapo", "bapo+fixed_0_2", "bapo+fixed_3_4", "grpo"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spaces": {}}, r"spaces: no such key"),
        ({"space": {"method.v": {"type": "int", "low": 5, "high": 3}}}, r"space.method.v="),
        *(
            ({"start": {"method.v": value}}, rf"start.method.v{shown}: must lie in the space")
            for value, shown in ((9, "=9"), ("abc", "=abc"), (None, ""))
        ),
        ({"scales": {"smoke": {"seeds": [1]}}}, r"scales.smoke.trials: must say how many"),
        ({"scales": {"smoke": {"seeds": [1], "tasks": ["cuontdown"]}}}, "unknown task 'cuontdown'"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(world: SweepWorld, changes: dict[str, Any], message: str):
    world.write(FREE, **changes)
    with pytest.raises(UserError, match=rf"tiny.yaml: .*{message}"):
        tiny(world)
    world.write(FREE, scales={"laptop": {"seeds": [1]}})
    with pytest.raises(UserError, match=r"'tiny_countdown' .*scale smoke"):
        tiny(world)


def test_the_lock_of_a_killed_worker_is_taken_over(world: SweepWorld, monkeypatch: pytest.MonkeyPatch):
    """Results lie in a folder below the current one, as by default; Optuna waits 30 seconds, and one here."""
    from optuna.storages.journal import JournalFileSymlinkLock

    monkeypatch.setattr(JournalFileSymlinkLock.__init__, "__defaults__", (1,))
    world.write(FREE)
    sweep = tiny(world)
    monkeypatch.chdir(world.settings.home.parent.parent)
    settings = world.settings.model_copy(update={"results": world.settings.home.parent.name})
    assert not settings.home.is_absolute()
    open_study = study.open_study(sweep, settings)
    (backend := open_study._storage._backend)._lock.acquire()  # and no release
    study.claim(study.open_study(sweep, settings), sweep, 0)
    assert states(sweep, settings) == {0: "RUNNING"}
    Path(f"{backend._file_path}.lock").symlink_to("elsewhere/journal.log")  # of a folder that was moved
    study.claim(study.open_study(sweep, settings), sweep, 1)
    assert states(sweep, settings) == {0: "RUNNING", 1: "RUNNING"}


def test_nothing_is_written_behind_a_torn_last_line(world: SweepWorld):
    world.write(FREE)
    sweep = tiny(world)
    first = study.open_study(sweep, world.settings)
    study.claim(first, sweep, 0)
    journal = study.folder_of(sweep, world.settings) / study.JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "worker')  # killed while it wrote; another worker goes on meanwhile
    study.claim(first, sweep, 1)
    assert journal.read_bytes().startswith(whole) and b'"worker{' not in journal.read_bytes()
    journal.write_bytes(journal.read_bytes() + b'{"op')
    assert states(sweep, world.settings) == {0: "RUNNING", 1: "RUNNING"}

    first, *_, last = lines = whole.splitlines(keepends=True)
    for damaged in ([first, b"{broken\n", *lines[1:]], [*lines, b"\n"], [*lines, last.strip(), last], [b"\n"]):
        journal.write_bytes(b"".join(damaged))
        with pytest.raises(UserError, match=r"journal\.log is damaged"):
            study.open_study(sweep, world.settings)


def test_a_changed_space_seed_or_configuration_is_another_study(world: SweepWorld):
    world.write(FREE)
    first = tiny(world)
    study.claim(study.open_study(first, world.settings), first, 0)
    wider = FREE["space"] | {"method.v": FREE["space"]["method.v"] | {"high": 7}}
    for changes in ({"space": wider}, {"scales": {"smoke": {"trials": 3, "seeds": [1, 3]}}}, {"start": {}}):
        world.write(FREE, **changes)
        assert states(tiny(world), world.settings) == {}
    world.write(FREE)
    other = world.settings.model_copy(update={"set": (*world.settings.set, "train.learning_rate=1e-3")})
    assert states(files.load("tiny_countdown", other), other) == {}
    world.write(FREE, title="Another title", scales={"smoke": {"trials": 9, "seeds": [1, 2]}})
    assert states(tiny(world), world.settings) == {0: "RUNNING"}  # neither is part of it


def of_methods(*choices: str) -> dict[str, Any]:
    return {"space": {"method": {"type": "categorical", "choices": [*choices]}}, "start": {}}


@pytest.mark.parametrize(
    ("changes", "old", "new", "other"),
    [
        (of_methods("bapo", "bapo+fixed_3_4"), "c2_range: [0.375, 0.375]", "c2_range: [0.25, 0.25]", True),
        (of_methods("bapo", "bapo+fixed_3_4"), "v: 10", "v: 7", False),
        ({"named": ["bapo+v10"]}, "v: 10", "v: 7", True),
        ({}, "v: 10", "v: 7", False),
        (
            of_methods("grpo+rollouts_of_starved"),
            "steps: 38",
            "steps: 28",
            True,
        ),  # a run of another method ends its runs
    ],
)
def test_a_method_of_the_sweep_that_means_something_else_makes_another_study(
    world: SweepWorld, changes: dict[str, Any], old: str, new: str, other: bool
) -> None:
    """Its trials would keep the values of runs that are trained again."""
    world.settings = world.settings.model_copy(update={"set": ()})
    world.write(FREE, **changes)
    sweep = tiny(world)
    study.claim(study.open_study(sweep, world.settings), sweep, 0)
    edit(world.experiments / "variants.yaml", old, new)
    forget()
    assert states(sweep, world.settings) == ({} if other else {0: "RUNNING"})


@pytest.mark.parametrize("changes", [of_methods("bapo", "bapo+v10"), {"named": ["bapo+v10"]}])
def test_an_error_of_a_file_fails_no_trial(world: SweepWorld, changes: dict[str, Any]) -> None:
    edit(world.experiments / "variants.yaml", "method: {v: 10}", "method: {vv: 10}")
    world.write(FREE, **changes)
    with pytest.raises(UserError, match=r"method\.vv: no such key"):
        worker.run_slot(tiny(world), world.settings, 0)
    assert not study.folder_of(tiny(world), world.settings).joinpath(study.JOURNAL).exists()


def test_a_grid_is_complete_in_whatever_order_its_slots_come(world: SweepWorld):
    world.write(GRID)
    cells = {slot: tuple(drawn(world, slot).values()) for slot in (4, 0, 5, 2, 1, 3)}
    assert [cells[slot] for slot in range(6)] == [(1, 1), (1, 2), (2, 1), (2, 2), (5, 1), (5, 2)]


def test_slots_draw_with_random_numbers_of_their_own_that_do_not_change(world: SweepWorld):
    world.write(FREE)
    first = [drawn(world, slot) for slot in range(3)]
    assert first[0] == FREE["start"] and first[1] != first[2]
    assert [drawn(world, slot) for slot in range(3)] == first  # taken up again
    shutil.rmtree(study.folder_of(tiny(world), world.settings))
    assert [drawn(world, slot) for slot in range(3)] == first  # and from the beginning


def test_parameters_that_exclude_each_other_are_a_failed_trial(world: SweepWorld):
    ends = {"method.c2_range": [0.5, 0.6], "method.c3_range": [0.1, 0.2]}
    one = {f"{key}.{i}": {"type": "float", "low": v, "high": v} for key, vs in ends.items() for i, v in enumerate(vs)}
    world.write(FREE, space=one, start={})
    assert worker.overrides(
        {"method": "bapo+v10", "method.c2_range.1": 0.5, "method.c2_range.0": 0.1, "method.v": 3}
    ) == {"method.c2_range": [0.1, 0.5], "method.v": 3}
    content = worker.run_slot(tiny(world), world.settings, 0)
    assert content["state"] == "fail" and "c2 must not exceed c3" in content["reason"]


def test_a_sweep_of_which_no_trial_can_be_trained_ends_with_the_reason(world: SweepWorld):
    world.write(FREE, space={"method.refresh": {"type": "int", "low": 1, "high": 2}}, start={})
    for slot in range(tiny(world).trials):
        worker.run_slot(tiny(world), world.settings, slot)
    with pytest.raises(UserError, match=r"no trial could be trained.*refresh"):
        study.collect(tiny(world), world.settings)


@pytest.mark.system
def test_a_worker_killed_in_its_trial_goes_on_with_it_and_the_total_is_exact(world: SweepWorld):
    """Two workers of one study train for real; one is killed with -9 in the middle of a run."""
    given = (o for o in world.settings.set if not o.startswith("train.steps"))
    world.settings = world.settings.model_copy(update={"set": (*given, "train.steps=10")})
    world.write(FREE)
    sweep = tiny(world)
    place = world.results / "smoke" / "countdown" / "qwen2-112k"
    workers = [world.worker("tiny_countdown", slot) for slot in (0, 1)]
    try:
        # slot 0 begins with the method's own values
        wait_for(workers[0], lambda: any(place.glob("bapo/seed1/checkpoints/step_*")))
        workers[0].kill()
        assert workers[0].wait() == -9
        assert workers[1].wait(timeout=PATIENCE) == 0, workers[1].stderr.read()
    finally:
        for process in workers:
            process.kill()
            process.communicate()
    assert not (place / "bapo" / "seed1" / SUMMARY).exists()
    assert states(sweep, world.settings) == {0: "RUNNING", 1: "COMPLETE"}
    left = study.trial_of(study.open_study(sweep, world.settings), 0)

    with pytest.raises(UserError, match="slots 0, 2 of 3 "):
        study.collect(sweep, world.settings)
    told = [worker.run_slot(sweep, world.settings, slot) for slot in (0, 1, 2)]
    assert [t["state"] for t in told] == ["complete"] * 3
    assert told[0]["drawn"] == left.params == {"method.v": 5, "method.c1": 0.125} and told[0]["number"] == left.number
    assert read_json(place / "bapo" / "seed1" / MANIFEST)["resumed"] == 1  # went on from its checkpoint
    assert read_json(place / "bapo" / "seed2" / MANIFEST)["resumed"] == 0
    for t in told:
        assert sorted(t["seeds"]) == ["1", "2"]
        for row in t["seeds"].values():
            verify_files(Path(row["run"]))
            probe = read_table(Path(row["run"]) / PROBE).query("set == 'probe' and step == step.max()")
            assert row["accuracy"] == pytest.approx(probe["correct"].sum() / probe["samples"].sum())
        assert t["value"] == pytest.approx(sum(row["accuracy"] for row in t["seeds"].values()) / 2)

    # the same slots again do nothing; a larger budget adds a trial and leaves the others as they are
    before = (study.folder_of(sweep, world.settings) / study.JOURNAL).read_bytes()
    assert [worker.run_slot(sweep, world.settings, slot) for slot in (0, 1, 2)] == told
    larger = files.load("tiny_countdown", world.settings.model_copy(update={"trials": 4}))
    assert study.identity(larger, world.settings) == study.identity(sweep, world.settings)
    worker.run_slot(larger, world.settings, 3)
    assert (study.folder_of(sweep, world.settings) / study.JOURNAL).read_bytes().startswith(before)
    # the study is that of the reference's runs as well: names only, GRPO is not trained here
    path = study.collect(larger, world.settings)
    content = json.loads(path.read_text())
    assert [t["slot"] for t in content["trials"]] == [0, 1, 2, 3]
    assert [t["number"] for t in content["trials"][:3]] == [t["number"] for t in told]
    assert content["reference"]["runs"]["2"] == str(place / "grpo" / "seed2")
