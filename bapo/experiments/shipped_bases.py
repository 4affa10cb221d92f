"""The base models that come with the suite: float16 weights in experiments/base/, found by what made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bapo.experiments import places
from bapo.validate import parse_yaml


@dataclass(frozen=True)
class Shipped:
    """One file of weights. path: safetensors; sha256: of the file, 64 hex digits."""

    path: Path
    sha256: str


def index_file() -> Path:
    """Return the file that names the weights, written by experiments/base/make.py."""
    return places.EXPERIMENTS / "base" / "index.yaml"


@cache
def index() -> Mapping[str, Shipped]:
    """Return every file of weights by its recipe, :func:`bapo.experiments.identity.base_recipe`."""
    path = index_file()
    entries = parse_yaml(path) if path.exists() else {}
    return {entry["recipe"]: Shipped(path.with_name(name), entry["sha256"]) for name, entry in entries.items()}
