"""A job on GPUs of its own, in an environment that fits them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from omegaconf import DictConfig

from bapo.gpu import devices, environment


@contextlib.contextmanager
def own_gpus(config: DictConfig, count: int, modules: Sequence[str] = ()) -> Iterator[None]:
    """Hold the ``count`` GPUs that a job asks for (bapo/plan/resources.py), and see no others.

    modules: packages that are worth a look before the work begins. A job that asks for none sees none: with device=auto
    it would start CUDA on a GPU that another job has. Raises UserError if there are too few GPUs or the environment
    does not fit them.
    """
    if not count:
        if config.device == "cpu" or not devices.visible():
            yield
            return
        if config.device == "auto" and config.model.kind == "pretrained":
            print("device=auto: this job takes no GPU; training and evaluation do with device=cuda", file=sys.stderr)
    with devices.taken(count):
        if modules:
            environment.require(count, modules)
        yield
