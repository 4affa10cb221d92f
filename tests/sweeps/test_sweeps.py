"""Sweeps: the space, the files, the study's exact total, and workers that are killed."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from support.sweep_world import FREE, SweepWorld

from bapo import methods
from bapo.errors import UserError
from bapo.experiments.places import options, run_directory
from bapo.experiments.settings import Settings
from bapo.store.files import MANIFEST, PROBE, SUMMARY, read_json, read_table, verify_files
from bapo.sweeps import collect, files, space, storage, study, trials, worker
from bapo.sweeps.space import Parameter

GRID: dict[str, Any] = {
    "name": "plane",
    "task": "countdown",
    "sampler": "grid",
    "space": {
        "v": {"type": "categorical", "key": "method.v", "choices": [1, 2, 5]},
        "m": {"type": "categorical", "key": "method.m", "choices": [1, 2]},
    },
    "scales": {"smoke": {"seeds": [1]}},
}


@pytest.fixture
def world(tmp_path: Path, tiny_world: list[str], monkeypatch: pytest.MonkeyPatch) -> SweepWorld:
    """Results of its own that begin with the tiny world's data and base model."""
    made = SweepWorld(tmp_path, tiny_world, monkeypatch)
    for part in ("data", "qwen2-112k/base"):
        shutil.copytree(
            made.results / "smoke" / "countdown" / part, tmp_path / "results" / "smoke" / "countdown" / part
        )
    made.results = tmp_path / "results"
    made.settings = dataclasses.replace(made.settings, results=str(made.results))
    return made


def states(sweep: files.Sweep, settings: Settings) -> dict[int, str]:
    found = study.open_study(sweep, settings).get_trials(deepcopy=False)
    return {t.user_attrs["slot"]: t.state.name for t in found}


# ------------------------------------------------------------------------------------------------ the space


def test_what_numbers_set_by_hand():
    c2 = Parameter("c2", "interval", "method.c2_range", low=0.0, high=0.5, width=(0.0, 0.5), step=0.125)
    c3 = dataclasses.replace(c2, name="c3", key="method.c3_range", above="c2")
    cap = Parameter("cap", "float", "method.max_reevaluated", low=0.01, high=1, share_of="train.batch_size", own=0.5)
    drawn = {"c2_low": 0.125, "c2_width": 0.375, "c3_low": 0.125, "c3_width": 0.0, "cap": 0.25}
    found = space.values((c2, c3, cap), drawn, {"train.batch_size": 32.0}.__getitem__)
    # c3 begins 0.125 above c2's 0.125; its high end would be 0.25, below c2's 0.5
    assert found == {"method.c2_range": [0.125, 0.5], "method.c3_range": [0.25, 0.5], "method.max_reevaluated": 8}
    assert space.values((cap,), {"cap": 0.5}, lambda _: 32.0) == {}
    assert space.values((cap,), {"cap": 0.01}, lambda _: 32.0) == {"method.max_reevaluated": 1}


def test_every_draw_of_the_free_search_is_a_valid_configuration():
    settings = Settings(scale="smoke")
    sweep = files.load("free_countdown", settings)
    rng = random.Random(0)

    def draw(name: str, d: Any) -> Any:
        low, high, step = d.low, d.high, getattr(d, "step", None)
        if isinstance(low, int):
            return rng.randint(low, high)
        return rng.uniform(low, high) if step is None else low + step * rng.randint(0, round((high - low) / step))

    for _ in range(12):
        config = trials.configured(sweep, settings, space.suggest(sweep.parameters, draw), 1)
        methods.of_run(config)


def test_a_grid_holds_every_combination_once():
    settings = Settings(scale="laptop")
    cells = space.grid(files.load("frequency_countdown", settings).parameters)
    assert [(c["v"], c["m"]) for c in cells] == [(v, m) for v in (5, 10, 20) for m in (1, 5, 10)]


def test_a_trial_that_is_a_named_method_has_its_runs_and_any_other_a_folder_of_its_meaning():
    settings = Settings(scale="laptop")
    plane, free = files.load("frequency_countdown", settings), files.load("free_countdown", settings)
    name = lambda sweep, drawn, seed=1: trials.configured(sweep, settings, drawn, seed).method.name  # noqa: E731
    assert name(plane, {"v": 5, "m": 5}) == "bapo" and name(plane, {"v": 10, "m": 5}) == "bapo_v10"
    other = name(plane, {"v": 10, "m": 1})
    assert other.startswith("bapo+") and name(plane, {"v": 10, "m": 1}, seed=2) == other
    assert name(plane, {"v": 20, "m": 1}) != other
    # another sweep that draws the same parameters finds the same runs
    assert name(free, {**free.start, "v": 10, "m": 1}) == other and name(free, free.start) == "bapo"
    config = trials.configured(plane, settings, {"v": 10, "m": 1}, 3)
    assert str(run_directory(config)) == f"results/laptop/countdown/qwen2-112k/{other}/seed3"
    assert config.method.title == "+BAPO, v = 10, m = 1"


# ------------------------------------------------------------------------------------------------ the files


@pytest.mark.parametrize("scale", ["laptop", "smoke", "gpu", "paper"])
def test_every_sweep_of_the_product_is_of_one_task_and_can_be_judged(scale: str):
    settings = Settings(scale=scale)
    found = [files.load(name, settings) for name in files.at_scale(scale)]
    kinds = {(s.name.partition("_")[0], s.task) for s in found}
    tasks = ["countdown"] if scale == "paper" else ["countdown", "geometry", "mathematics"]
    assert kinds == {(k, t) for k in ("frequency", "thresholds", "free") for t in tasks}
    for sweep in found:
        assert files.check(sweep, settings).probe.prompts > 0


def test_a_probe_of_training_problems_judges_no_trial():
    settings = Settings(scale="paper")
    sweep = dataclasses.replace(files.load("frequency_countdown", settings), task="geometry", model="qwen2.5-vl-3b")
    with pytest.raises(UserError, match="no problems for the probe of geometry are kept out of training"):
        files.check(sweep, settings)
        assert set(sweep.named) <= set(options("method"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "grid"}, r"tiny.yaml: space.v: a grid takes categorical parameters; list its choices"),
        ({"samplr": "tpe"}, r"samplr: no such field \(did you mean 'sampler'\?\)"),
        ({"task": "count"}, r"task: unknown task 'count'"),
        ({"named": ["bapo+fast"]}, r"tiny.yaml: named: unknown variant 'fast'"),
        ({"pruning": {"q": 1}}, r"tiny.yaml: pruning.q: no such field; allowed: p, seeds"),
        ({"scales": {"smoke": [1]}}, r"tiny.yaml: scales.smoke: must be a mapping with model, seeds, trials"),
        ({"space": {"v": {"type": "int", "low": 1, "high": 3}}}, r"space.v.key must name the key that it sets"),
        ({"space": {"v": {"type": "int", "key": "method.v", "low": 5, "high": 3}}}, r"space.v needs low and high"),
        ({"space": {"v": {"type": "integer"}}}, r"space.v.type: unknown 'integer'"),
        ({"start": {"v": 9}}, r"start.v=9: must be in the space"),
        ({"scales": {"smoke": {"seeds": []}}}, r"scales.smoke.seeds=\[\]: must name at least one"),
        ({"scales": {"smoke": {"seeds": [1]}}}, r"scales.smoke.trials: must say how many"),
        ({"scales": {"laptop": {"seeds": [1]}}}, r"scales has no 'smoke'; it has laptop"),
        ({"retries": -1}, r"retries=-1: must be 0 or more"),
        ({"pruning": {"p": 2.0}}, r"pruning.p=2.0: must be in"),
        ({"name": "x"}, r"x.yaml"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(world: SweepWorld, changes: dict[str, Any], message: str):
    world.write(FREE, **changes)
    if changes.get("name"):
        (world.experiments / "sweep" / "x.yaml").rename(world.experiments / "sweep" / "tiny.yaml")
        message = r"name is 'x' but the file is called tiny.yaml"
    with pytest.raises(UserError, match=message):
        files.load("tiny", world.settings)


# ------------------------------------------------------------------------------------------------ the journal


def test_a_torn_last_line_is_cut_off_and_nothing_is_written_behind_one(world: SweepWorld):
    world.write(FREE)
    sweep = files.load("tiny", world.settings)
    first = study.open_study(sweep, world.settings)
    study.claim(first, 0, 1)
    journal = study.folder_of(sweep, world.settings) / storage.JOURNAL
    whole = journal.read_bytes()
    assert whole.endswith(b"\n") and storage.torn_bytes(journal) == 0

    journal.write_bytes(whole + b'{"op_code": 4, "worker')  # killed while it wrote; another worker goes on meanwhile
    assert storage.torn_bytes(journal) == 22
    study.claim(first, 1, 1)
    assert journal.read_bytes().startswith(whole) and b'"worker{' not in journal.read_bytes()
    journal.write_bytes(journal.read_bytes() + b'{"op')
    assert states(sweep, world.settings) == {0: "RUNNING", 1: "RUNNING"}
    for line in journal.read_text().splitlines():
        json.loads(line)


def test_torn_bytes_of_files_without_and_with_long_lines(tmp_path: Path):
    path = tmp_path / "log"
    for content, torn in (
        (b"", 0),
        (b"abc", 3),
        (b"\n", 0),
        (b"a\n" + b"x" * 100_000, 100_000),
        (b"y" * 70_000 + b"\n", 0),
    ):
        path.write_bytes(content)
        assert storage.torn_bytes(path) == torn


def test_a_line_damaged_within_the_journal_is_named(world: SweepWorld):
    world.write(FREE)
    sweep = files.load("tiny", world.settings)
    study.claim(study.open_study(sweep, world.settings), 0, 1)
    journal = study.folder_of(sweep, world.settings) / storage.JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"{broken\n", *lines[2:]]))
    with pytest.raises(UserError, match=r"journal.log is damaged"):
        study.open_study(sweep, world.settings)


# ------------------------------------------------------------------------------------------------ the study


def test_a_changed_space_seed_or_configuration_is_refused(world: SweepWorld):
    world.write(FREE)
    study.open_study(files.load("tiny", world.settings), world.settings)
    wider = FREE["space"] | {"v": FREE["space"]["v"] | {"high": 7}}
    for changes, words in (
        ({"space": wider}, "search space"),
        ({"scales": {"smoke": {"trials": 3, "seeds": [1, 3]}}}, "list of seeds"),
        ({"startup": 2}, "sampler"),
    ):
        world.write(FREE, **changes)
        with pytest.raises(UserError, match=rf"journal.log was made with another {words} than .*tiny.yaml"):
            study.open_study(files.load("tiny", world.settings), world.settings)
    world.write(FREE)
    other = dataclasses.replace(world.settings, set=(*world.settings.set, "train.learning_rate=1e-3"))
    with pytest.raises(UserError, match="another configuration"):
        study.open_study(files.load("tiny", other), other)
    world.write(FREE, title="Another title", scales={"smoke": {"trials": 9, "seeds": [1, 2]}})
    study.open_study(files.load("tiny", world.settings), world.settings)  # neither is part of it


def test_a_grid_is_complete_in_whatever_order_its_slots_come(world: SweepWorld):
    world.write(GRID)
    sweep = files.load("plane", world.settings)
    order = [4, 0, 5, 2, 1, 3]
    for slot in order:
        opened = study.open_study(sweep, world.settings, slot)
        trial = study.claim(opened, slot, 1)
        drawn = space.suggest(sweep.parameters, trial._suggest)
        opened.tell(trial, drawn["v"] / 10)
    found = study.open_study(sweep, world.settings).get_trials(deepcopy=False)
    cells = [(t.params["v"], t.params["m"]) for t in sorted(found, key=lambda t: t.user_attrs["slot"])]
    assert cells == [(1, 1), (1, 2), (2, 1), (2, 2), (5, 1), (5, 2)]
    assert study.claim(study.open_study(sweep, world.settings), 3, 1) is None  # each slot once


def test_slots_draw_with_random_numbers_of_their_own_that_do_not_change(world: SweepWorld):
    world.write(FREE, start={}, startup=5)
    sweep = files.load("tiny", world.settings)

    def drawn(slot: int) -> dict[str, Any]:
        opened = study.open_study(sweep, world.settings, slot)
        return space.suggest(sweep.parameters, study.claim(opened, slot, 9)._suggest)

    first = [drawn(slot) for slot in range(3)]
    assert first[0] != first[1] != first[2]
    assert [drawn(slot) for slot in range(3)] == first  # taken up again
    shutil.rmtree(study.folder_of(sweep, world.settings))
    assert [drawn(slot) for slot in range(3)] == first  # and from the beginning


def test_a_trial_killed_more_often_than_it_may_be_fails_and_stops_nothing(world: SweepWorld):
    world.write(FREE)
    sweep = files.load("tiny", world.settings)
    for starts in (1, 2):
        trial = study.claim(study.open_study(sweep, world.settings), 0, sweep.retries)
        assert trial.user_attrs["starts"] == starts
    content = worker.run_slot(sweep, world.settings, 0)  # the second retry: told as failed
    assert (content["state"], content["reason"]) == ("fail", "its worker was killed 2 times")
    assert states(sweep, world.settings) == {0: "FAIL"}


def test_the_rank_test_prunes_what_is_worse_on_most_problems_and_nothing_else(world: SweepWorld):
    world.write(FREE, pruning={"p": 0.05, "seeds": 1})
    sweep = files.load("tiny", world.settings)
    opened = study.open_study(sweep, world.settings)
    best = study.claim(opened, 0, 1)
    good = [0.5, 0.6, 0.4, 0.7, 0.5, 0.6, 0.4, 0.7]
    for done in (1, 2):
        assert not worker._pruned(best, sweep, good, done)
    opened.tell(best, 0.55)
    # all eight problems worse: p = 1/256; half of them worse, by as much as the others are better: not
    worse, mixed = [x - 0.3 for x in good], [x + (-1) ** i * 0.1 for i, x in enumerate(good)]
    assert worker._pruned(study.claim(opened, 1, 1), sweep, worse, 1)
    assert not worker._pruned(study.claim(opened, 2, 1), sweep, mixed, 1)
    again = study.claim(opened, 1, 1)  # killed after its report: reports no problem twice, and comes to the same
    assert worker._pruned(again, sweep, worse, 1)
    patient = dataclasses.replace(sweep, pruning=files.Pruning(0.05, 2))
    assert not worker._pruned(study.claim(opened, 3, 1), patient, worse, 1)


def test_parameters_that_exclude_each_other_are_a_failed_trial(world: SweepWorld):
    ranges = {"bad": {"method.c2_range": [0.5, 0.6], "method.c3_range": [0.1, 0.2]}}
    world.write(GRID, space={"c": {"type": "categorical", "choices": ranges}})
    content = worker.run_slot(files.load("plane", world.settings), world.settings, 0)
    assert content["state"] == "fail" and "c2 must not exceed c3" in content["reason"]


# ------------------------------------------------------------------------------------------------ real training


@pytest.mark.system
def test_a_worker_killed_in_its_trial_goes_on_with_it_and_the_total_is_exact(world: SweepWorld):
    """Two workers of one study train for real; one is killed with -9 in the middle of a run."""
    given = (o for o in world.settings.set if not o.startswith("train.steps"))
    world.settings = dataclasses.replace(world.settings, set=(*given, "train.steps=10"))
    world.write(FREE)
    sweep = files.load("tiny", world.settings)
    place = world.results / "smoke" / "countdown" / "qwen2-112k"
    workers = [world.worker("tiny", slot) for slot in (0, 1)]
    try:
        deadline = time.monotonic() + 240
        while not list(place.glob("bapo/seed1/checkpoints/step_*")):  # slot 0 begins with the method's own values
            assert workers[0].poll() is None, workers[0].stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        workers[0].kill()
        assert workers[0].wait() == -9
        assert workers[1].wait(timeout=240) == 0, workers[1].stderr.read()
    finally:
        for process in workers:
            process.kill()
            process.communicate()
    assert not (place / "bapo" / "seed1" / SUMMARY).exists()
    assert states(sweep, world.settings) == {0: "RUNNING", 1: "COMPLETE"}
    left = study.trial_of(study.open_study(sweep, world.settings), 0)

    with pytest.raises(UserError, match=r"slots 0, 2 of 3 are not finished; run `snakemake --cores all sweep_tiny`"):
        collect.collect(sweep, world.settings)
    told = [worker.run_slot(sweep, world.settings, slot) for slot in (0, 1, 2)]
    assert [t["state"] for t in told] == ["complete"] * 3 and [t["starts"] for t in told] == [2, 1, 1]
    assert told[0]["drawn"] == left.params == {"v": 5, "c1": 0.125} and told[0]["number"] == left.number
    assert read_json(place / "bapo" / "seed1" / MANIFEST)["resumed"] == 1  # went on from its checkpoint
    assert read_json(place / "bapo" / "seed2" / MANIFEST)["resumed"] == 0
    for t in told:
        assert sorted(t["seeds"]) == ["1", "2"]
        for row in t["seeds"].values():
            verify_files(Path(row["run"]))
            assert row["accuracy"] == pytest.approx(by_hand(Path(row["run"])))
        assert t["value"] == pytest.approx(sum(row["accuracy"] for row in t["seeds"].values()) / 2)

    # the same slots again do nothing; a larger budget adds a trial and leaves the others as they are
    before = (study.folder_of(sweep, world.settings) / storage.JOURNAL).read_bytes()
    assert [worker.run_slot(sweep, world.settings, slot) for slot in (0, 1, 2)] == told
    larger = files.load("tiny", dataclasses.replace(world.settings, trials=4))
    assert study.identity(larger, world.settings) == study.identity(sweep, world.settings)
    worker.run_slot(larger, world.settings, 3)
    assert (study.folder_of(sweep, world.settings) / storage.JOURNAL).read_bytes().startswith(before)
    # the study is that of the reference's runs as well: names only, GRPO is not trained here
    path = collect.collect(larger, world.settings)
    content = json.loads(path.read_text())
    assert [t["slot"] for t in content["trials"]] == [0, 1, 2, 3]
    assert [t["number"] for t in content["trials"][:3]] == [t["number"] for t in told]
    assert content["reference"]["runs"]["2"] == str(place / "grpo" / "seed2")


def by_hand(folder: Path) -> float:
    """Validation accuracy from the table, another way."""
    probe = read_table(folder / PROBE)
    rows = probe[(probe["set"] == "probe") & (probe["step"] == probe["step"].max())]
    return float(rows["correct"].sum() / rows["samples"].sum())


def test_a_failed_training_is_no_kill_and_the_next_start_goes_on(world: SweepWorld):
    world.write(GRID)
    sweep = files.load("plane", world.settings)
    base = world.results / "smoke" / "countdown" / "qwen2-112k" / "base"
    os.rename(base, base.with_name("away"))
    for _ in range(3):
        with pytest.raises(UserError):
            worker.run_slot(sweep, world.settings, 0)
        assert study.trial_of(study.open_study(sweep, world.settings), 0).user_attrs["starts"] == 0
    os.rename(base.with_name("away"), base)
    assert worker.run_slot(sweep, world.settings, 0)["state"] == "complete"
