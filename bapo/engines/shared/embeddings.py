"""Prompts as vectors of the model before training: what a method compares prompts by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from bapo.algorithm.rollouts import Prompt
from bapo.engines.shared import models

#: Prompts that go through the model at a time.
BATCH = 64


class Embedder:
    """Mean of the last hidden states over each prompt's tokens, computed for all prompts of a run when first asked for.

    No part of a checkpoint: a resumed run computes the same numbers again.
    """

    def __init__(self, load: Callable[[], Any], prompts: Sequence[Prompt]) -> None:
        """load: gives the model before training, which is dropped again; prompts: all that may be asked for."""
        self.load, self.prompts = load, list(prompts)
        self._rows: dict[str, int] = {}
        self._vectors = np.empty((0, 0), dtype=np.float32)

    @property
    def tokens(self) -> int:
        """The tokens that go through the model, once in a run."""
        return sum(len(p.row.tokens) for p in self.prompts)

    def __call__(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """float32 [n, d], in the order of the prompts."""
        if not self._rows:
            self._vectors = mean_states(self.load(), self.prompts)
            self._rows = {p.id: i for i, p in enumerate(self.prompts)}
        return self._vectors[[self._rows[p.id] for p in prompts]]


@torch.no_grad()
def mean_states(model: Any, prompts: Sequence[Prompt], batch: int = BATCH) -> np.ndarray:
    """float32 [n, d]: mean of the last hidden states (after the final norm) over each prompt's tokens."""
    lengths = np.array([len(p.row.tokens) for p in prompts])
    order = np.argsort(lengths, kind="stable")  # neighbours in length: little padding
    device = next(model.parameters()).device
    means_of_prompts: list[np.ndarray] = [np.empty(0)] * len(prompts)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        ids = np.zeros((len(chosen), lengths[chosen].max()), dtype=np.int64)
        for row, i in enumerate(chosen):
            ids[row, : lengths[i]] = prompts[i].row.tokens
        ends = torch.from_numpy(lengths[chosen]).to(device)
        pictures = [prompts[i].row.images for i in chosen]
        # padding is on the right, where a causal model never looks
        inputs = models.inputs(model, torch.from_numpy(ids).to(device), ends, pictures)
        hidden = model.base_model(**inputs, use_cache=False).last_hidden_state.float()
        inside = (torch.arange(ids.shape[1], device=device) < ends[:, None]).unsqueeze(-1)
        means = (hidden * inside).sum(1) / ends[:, None]
        for i, vector in zip(chosen, means.cpu().numpy(), strict=True):
            means_of_prompts[i] = vector
    return np.stack(means_of_prompts)
