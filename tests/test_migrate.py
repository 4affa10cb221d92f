"""Old results get the identities of the same runs; what is not known stays as it is and is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bapo import migrate
from bapo.__main__ import main
from bapo.errors import UserError
from bapo.experiments import identity
from bapo.experiments.compose import run_config
from bapo.store.files import MANIFEST, SUMMARY, read_json, write_json

CELL = "countdown/qwen2-112k/bapo"
OLD = json.loads(migrate.OLD.read_text(encoding="utf-8"))["smoke"][CELL]


def write(folder: Path, **content: object) -> None:
    folder.mkdir(parents=True)
    write_json(folder / SUMMARY, content)
    write_json(folder / MANIFEST, {**content, "data_identity": OLD["data"], "seed": 1})


def test_a_run_its_base_and_its_evaluations_are_recognised(tmp_path: Path) -> None:
    home = tmp_path / "smoke"
    write(home / "countdown" / "data", identity=OLD["data"])
    write(home / "countdown" / "qwen2-112k" / "base", identity=OLD["base"])
    run = home / CELL / "seed1"
    write(run, identity=OLD["train"]["1"], steps=12)
    asked = {"evaluation": OLD["evaluation"], "checkpoint": "abc", "version": 1}
    write(run / "eval", identity=identity.digest(asked), checkpoint="c", checkpoint_sha256="abc", benchmarks={})
    assert main(["migrate", str(tmp_path)]) == 0
    config = run_config("smoke", "countdown", "qwen2-112k", "bapo", 1)
    assert read_json(run / SUMMARY) == {"identity": identity.train_identity(config), "steps": 12}
    assert read_json(run / MANIFEST)["data_identity"] == identity.data_identity(config)
    assert read_json(run / "eval" / SUMMARY)["identity"] == identity.identity_of_evaluation(config, "abc")
    assert read_json(run.parents[1] / "base" / SUMMARY)["identity"] == identity.base_identity(config)
    assert migrate.migrate(tmp_path) == (0, [])  # done once


def test_what_is_not_known_stays_and_is_named(tmp_path: Path) -> None:
    other, gone = tmp_path / "smoke" / CELL / "seed1", tmp_path / "smoke/countdown/qwen2-112k/bapo+code_kl/seed1"
    write(other, identity="0123456789abcdef")
    write(gone, identity="fedcba9876543210")
    rewritten, unknown = migrate.migrate(tmp_path)
    assert rewritten == 0 and [line.partition(":")[0] for line in unknown] == [str(other), str(gone)]
    assert read_json(other / SUMMARY)["identity"] == "0123456789abcdef"
    with pytest.raises(UserError, match="holds no results"):
        migrate.migrate(tmp_path / "smoke")
