"""A pretrained model is fetched once, at its commit, and read from its folder; against a stand-in for the hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import DictConfig
from support import hub_server
from support.late import LATE

from bapo.engines.verl import verl_config
from bapo.errors import UserError
from bapo.evaluation.prompts import revision_of
from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory

if LATE:
    from bapo.engines.shared import models
    from bapo.engines.shared.models import pretrained
    from bapo.engines.torch.base import train_base


NAME = "owner/tiny"
FILES = {"config.json": b'{"model_type": "qwen2"}', "model.safetensors": b"weights", "tokenizer.json": b"{}"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hub_server.Hub:
    from huggingface_hub import constants

    server = hub_server.Hub({NAME: FILES})
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    return server


def config_of(tmp_path: Path, *more: str) -> DictConfig:
    words = ["scale=paper", "task=countdown", f"model.path={NAME}", f"paths.results={tmp_path / 'results'}", *more]
    return compose_config(words)


def test_every_job_reads_the_folder_that_the_base_job_fetched(hub: hub_server.Hub, tmp_path: Path) -> None:
    config = config_of(tmp_path, f"model.revision={hub_server.COMMIT}")
    with pytest.raises(UserError, match=r"does not say that it was fetched; fetch it with `python -m bapo base"):
        models.start_path(config)
    assert pretrained.at_hand(config, NAME) == NAME

    summary = train_base(config)
    assert summary["revision"] == hub_server.COMMIT
    assert summary["snapshot"] == {name: len(content) for name, content in FILES.items()}
    asked = len(hub.paths)
    folder = models.start_path(config)
    assert folder.name == hub_server.COMMIT and (folder / "model.safetensors").read_bytes() == b"weights"
    assert pretrained.at_hand(config, NAME) == folder
    assert len(hub.paths) == asked  # nobody asks the hub again
    pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")
    assert verl_config.resolve(config, model=folder).actor_rollout_ref.model.path == str(folder)
    assert len(hub.paths) == asked

    (folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match="does not hold the files that were fetched; fetch it with"):
        models.start_path(config)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"is incomplete: 1 file.*; fetch it with `python -m bapo base"):
        models.start_path(config)


def test_a_model_without_a_pin_gets_the_commit_that_the_hub_has(hub: hub_server.Hub, tmp_path: Path) -> None:
    config = config_of(tmp_path, "model.revision=null")
    assert train_base(config)["revision"] == hub_server.COMMIT
    assert models.start_path(config).name == hub_server.COMMIT
    assert revision_of(config, config.model.path) == hub_server.COMMIT  # evaluations name it so
    assert revision_of(config, "owner/another") is None
    noted = base_directory(config) / "summary.json"
    noted.write_text(json.dumps({**json.loads(noted.read_text()), "identity": "another"}))
    with pytest.raises(UserError, match="does not say that it was fetched"):
        models.start_path(config)


def test_what_the_hub_does_not_have_is_named(hub: hub_server.Hub, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.path=owner/tiny at ffff.*; check the name, the network, and HF_TOKEN"):
        train_base(config_of(tmp_path, f"model.revision={'f' * 40}"))


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = config_of(tmp_path, f"model.path={tmp_path / 'model'}")
    assert models.start_path(config) == tmp_path / "model"
    noted = {"model": str(tmp_path / "model"), "revision": None, "snapshot": None, "files": {}}
    assert pretrained.fetch(config) == noted
