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

START = "countdown/qwen2-112k"
BEFORE = json.loads(migrate.OLD.read_text(encoding="utf-8"))["smoke"]
OLD = {kind: digests.split() for kind, digests in BEFORE["shared"][START].items()}


def write(folder: Path, **content: object) -> None:
    folder.mkdir(parents=True)
    write_json(folder / SUMMARY, content)
    write_json(folder / MANIFEST, {**content, "data_identity": OLD["data"][0], "seed": 1})


@pytest.mark.parametrize("day", [0, -1])
@pytest.mark.parametrize(("old", "method"), [("bapo", "bapo"), ("bapo_v10", "bapo+v10"), ("bapo+rollouts",) * 2])
def test_a_run_its_base_and_its_evaluations_are_recognised(tmp_path: Path, day: int, old: str, method: str) -> None:
    """Of either day before; a run with a budget knows what it spent, and one of a renamed method moves."""
    home = tmp_path / "smoke"
    write(home / "countdown" / "data", identity=OLD["data"][day])
    write(home / START / "base", identity=OLD["base"][day])
    before, budget = BEFORE["runs"][f"{START}/{old}"]["1"].split()[day], {"unit": "rollouts", "amount": 1536.0}
    budgeted = {"budget": budget} if "rollouts" in old else {}
    before = migrate._digest([before, *budget.values()]) if budgeted else before
    write(home / START / old / "seed1", identity=before, steps=12, **budgeted)
    asked = {"evaluation": OLD["evaluation"][day], "checkpoint": "abc", "version": 1}
    said = {"checkpoint": "c", "checkpoint_sha256": "abc", "benchmarks": {}}
    write(home / START / old / "seed1" / "eval", identity=migrate._digest(asked), **said)
    assert main(["migrate", str(tmp_path)]) == 0
    config, run = run_config("smoke", "countdown", "qwen2-112k", method, 1), home / START / method / "seed1"
    new = identity.train_identity(config)
    new = identity.digest([new, *budget.values()]) if budgeted else new
    assert read_json(run / SUMMARY) == {"identity": new, "steps": 12, **budgeted}
    assert read_json(run / MANIFEST)["data_identity"] == identity.data_identity(config)
    assert read_json(run / "eval" / SUMMARY)["identity"] == identity.identity_of_evaluation(config, "abc")
    assert read_json(run.parents[1] / "base" / SUMMARY)["identity"] == identity.base_identity(config)
    assert migrate.migrate(tmp_path) == (0, [])  # done once


def test_what_is_not_known_stays_and_is_named(tmp_path: Path) -> None:
    home = tmp_path / "smoke" / START
    other, gone, twice = (home / method / "seed1" for method in ("bapo", "bapo+code_kl", "bapo_m1"))
    for folder in (other, gone, twice, home / "bapo+m1" / "seed1"):
        write(folder, identity="0123456789abcdef")
    rewritten, unknown = migrate.migrate(tmp_path)
    assert rewritten == 0 and len(unknown) == 5 and unknown[0].startswith(f"{twice.parent}: its method is bapo+m1 now")
    assert {line.partition(":")[0] for line in unknown} >= {str(other), str(gone)}
    assert read_json(other / SUMMARY)["identity"] == "0123456789abcdef"
    with pytest.raises(UserError, match="holds no results"):
        migrate.migrate(tmp_path / "smoke")
