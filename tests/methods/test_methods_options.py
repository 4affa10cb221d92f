"""The methods' options: defaults, and errors that name the key, the value and the cure; a method of another package."""

from __future__ import annotations

from pathlib import Path

import pytest

from bapo import methods
from bapo.__main__ import main
from bapo.errors import UserError
from bapo.store.files import GROUPS, read_table


def test_defaults_are_the_papers_table_3():
    c = methods.MethodConfig()
    assert (c.kl_coef, c.entropy_coef, c.clip_low, c.clip_high) == (0.001, 0.001, 0.2, 0.2)
    b = methods.config_of({"algorithm": "bapo"})
    assert (b.v, b.m, b.c1, b.c2_range, b.c3_range) == (5, 5, 1 / 8, [1 / 8, 4 / 8], [2 / 8, 5 / 8])
    assert (b.sync_phase, b.threshold_direction, b.average_reward) == ("literal", "rising", "batch")
    assert (b.x2_admission, b.high_steps, b.kl_to, b.aggregation) == ("improved", 3, "rollout", "sequence-mean")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({}, "method.algorithm has no value: name one of .*bapo.*repo"),
        ({"algorithm": "bappo"}, "method.algorithm=bappo: .*bapo, .*bapo_without_x2"),
        ({"algorithm": "bapo", "vv": 5}, r"method.vv: .*'v'.*, v, x2_"),
        ({"algorithm": "bapo", "v": "five"}, "method.v=five: must be"),
        ({"algorithm": "bapo", "v": 0}, "method.v=0: must be greater than 0"),
        ({"algorithm": "bapo", "kl_to": "alpha"}, "method.kl_to=alpha: must be 'reference', 'rollout'"),
        ({"algorithm": "bapo", "c2_range": [0.3, 0.5]}, r"method.c2_range=\[0.3, 0.5\]: c2 must not exceed c3"),
    ],
)
def test_errors_name_the_key_the_value_and_what_is_allowed(node, message):
    with pytest.raises(UserError, match=message):
        methods.config_of(node)


@pytest.mark.parametrize(
    ("algorithm", "key", "value"),
    [
        ("grpo", "kind", "both"),
        ("grpo", "clip_low", 1.0),
        ("grpo", "dual_clip", 0.5),
        ("grpo", "aggregation", "mean"),
        ("grpo_delayed", "sync_phase", "second"),
        ("bapo", "v", 2.5),
        ("bapo", "c1", 1.0),
        ("bapo", "c2_range", [0.5, 0.1]),
        ("bapo", "c3_range", [0.25, 0.4]),
        ("ba_ppo", "gamma", 1.1),
        ("ppo", "advantage_std", "unbiased"),
        ("dapo", "clip_high", 0.0),  # a changed default keeps its rule
        ("partial_rollouts", "share", 1.5),
        ("repo", "min_cached", 17),
        ("repo", "strategy", "random"),
        ("areal", "staleness", -1),
    ],
)
def test_impossible_values_are_refused_by_name(algorithm, key, value):
    with pytest.raises(UserError, match=rf"method\.(c2_range|{key}[.\d]*)="):
        methods.config_of({"algorithm": algorithm, key: value})


# ------------------------------------------------------------------------------------------------ another package

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
