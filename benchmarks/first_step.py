"""CPU seconds of a training process by part, to its first step, as JSON: ``python benchmarks/first_step.py WORDS``.

WORDS are those of ``python -m bapo train``. benchmarks/startup.py shows the parts; a child of the warm process does
without the imports. What wandb's own process takes belongs to its part.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from processes import family


def main(words: list[str]) -> None:
    seconds = {"before": spent()}

    def done(part: str) -> None:
        seconds[part] = spent() - sum(seconds.values())

    import wandb  # noqa: F401

    from bapo.engines.torch.trainer import Trainer
    from bapo.experiments.compose import compose_config
    from bapo.store import tracking

    done("imports")
    config = compose_config(words)
    done("configuration")
    with tempfile.TemporaryDirectory() as place:
        trainer = Trainer(config, Path(place), "benchmark")
        done("models and problems")
        tracker = tracking.start(config, Path(place), "benchmark")
        done("wandb")
        tracker.log(trainer._train_step(1), 1)
        done("first step")
        tracker.finish()
    done("end")
    print(json.dumps(seconds))


def spent() -> float:
    return sum(family(os.getpid()).values())


if __name__ == "__main__":
    main(sys.argv[1:])
