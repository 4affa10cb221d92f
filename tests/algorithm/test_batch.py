"""How a batch is cut into mini-batches."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf
from support.scripted import fresh, ids

from bapo import methods
from bapo.algorithm.batch import mini_batches

GRPO = methods.build({"algorithm": "grpo"}, batch_size=8, seed=1)


def cut(count: int, underfilled: str, method=GRPO, seed: int = 1, step: int = 1, groups=None):
    train = OmegaConf.create({"batch_size": 8, "mini_batch_size": 4, "underfilled": underfilled})
    return mini_batches(method, train, seed, step, fresh(1, [4] * count) if groups is None else groups)


@pytest.mark.parametrize(
    ("count", "underfilled", "sizes"),
    [
        (8, "fewer-updates", [4, 4]),
        (5, "fewer-updates", [4, 1]),  # the last one is partial
        (3, "fewer-updates", [3]),
        (11, "fewer-updates", [4, 4, 3]),  # X2 can overfill a batch
        (0, "fewer-updates", []),
        (8, "smaller-mini-batches", [4, 4]),
        (5, "smaller-mini-batches", [2, 3]),  # always batch_size / mini_batch_size updates
        (1, "smaller-mini-batches", [1]),
        (0, "smaller-mini-batches", []),
    ],
)
def test_sizes(count: int, underfilled: str, sizes: list[int]) -> None:
    parts = cut(count, underfilled)
    assert [len(p) for p in parts] == sizes
    assert sorted(ids([g for p in parts for g in p])) == sorted(ids(fresh(1, [4] * count)))


def test_order_is_shuffled_and_a_function_of_seed_and_step() -> None:
    def order(**keys: int) -> list[str]:
        return [i for part in cut(8, "fewer-updates", **keys) for i in ids(part)]

    assert order() == order() != ids(fresh(1, [4] * 8))
    assert order(seed=2) != order() != order(step=2)


def test_repo_keeps_a_prompts_fresh_and_replayed_groups_together() -> None:
    repo = methods.build({"algorithm": "repo"}, batch_size=8, seed=1)
    groups = fresh(1, [4] * 8) + fresh(1, [2] * 8)  # the same eight prompts twice
    parts = cut(8, "fewer-updates", repo, groups=groups)
    assert [len(p) for p in parts] == [8, 8]  # two updates, as without replay
    for part in parts:
        assert all(ids(part).count(i) == 2 for i in ids(part))
