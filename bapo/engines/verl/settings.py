"""Read ``verl.<key>``, how verl runs a job. Nothing here imports verl."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from bapo.errors import UserError

#: a file for the job from the process that starts it: when the batch job ends
FACTS = "facts.json"


def get(config: DictConfig, key: str, default: Any) -> Any:
    """Return ``verl.<key>``, or ``default`` if it is not set."""
    value = OmegaConf.select(config.verl, key, default=None)
    return default if value is None else value


def overridden(config: DictConfig, key: str, default: Any) -> Any:
    """Return what ``verl.overrides`` says of a key of verl's, or ``default`` if nothing."""
    value = OmegaConf.select(OmegaConf.create(get(config, "overrides", {})), key, default=None)
    return default if value is None else value


def validation_sets(config: DictConfig) -> dict[str, tuple[int | None, int]]:
    """Return {set: (problems or None for all, samples a problem)} that verl validates on, at the steps of the probe.

    The probe's two sets with ``probe.samples``, and the benchmarks named by ``verl.validation`` with
    ``verl.validation_samples`` (32).
    """
    probe = config.probe
    sets: dict[str, tuple[int | None, int]] = {}
    if probe.prompts:
        sets |= {name: (probe.prompts, probe.samples) for name in ("train", "probe")}
    return sets | {str(name): (None, validation_samples(config)) for name in get(config, "validation", [])}


def validation_samples(config: DictConfig) -> int:
    samples = get(config, "validation_samples", 32)
    if not isinstance(samples, int) or samples < 1:
        raise UserError(f"verl.validation_samples={samples}: must be a number of at least 1")
    return samples
