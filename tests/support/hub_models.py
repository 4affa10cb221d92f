"""Where the studies use models from the hub."""

from __future__ import annotations

from analysis.products import at_scale
from bapo.experiments import studies
from bapo.experiments.places import options

#: scales whose models all come from the hub
SCALES = ("paper", "single_gpu")


def used() -> list[tuple[str, str, str]]:
    """(scale, task, model) of every model at these scales, each once."""
    found = {
        (scale, *start): None
        for scale in SCALES
        for name in at_scale(options("study"), scale)
        for start in dict.fromkeys((c.task, c.model) for c in studies.load_study(name, scale).cells)
    }
    return list(found)
