"""An update with the micro-batch of a run, by the engine that the run names: a process that ``gpu-check`` starts.

``python -m bapo.gpucheck.micro_batch KEY=VALUE ...`` takes the words of the run and prints what the update took.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bapo import engines
from bapo.errors import exit_status
from bapo.experiments.compose import compose_config
from bapo.gpu import devices


def main(words: Sequence[str]) -> int:
    """Try the micro-batch of the run that ``words`` name, and print what it took. Raises UserError."""
    config = compose_config(words)
    with devices.taken(int(config.device == "cuda")):  # an engine may start CUDA as soon as it is imported
        print(engines.update_micro_batch(config))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
