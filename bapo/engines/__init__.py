"""The two engines: ``torch`` (one process, CPU or one GPU) and ``verl`` (Ray, many GPUs). Methods know neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bapo.experiments.schema import Config
    from bapo.store.files import Json


def train(config: Config) -> Json:
    """Train one run with the engine that it asks for, from its last checkpoint on. Returns its summary.

    An engine is imported only where it is used: the torch engine imports torch, verl stays in a process of its own.
    Raises UserError, Interrupted and, with verl, JobFailed, as the engine does.
    """
    if config.engine == "verl":
        from bapo.engines.verl.launch import train as engine
    else:
        from bapo.engines.torch.trainer import train as engine
    return engine(config)


def update_micro_batch(config: Config) -> str:
    """Make an update with a run's micro-batch; return what it took in one line. Raises UserError as the engine does."""
    if config.engine == "verl":
        from bapo.engines.verl.micro_batch import update as engine
    else:
        from bapo.engines.torch.micro_batch import update as engine
    return engine(config)
