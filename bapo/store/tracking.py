"""Experiment tracking: wandb, offline by default, or none. The run directory, not tracking, is the source of truth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bapo.validate import plain

if TYPE_CHECKING:
    from bapo.experiments.schema import Config


class NoTracking:
    def log(self, metrics: dict[str, float], step: int) -> None:
        """Record nothing."""

    def finish(self) -> None:
        """Record nothing."""


class WandbTracking(NoTracking):
    """A wandb run in the run directory; needs neither account nor network in offline mode."""

    def __init__(self, config: Config, folder: Path, identity: str) -> None:
        # wandb reads the mode for its own telemetry here: offline, it would load a web client and try the network
        os.environ.setdefault("WANDB_MODE", config.tracking.mode)
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        # the packages are in the manifest; listing all takes 0.25 s
        quiet = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True, x_save_requirements=False)
        self.run = wandb.init(
            dir=str(folder),
            mode=config.tracking.mode,
            project=config.tracking.project,
            group=f"{config.scale.name}/{config.task.name}/{config.model.name}",
            name=f"{config.method.name}-seed{config.seed}",
            tags=[config.scale.name, config.task.name, config.method.name],
            config={**plain(config), "identity": identity},
            settings=quiet,
        )
        # wandb would write the summary of all metrics at every step, half of its file: finish() writes the last one
        self.run.define_metric("*", summary="none")
        self.last: dict[str, float] = {}

    def log(self, metrics: dict[str, float], step: int) -> None:
        known = {k: v for k, v in metrics.items() if v == v}
        self.run.log(known, step=step)
        self.last |= known

    def finish(self) -> None:
        self.run.summary.update(self.last)
        self.run.finish()


def start(config: Config, folder: Path, identity: str) -> NoTracking:
    return WandbTracking(config, folder, identity) if config.tracking.kind == "wandb" else NoTracking()
