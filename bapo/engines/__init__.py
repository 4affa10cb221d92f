"""The two engines: ``torch`` (one process, CPU or one GPU) and ``verl`` (Ray, many GPUs). Methods know neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bapo.experiments.schema import Config
    from bapo.store.files import Json


def train(config: Config) -> Json:
    """Train one run with the engine that it asks for, from its last checkpoint on. Returns its summary.

    An engine is imported only where it is used: the torch engine imports torch, verl stays in a process of its own.
    """
    if config.engine == "verl":
        from bapo.engines.verl.launch import train as engine
    else:
        from bapo.engines.torch.trainer import train as engine
    return engine(config)
