"""Groups as files of a checkpoint, in both engines: those of replay buffers and of rollouts under way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from bapo.algorithm.rollouts import Group, Prompt, Samples
from bapo.store.files import Json

#: optional fields of a group, one value per response
RESPONSE_FIELDS = ("off_policy", "unfinished")
#: the optional field of a group with one value per token
STEP_LOGPROBS = "step_logprobs"


def pack_groups(groups: list[Group]) -> tuple[dict[str, Tensor], list[Json]]:
    """Return the groups as tensors, and a plain entry for each.

    The tensors: tokens int32 and logprobs float32 [sum of lengths], response after response without padding; lengths
    int32, rewards float32 and the marks bool, all [responses]. step_logprobs, where any group has them, are like
    logprobs.
    """
    if not groups:
        return {"empty": torch.zeros(1)}, []
    samples = [g.samples for g in groups]
    real = [s.mask for s in samples]
    parts = {
        "tokens": [s.tokens[s.mask] for s in samples],
        "logprobs": [s.logprobs[s.mask] for s in samples],
        "lengths": [s.lengths for s in samples],
        "rewards": [g.rewards for g in groups],
    }
    step_logprobs = [g.step_logprobs for g in groups]
    if any(values is not None for values in step_logprobs):
        parts[STEP_LOGPROBS] = [
            np.zeros(int(r.sum()), np.float32) if v is None else v[r] for v, r in zip(step_logprobs, real, strict=True)
        ]
    for name in RESPONSE_FIELDS:
        marks = [getattr(g, name) for g in groups]
        parts[name] = [np.zeros(g.size, bool) if m is None else m for g, m in zip(groups, marks, strict=True)]
    entries = [
        {
            "prompt": g.prompt.id,
            "size": g.size,
            "width": int(g.samples.tokens.shape[1]),
            "step": g.step,
            "version": g.version,
            "origin": g.origin,
            "marks": [n for n in (*RESPONSE_FIELDS, STEP_LOGPROBS) if getattr(g, n) is not None],
        }
        for g in groups
    ]
    return {name: torch.from_numpy(np.concatenate(arrays)) for name, arrays in parts.items()}, entries


def unpack_groups(path: Path, entries: list[Json], prompts: dict[str, Prompt]) -> list[Group]:
    """Return the groups of :func:`pack_groups`; what lies behind a response's end is 0. prompts: by id."""
    tensors = {k: v.numpy() for k, v in load_file(path).items()}
    groups, row, place = [], 0, 0
    for e in entries:
        rows = slice(row, row + e["size"])
        lengths = tensors["lengths"][rows].copy()
        values, real = slice(place, place + int(lengths.sum())), np.arange(e["width"]) < lengths[:, None]
        row, place = rows.stop, values.stop
        blocks = {}
        for name in ("tokens", "logprobs", *(n for n in e["marks"] if n == STEP_LOGPROBS)):
            blocks[name] = np.zeros(real.shape, dtype=tensors[name].dtype)
            blocks[name][real] = tensors[name][values]
        marks = {name: tensors[name][rows].copy() for name in e["marks"] if name in RESPONSE_FIELDS}
        groups.append(
            Group(
                prompts[e["prompt"]],
                tensors["rewards"][rows],
                e["step"],
                e["version"],
                Samples(blocks["tokens"], lengths, blocks["logprobs"]),
                e["origin"],
                off_policy=marks.get("off_policy"),
                unfinished=marks.get("unfinished"),
                step_logprobs=blocks.get(STEP_LOGPROBS),
            )
        )
    return groups
