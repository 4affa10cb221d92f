"""A policy's shards on this rank: read, kept in host memory, and put for a while in the place of another policy's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule


def local(parameter: Tensor) -> Tensor:
    """Return this rank's shard of an FSDP2 parameter; the whole tensor if nothing is sharded."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def shards_of(module: nn.Module, ranks: int = 1) -> list[Tensor]:
    """Return this rank's shard of every parameter; the whole parameter where one rank holds the model.

    FSDP2 leaves what it last gathered in the parameters' place, and verl copies a model to host memory without waiting
    for the end: both are undone first. Raises RuntimeError for a parameter that is not sharded over several ranks.
    """
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    found = []
    for name, parameter in module.named_parameters():
        if ranks > 1 and not hasattr(parameter, "to_local"):
            raise RuntimeError(f"{name} is not sharded: a copy of it would be no shard of the policy")
        shard = local(parameter).detach()
        if shard.is_meta or (shard.numel() and not shard.untyped_storage().size()):
            raise RuntimeError(f"{name} has no memory: the engine has put the model away")
        found.append(shard)
    return found


def kept(shards: Sequence[Tensor]) -> list[Tensor]:
    """Return copies in host memory."""
    return [s.detach().to("cpu", copy=True) for s in shards]


def put(module: nn.Module, values: Sequence[Tensor], ranks: int = 1) -> None:
    """Write ``values`` into the module's shards."""
    with torch.no_grad():
        for shard, value in zip(shards_of(module, ranks), values, strict=True):
            shard.copy_(value)


@contextmanager
def swapped(module: nn.Module, values: Sequence[Tensor], ranks: int = 1) -> Iterator[None]:
    """Give the module other weights within the block; its own come back whatever happens in it.

    What runs within may move the model, so that its shards lie elsewhere afterwards.
    """
    current = kept(shards_of(module, ranks))
    put(module, values, ranks)
    try:
        yield
    finally:
        put(module, current, ranks)
