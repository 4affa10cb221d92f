"""What every reader of a log returns, and what it is told beside the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bapo.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Tables:
    """What a log gives: frames like those of a run directory, and notes on what was assumed."""

    steps: pd.DataFrame
    groups: pd.DataFrame
    probe: pd.DataFrame
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """What the log does not say. batch: prompts a step; group: responses a prompt; points: probed steps.

    reward: the log's name of the reward to show, where the usual one is not wanted.
    """

    batch: int = 128
    group: int = 8
    points: int = 11
    reward: str = ""

    def __post_init__(self) -> None:
        for name in ("batch", "group"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)}: must be at least 1")


def no_groups() -> pd.DataFrame:
    import pandas as pd

    names = ("step", "prompt_id", "origin", "version", "generated_step", "rewards", "mean", "used", "reason")
    return pd.DataFrame({name: [] for name in names})


def no_probe() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({name: [] for name in ("step", "set", "prompt_id", "correct", "samples", "mean")})
