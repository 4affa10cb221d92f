"""verl 0.9.1's synchronous trainer with the methods of this project; 8 GPUs and vLLM, or CPU cores in the tests.

verl is neither copied nor edited: ``trainer.py`` overrides its hooks, ``worker.py`` is a mix-in for its workers and
computes the loss by the torch engine's pure functions, and ``plugin.py`` is what verl imports in each of its processes.
The CPU support is apart, in ``cpu.py`` and ``plugin.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bapo.experiments.schema import Config
    from bapo.store.files import Json


def train(config: Config) -> Json:
    """Train one run to its end, with verl in a process of its own; return its summary."""
    from bapo.engines.verl import launch

    return launch.train(config)
