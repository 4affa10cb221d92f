"""The base models that come with the suite: found by what made them, whole, and as strong as ones trained anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.world import start_of

from bapo.errors import UserError
from bapo.experiments import places
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import base_identity, shipped_base
from bapo.store.files import sha256, verify_files

TASKS = ("countdown", "geometry", "mathematics")


def configuration(task: str, results: Path, *overrides: str):
    return compose_config([f"task={task}", "tracking=none", f"paths.results={results}", *overrides])


@pytest.mark.parametrize("task", TASKS)
def test_the_laptop_starts_from_a_file_of_the_suite(task, tmp_path):
    """A file whose recipe is no longer the setting's would be passed over, and its model trained again, unnoticed."""
    config = configuration(task, tmp_path)
    shipped = shipped_base(config)
    assert shipped is not None and sha256(shipped.path) == shipped.sha256
    assert shipped.path.stat().st_size < 1_000_000


@pytest.mark.parametrize(
    "override",
    ["base.source=train", "base.iterations=7", "base.seed=1", "data.split_sizes.base=9", "data.generator.noise=0.1"],
)
def test_another_recipe_is_trained(override, tmp_path):
    usual, other = configuration("countdown", tmp_path), configuration("countdown", tmp_path, override)
    assert shipped_base(other) is None
    assert base_identity(other) != base_identity(usual)


def test_the_job_writes_the_files_own_weights_and_no_documents(tmp_path):
    import torch
    from safetensors.torch import load_file

    from bapo.engines.shared import models
    from bapo.engines.torch.base_model import train_base

    config = configuration("countdown", tmp_path)
    summary = train_base(config)
    shipped, folder = shipped_base(config), places.base_directory(config)
    assert (summary["identity"], summary["weights"]) == (base_identity(config), shipped.sha256)
    verify_files(folder)
    wanted, written = load_file(shipped.path), models.load_start(config, torch.device("cpu"))[0].state_dict()
    assert {tensor.dtype for tensor in written.values()} == {torch.float32}
    assert all(torch.equal(written[name].half(), wanted[name]) for name in wanted)
    assert {tensor.data_ptr() for tensor in written.values()} == {written[name].data_ptr() for name in wanted}
    assert [path.name for path in tmp_path.rglob("*.parquet")] == []


def test_a_damaged_file_is_named(tmp_path, experiments):
    from bapo.engines.torch.base_model import train_base

    with (experiments / "base" / "laptop_countdown.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(UserError, match=r"laptop_countdown\.safetensors: "):
        train_base(configuration("countdown", tmp_path / "results"))


@pytest.mark.full
def test_a_base_trained_anew_is_as_strong(tmp_path):
    """Its sums differ on another processor, and so do its weights: accuracy varied by a point between such bases."""
    from bapo.engines.shared.models import pretrained
    from bapo.evaluation.run import evaluate

    accuracy = {}
    for source in ("suite", "train"):
        words = ["task=countdown", "tracking=none", f"paths.results={tmp_path / source}", f"base.source={source}"]
        config = start_of(words)
        scores = evaluate(config, pretrained.start_of(config), tmp_path / source / "eval")["benchmarks"]
        accuracy[source] = sum(score["accuracy"] for score in scores.values()) / len(scores)
    assert abs(accuracy["train"] - accuracy["suite"]) < 0.025
