"""Tuned methods: the variants that a setting names under ``tuned``, laid over the methods of a study that asks for it.

The choice is made by the study ``tuning`` on held-out problems (docs/tuning.md). It belongs to no identity: a tuned run
is the run of a method with variants, like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omegaconf import DictConfig

from bapo.experiments import layers, places
from bapo.experiments.cells import require_name

Choices = Mapping[str, Sequence[str]]


def of_setting(config: DictConfig) -> dict[str, list[str]]:
    """Return method -> variants as the setting of a configuration names them.

    Raises UserError naming the setting and a method or variant that does not exist.
    """
    path = places.file_of("setting", f"{config.scale.name}_{config.task.name}")
    choices = {str(method): list(variants) for method, variants in (config.tuned or {}).items()}
    for method, variants in choices.items():
        require_name(path, f"tuned.{method}", "method", "+".join((method, *variants)))
    return choices


def chosen(choices: Choices, method: str) -> list[str]:
    """Return the variants that tuning adds to ``method``, which may carry variants of its own.

    A method that ``choices`` does not name takes those of the method that it derives from, down its defaults lists
    (``bapo_without_x2`` those of ``bapo``), less what it is there to set itself: ``bapo+v10`` keeps its v, ``bapo+v1``
    too.
    """
    name, *own = method.split("+")
    stated = {key for variant in own for key in layers.keys_of(variant)}
    at: str | None = name
    while at is not None and at not in choices:
        stated |= layers.stated_by(at)
        at = layers.parent_of(at)
    variants = choices[at] if at is not None else ()
    return [variant for variant in variants if not layers.set_twice(layers.keys_of(variant), stated)]


def applied(choices: Choices, method: str) -> str:
    """Return ``method`` with what tuning adds to it, before its own variants: bapo+rate_4e-4+rollouts."""
    name, *own = method.split("+")
    return "+".join((name, *chosen(choices, method), *own))
