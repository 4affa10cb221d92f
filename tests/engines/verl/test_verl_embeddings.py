"""Prompts as vectors for verl's driver: the torch engine's numbers, kept in the run folder; no Ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.late import LATE

from bapo.algorithm.rollouts import Prompt
from bapo.experiments import compose as configuration

if LATE:
    import torch

    from bapo.engines.shared import models
    from bapo.engines.shared.prompts import Embedder, Row
    from bapo.engines.verl import embeddings
    from bapo.engines.verl.embeddings import FILE, StoredEmbedder


LENGTHS = (3, 9, 4, 7, 5)
BARE = [Prompt(f"p{i}") for i in range(len(LENGTHS))]


@pytest.fixture(scope="module")
def model() -> Any:
    return models.build_scratch(configuration.compose_config(["scale=smoke"]))[0].eval()


def complete(prompt: Prompt) -> Prompt:
    number = int(prompt.id[1:])
    return Prompt(prompt.id, Row(tuple(range(2 + number, 2 + number + LENGTHS[number])), ""))


@dataclass
class Loads:
    """Gives the model, and writes down with how many threads."""

    model: Any
    threads: list[int]

    def __call__(self) -> Any:
        self.threads.append(torch.get_num_threads())
        return self.model


def made(folder: Path, load: Loads, base: str = "base", prompts: list[Prompt] = BARE) -> StoredEmbedder:
    return StoredEmbedder(folder / FILE, base, prompts, complete, load, say=lambda text: None)


def test_the_vectors_are_the_torch_engines_and_are_computed_once(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "CHUNK", 2)  # three parts, of lengths that are not in order
    load = Loads(model, [])
    expected = Embedder(lambda: model, [complete(p) for p in BARE])(BARE)
    first = made(tmp_path, load)
    np.testing.assert_allclose(first(BARE), expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(first([BARE[3], BARE[0]]), first.vectors[[3, 0]])
    again = made(tmp_path, load)  # a resumed run
    assert np.array_equal(again(BARE), first(BARE)) and again(BARE).dtype == np.float32
    assert first.tokens == again.tokens == sum(LENGTHS)
    assert len(load.threads) == 1
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


def test_another_models_or_a_damaged_file_does_not_count(model: Any, tmp_path: Path) -> None:
    load = Loads(model, [])
    expected = made(tmp_path, load)(BARE)
    made(tmp_path, load, base="another")
    made(tmp_path, load, base="another", prompts=BARE[::-1])
    assert len(load.threads) == 3
    whole = (tmp_path / FILE).read_bytes()
    for damaged in (whole[:-5], whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:], b""):
        (tmp_path / FILE).write_bytes(damaged)
        found = made(tmp_path, load, base="another", prompts=BARE[::-1])
        np.testing.assert_allclose(found(BARE), expected, rtol=1e-5, atol=1e-6)
        assert np.array_equal(made(tmp_path, load, base="another", prompts=BARE[::-1]).vectors, found.vectors)
    assert len(load.threads) == 6


def test_it_computes_on_all_cores_and_leaves_the_threads_as_they_were(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    before = torch.get_num_threads()
    load = Loads(model, [])
    made(tmp_path, load)
    assert load.threads == [3] and torch.get_num_threads() == before
