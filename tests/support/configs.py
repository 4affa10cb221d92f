"""Change a composed configuration."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig


def put(config: Any, key: str, value: Any) -> None:
    """Set ``a__b`` or ``a.b``, in a mapping also where it is new."""
    *parents, name = key.replace("__", ".").split(".")
    for parent in parents:
        config = getattr(config, parent)
    if isinstance(value, dict) and isinstance(getattr(config, name), DictConfig):
        value = DictConfig(value)
    setattr(config, name, value)


def changed(config: Any, **values: Any) -> Any:
    """Return a copy with some keys set; ``a__b`` stands for a.b."""
    config = config.copy()
    for key, value in values.items():
        put(config, key, value)
    return config
