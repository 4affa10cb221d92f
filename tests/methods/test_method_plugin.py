"""A method of another package: installed beside this one, found through its entry point, trained with."""

from __future__ import annotations

from pathlib import Path

import pytest

from bapo.__main__ import main
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


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution ``toy-method`` is installed."""
    (tmp_path / "toy_method.py").write_text(TOY, encoding="utf-8")
    information = tmp_path / "toy_method-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-method\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text("[bapo.methods]\ntoy = toy_method:Toy\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def train(world: list[str], *more: str) -> int:
    return main(["train", *world, "method=grpo", "method.algorithm=toy", "method.name=toy", "seed=1", *more])


def test_it_is_listed_checked_and_trained(
    installed: None, tiny_world: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["methods"]) == 0
    assert "drops groups without enough correct responses  (1 x rollouts)  [an example]" in capsys.readouterr().out
    assert train(tiny_world, "method.at_least=0") == 2 and "method.at_least=0: must be" in capsys.readouterr().err
    assert train(tiny_world, "method.at_least=2", "train.steps=2") == 0
    results = Path(next(w for w in tiny_world if w.startswith("paths.results=")).partition("=")[2])
    (run,) = results.glob("smoke/countdown/*/toy/seed1")
    groups = read_table(run / GROUPS)
    solved = groups["rewards"].map(sum)
    assert len(groups) == 16 and (groups["used"] == (solved >= 2)).all()
    assert set(groups.loc[~groups["used"], "reason"]) == {"too few correct"}


def test_elsewhere_it_does_not_exist(tiny_world: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tiny_world) == 2 and "toy: unknown algorithm; allowed: " in capsys.readouterr().err
