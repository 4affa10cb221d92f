"""A trained base for the benchmarks, made by the usual commands in a part of a run's time.

Its responses end where trained ones do, and some are right. Against a laptop's base it learns from 8,000 documents
(Countdown: with three numbers, none with a wrong target), in a third of the iterations, which takes 40 s.
``--smallest`` trains it just long enough for some of Countdown's responses to be right.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

DATA = {
    "countdown": (
        "data.split_sizes={base: 8000, train: 400, probe: 8, cd34: 400, cd4: 8}",
        "data.generator.noise=0",
        "data.generator.three_number_share=1.0",
    ),
    "geometry": ("data.split_sizes={base: 4000, train: 64, probe: 8, diagrams_val: 8, diagrams_test: 8}",),
}
ITERATIONS = {"countdown": 800, "geometry": 400}
SMALLEST = {"countdown": 400, "geometry": 100}


def overrides(task: str = "countdown", smallest: bool = False) -> tuple[str, ...]:
    """Return what makes a laptop's data and base of ``task`` this module's."""
    return (*DATA[task], f"base.iterations={(SMALLEST if smallest else ITERATIONS)[task]}")


def make(results: Path | None, *options: str, task: str = "countdown", smallest: bool = False) -> DictConfig:
    """Return the configuration of a laptop run of ``task``; data and base model are those of ``results``, or made."""
    from bapo.engines.torch.base import train_base
    from bapo.experiments.compose import compose_config
    from bapo.tasks.job import make_data

    common = ["tracking=none", f"task={task}", "threads=1", *options]
    if results:
        return compose_config([*common, f"paths.results={results}"])
    folder = tempfile.mkdtemp(prefix="bapo-benchmark-")
    config = compose_config([*common, *overrides(task, smallest), f"paths.results={folder}"])
    print(f"training a small base model in {folder}", flush=True)
    make_data(config)
    train_base(config)
    return config
