"""Prompts as vectors of the model before training: computed once for a run, however often it is resumed.

Ray's driver computes them on all CPU cores: it has no GPU, and after a resume the actor's weights are not the start's.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from bapo.algorithm.rollouts import Prompt
from bapo.engines.shared.prompts import mean_states
from bapo.store.files import atomic

FILE = "embeddings.safetensors"  # in the run folder, whose identity names model and prompts; until the run has finished
CHUNK = 512  # prompts whose prepared images are in memory at a time
BATCH = 16  # prompts that go through the model at a time


class StoredEmbedder:
    """An ``Embedder`` (engines.shared) with the vectors in a file, whose prompts are made when they are read."""

    def __init__(
        self,
        path: Path,
        prompts: Sequence[Prompt],
        complete: Callable[[Prompt], Prompt],
        load: Callable[[], Any],
        say: Callable[[str], None],
    ) -> None:
        """complete: the prompt with its tokens and images; load: gives the model before training, on the CPU."""
        self.rows = {p.id: i for i, p in enumerate(prompts)}
        if not path.exists():
            vectors, tokens = _computed(prompts, complete, load, say)
            with atomic(path) as temporary:
                save_file({"vectors": vectors, "tokens": np.array(tokens)}, temporary)
        stored = load_file(path)
        self.vectors, self.tokens = stored["vectors"], int(stored["tokens"])  # float32 [n, d]; what went forward

    def __call__(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """float32 [n, d], in the order of the prompts."""
        return self.vectors[[self.rows[p.id] for p in prompts]]


def _computed(
    prompts: Sequence[Prompt], complete: Callable[[Prompt], Prompt], load: Callable[[], Any], say: Callable[[str], None]
) -> tuple[np.ndarray, int]:
    vectors, tokens, said = [], 0, time.monotonic()
    with all_cores():
        model = load()
        for start in range(0, len(prompts), CHUNK):
            chunk = [complete(p) for p in prompts[start : start + CHUNK]]
            vectors.append(mean_states(model, chunk, BATCH))
            tokens += sum(len(p.row.tokens) for p in chunk)
            if time.monotonic() - said > 30:
                said = time.monotonic()
                say(f"embedded {start + len(chunk)}/{len(prompts)} prompts")
    return np.concatenate(vectors), tokens


@contextlib.contextmanager
def all_cores() -> Iterator[None]:
    """torch on every core that this process may use: Ray gives its workers one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
