"""Groups as files: the responses of replay buffers and of rollouts under way, in checkpoints of both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from bapo.algorithm.rollouts import Group, Prompt, Samples

#: What a group says of each of its responses, where it says it at all.
MARKS = ("off_policy", "unfinished")


def pack_groups(groups: list[Group]) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Return the groups as tensors, and a plain entry for each.

    The tensors: tokens int32 and logprobs float32 [sum of lengths], response after response without padding; lengths
    int32, rewards float32 and the marks bool, all [responses].
    """
    if not groups:
        return {"empty": torch.zeros(1)}, []
    samples = [g.samples for g in groups]
    real = [np.arange(s.tokens.shape[1]) < s.lengths[:, None] for s in samples]
    tensors = {
        "tokens": torch.from_numpy(np.concatenate([s.tokens[r] for s, r in zip(samples, real, strict=True)])),
        "lengths": torch.from_numpy(np.concatenate([s.lengths for s in samples])),
        "logprobs": torch.from_numpy(np.concatenate([s.logprobs[r] for s, r in zip(samples, real, strict=True)])),
        "rewards": torch.from_numpy(np.concatenate([g.rewards for g in groups])),
    }
    for name in MARKS:
        marks = [getattr(g, name) for g in groups]
        if any(m is not None for m in marks):
            each = [np.zeros(g.size, dtype=bool) if m is None else m for g, m in zip(groups, marks, strict=True)]
            tensors[name] = torch.from_numpy(np.concatenate(each))
    entries = [
        {
            "prompt": g.prompt.id,
            "size": g.size,
            "width": int(g.samples.tokens.shape[1]),
            "step": g.step,
            "version": g.version,
            "origin": g.origin,
            "marks": [n for n in MARKS if getattr(g, n) is not None],
        }
        for g in groups
    ]
    return tensors, entries


def _padded(flat: np.ndarray, lengths: np.ndarray, width: int, before: int) -> np.ndarray:
    """Return [G, width] of the responses that begin ``before`` values into ``flat``, with zeros behind each.

    Older checkpoints hold a block [responses, longest] instead, ``before`` being its row.
    """
    if flat.ndim == 2:
        return flat[before : before + len(lengths), :width].copy()
    block = np.zeros((len(lengths), width), dtype=flat.dtype)
    block[np.arange(width) < lengths[:, None]] = flat[before : before + int(lengths.sum())]
    return block


def unpack_groups(path: Path, entries: list[dict[str, Any]], prompts: dict[str, Prompt]) -> list[Group]:
    """Return the groups of :func:`pack_groups`; what lies behind a response's end is 0. prompts: by id."""
    tensors = {k: v.numpy() for k, v in load_file(path).items()}
    flat = "tokens" in tensors and tensors["tokens"].ndim == 1
    groups, start, place = [], 0, 0
    for e in entries:
        rows, start = slice(start, start + e["size"]), start + e["size"]
        lengths = tensors["lengths"][rows].copy()
        before, place = (place if flat else rows.start), place + int(lengths.sum())
        samples = Samples(
            _padded(tensors["tokens"], lengths, e["width"], before),
            lengths,
            _padded(tensors["logprobs"], lengths, e["width"], before),
        )
        groups.append(
            Group(
                prompts[e["prompt"]],
                tensors["rewards"][rows],
                e["step"],
                e["version"],
                samples,
                e["origin"],
                **{name: tensors[name][rows].copy() for name in e.get("marks", ())},
            )
        )
    return groups
