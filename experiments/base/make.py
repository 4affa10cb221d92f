"""Train the laptop's base models anew and make them the ones that come with the suite.

    python experiments/base/make.py [--names] [TASK ...]

The weights are rounded to float16, and index.yaml gets their digest and the recipe that made them. Runs that start from
these models then have other identities, and train again. ``--names`` trains nothing: the weights stay, and the index
names them by the recipe as the present code says it, for a change of the code that changes its digest alone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_model

from bapo.engines.shared import models
from bapo.engines.torch.base_model import train_base
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import base_recipe
from bapo.experiments.places import base_directory
from bapo.experiments.schema import Config
from bapo.store.files import sha256

INDEX = Path(__file__).with_name("index.yaml")
HEADER = "# Written by make.py. recipe: bapo/experiments/identity.py, base_recipe; sha256: of the file.\n"


def trained(task: str, results: Path) -> Config:
    """Train the base model of ``task`` in a folder for results. Returns its configuration."""
    config = compose_config([f"task={task}", "base.source=train", "tracking=none", f"paths.results={results}"])
    train_base(config)
    return config


def ship(config: Config) -> None:
    """Write the weights of a trained base model, and name them in the index."""
    model, _ = models.load(base_directory(config) / "checkpoint", config, torch.device("cpu"))
    save_model(model.half(), weights_of(config))
    name(config)


def weights_of(config: Config) -> Path:
    return INDEX.with_name(f"{config.scale.name}_{config.task.name}.safetensors")


def name(config: Config) -> None:
    """Write the recipe and the digest of a task's weights into the index."""
    weights = weights_of(config)
    entries = yaml.safe_load(INDEX.read_text(encoding="utf-8")) if INDEX.exists() else {}
    entries[weights.name] = {"recipe": base_recipe(config), "sha256": sha256(weights)}
    INDEX.write_text(HEADER + yaml.safe_dump(entries), encoding="utf-8")


if __name__ == "__main__":
    tasks = [word for word in sys.argv[1:] if word != "--names"] or ["countdown", "geometry", "mathematics"]
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            if "--names" in sys.argv:
                name(compose_config([f"task={task}"]))
            else:
                ship(trained(task, Path(folder)))
