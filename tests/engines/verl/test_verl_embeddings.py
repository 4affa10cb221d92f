"""Prompts as vectors for verl's driver: the torch engine's numbers, kept in the run folder; no Ray."""

from __future__ import annotations

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


LENGTHS = (3, 9, 4, 7, 5)
BARE = [Prompt(f"p{i}") for i in range(len(LENGTHS))]


def complete(prompt: Prompt) -> Prompt:
    number = int(prompt.id[1:])
    return Prompt(prompt.id, Row(tuple(range(2 + number, 2 + number + LENGTHS[number])), ""))


def test_the_vectors_are_the_torch_engines_and_are_computed_once_on_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "CHUNK", 2)  # three parts, of lengths that are not in order
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    model = models.build_scratch(configuration.compose_config(["scale=smoke"]))[0].eval()
    before, threads = torch.get_num_threads(), []

    def load() -> Any:
        threads.append(torch.get_num_threads())
        return model

    def made() -> embeddings.StoredEmbedder:
        return embeddings.StoredEmbedder(tmp_path / embeddings.FILE, BARE, complete, load, say=lambda text: None)

    expected = Embedder(lambda: model, [complete(p) for p in BARE])(BARE)
    first, again = made(), made()  # a resumed run
    np.testing.assert_allclose(first(BARE), expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(first([BARE[3], BARE[0]]), first.vectors[[3, 0]])
    assert np.array_equal(again(BARE), first(BARE)) and again(BARE).dtype == np.float32
    assert first.tokens == again.tokens == sum(LENGTHS)
    assert threads == [3] and torch.get_num_threads() == before
    assert [p.name for p in tmp_path.iterdir()] == [embeddings.FILE]
