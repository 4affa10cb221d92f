"""A method of another package: installed beside this one, found through its entry point, trained with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from bapo.store.files import GROUPS, read_table

TOY = '''
"""GRPO on groups that were solved at least once."""
from pydantic import Field

from bapo.methods import Batch, Method, MethodConfig


class ToyConfig(MethodConfig):
    at_least: int = Field(1, ge=1)


class Toy(Method):
    Config = ToyConfig
    summary = "drops groups without enough correct responses"
    source = "an example"
    cost = "1 x rollouts"

    def build_batch(self, step, fresh, sampler):
        kept = [g for g in fresh if g.rewards.sum() >= self.config.at_least]
        return Batch(kept, [(g, "too few correct") for g in fresh if g.rewards.sum() < self.config.at_least])
'''


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which a distribution ``toy-method`` is installed."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "toy_method.py").write_text(TOY, encoding="utf-8")
    information = folder / "toy_method-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-method\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text("[bapo.methods]\ntoy = toy_method:Toy\n", encoding="utf-8")
    places = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in places if p)}


def command(environment, *words, **options):
    return subprocess.run(
        [sys.executable, "-m", "bapo", *words], env=environment, capture_output=True, text=True, timeout=900, **options
    )


def test_it_is_listed(environment):
    listed = command(environment, "methods", check=True).stdout
    assert "toy                 off" in listed or "toy                 on " in listed
    assert "drops groups without enough correct responses  (1 x rollouts)  [an example]" in listed


def test_it_trains(environment, tiny_world):
    names = ["method.algorithm=toy", "method.name=toy", "method.at_least=2", "seed=1", "train.steps=2"]
    done = command(environment, "train", *tiny_world, "method=grpo", *names)
    assert done.returncode == 0, done.stderr
    results = Path(next(w for w in tiny_world if w.startswith("paths.results=")).partition("=")[2])
    (run,) = results.glob("smoke/countdown/*/toy/seed1")
    groups = read_table(run / GROUPS)
    solved = groups["rewards"].map(sum)
    assert len(groups) == 16 and (groups["used"] == (solved >= 2)).all()
    assert set(groups.loc[~groups["used"], "reason"]) == {"too few correct"}


def test_its_own_parameters_are_checked(environment, tiny_world):
    names = ["method.algorithm=toy", "method.name=toy", "method.at_least=0"]
    done = command(environment, "train", *tiny_world, "method=grpo", *names)
    assert done.returncode == 2 and "method.at_least=0: must be" in done.stderr


def test_elsewhere_it_does_not_exist(tiny_world):
    done = command(dict(os.environ), "train", *tiny_world, "method=grpo", "method.algorithm=toy")
    assert done.returncode == 2 and "toy: unknown algorithm; allowed: " in done.stderr
