"""Prompts as vectors, for methods that compare prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from bapo.algorithm.rollouts import Prompt
from bapo.engines.shared import models
from bapo.store.files import atomic

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: so many prompts go through the model at a time
BATCH = 64


class Embedder:
    """Gives prompts as vectors (:func:`mean_states`) of the model before training, all of a run's when first asked for.

    They are no part of a checkpoint: a resumed run computes the same numbers again, or reads them in a file. tokens:
    what goes through the model for it.
    """

    def __init__(
        self, load: Callable[[], PreTrainedModel], prompts: Sequence[Prompt], file: Path | None = None
    ) -> None:
        """load: gives the model, which is dropped again; prompts: all that may be asked; file: keeps the vectors."""
        self.load, self.prompts, self.file = load, prompts, file
        self.tokens = sum(len(p.row.tokens) for p in prompts)

    @cached_property
    def _vectors(self) -> dict[str, np.ndarray]:
        if self.file is not None and self.file.exists():
            vectors = np.load(self.file)
        else:
            vectors = mean_states(self.load(), self.prompts)
            if self.file is not None:
                with atomic(self.file) as temporary, open(temporary, "wb") as handle:
                    np.save(handle, vectors)
        return {p.id: vector for p, vector in zip(self.prompts, vectors, strict=True)}

    def __call__(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """Return the vectors of the prompts, float32 [n, d], in their order."""
        return np.stack([self._vectors[p.id] for p in prompts])


@torch.no_grad()
def mean_states(model: PreTrainedModel, prompts: Sequence[Prompt]) -> np.ndarray:
    """Return the mean of the last hidden states (after the final norm) over each prompt's tokens, float32 [n, d]."""
    lengths = np.array([len(p.row.tokens) for p in prompts])
    order = np.argsort(lengths, kind="stable")  # neighbours in length: little padding
    device = next(model.parameters()).device
    means_of_prompts: list[np.ndarray] = [np.empty(0)] * len(prompts)
    for start in range(0, len(order), BATCH):
        members = order[start : start + BATCH]
        ids = np.zeros((len(members), lengths[members].max()), dtype=np.int64)
        for row, i in enumerate(members):
            ids[row, : lengths[i]] = prompts[i].row.tokens
        ends = torch.from_numpy(lengths[members]).to(device)
        pictures = [prompts[i].row.images for i in members]
        # padding is on the right, where a causal model never looks
        inputs = models.inputs(model, torch.from_numpy(ids).to(device), ends, pictures)
        hidden = model.base_model(**inputs, use_cache=False).last_hidden_state.float()
        inside = (torch.arange(ids.shape[1], device=device) < ends[:, None]).unsqueeze(-1)
        means = (hidden * inside).sum(1) / ends[:, None]
        for i, vector in zip(members, means.cpu().numpy(), strict=True):
            means_of_prompts[i] = vector
    return np.stack(means_of_prompts)
