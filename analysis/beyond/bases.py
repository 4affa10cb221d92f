"""Base models of one kind: the same model, data and training of the base, drawn from another seed.

All training seeds of one block start from one base model, so their spread says nothing of another base. Where a study
has several bases of a kind, a difference is pooled over them, with the base as a level of resampling.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis import reading, statistics
from analysis.study import Block, Study

#: parts of a run's config.yaml that make its base model
MAKES = ("task", "data", "model", "base")
#: of those, what differs between bases of one kind
DRAWN = {"model": ("name", "title"), "base": ("seed",)}
#: resamplings behind a pooled interval
DRAWS = 4000


def kind(block: Block, study: Study) -> str:
    """Return what makes a block's base model but for its seed; "" where the runs do not say."""
    first = next(iter(block.methods.values()))[0]
    config = reading.config(first, study)
    if any(not isinstance(config.get(key), dict) for key in MAKES):
        return ""
    made = {key: {k: v for k, v in config[key].items() if k not in DRAWN.get(key, ())} for key in MAKES}
    return json.dumps(made, sort_keys=True)


def of_one_kind(blocks: Sequence[Block], study: Study) -> list[list[Block]]:
    """Return the blocks whose bases are draws of one kind, two or more of each."""
    kinds: dict[str, list[Block]] = {}
    for block in blocks:
        kinds.setdefault(kind(block, study), []).append(block)
    return [same for name, same in kinds.items() if name and len(same) > 1]


@dataclass(frozen=True)
class Pooled:
    """A difference over bases, seeds and problems, as a fraction.

    low, high: 95% of a bootstrap that draws bases, then the seeds of each, and the problems once for all; over_bases:
    the mean of the bases' differences with its t interval, B - 1 degrees of freedom; by_base: these differences.
    """

    low: float
    high: float
    over_bases: statistics.Estimate
    by_base: tuple[float, ...]

    @property
    def mean(self) -> float:
        return self.over_bases.mean


def pooled(tables: Sequence[Sequence[np.ndarray]], draws: int = DRAWS) -> Pooled:
    """Return the mean over bases. tables: of each base, of each benchmark, the paired differences [S, n].

    The bases share their problems; S may differ. Raises ValueError where they do not or there is one base.
    """
    shapes = {tuple(t.shape[1] for t in of_base) for of_base in tables}
    if len(tables) < 2 or len(shapes) > 1:
        raise ValueError("pooled needs two or more bases with the same benchmarks and problems")
    rng = np.random.default_rng(0)
    weights = [rng.multinomial(n, np.full(n, 1 / n), draws) / n for n in next(iter(shapes))]  # [draws, n] each
    # of each base, every seed's average over the drawn problems: [draws, S]
    seeds = [np.mean([w @ t.T for w, t in zip(weights, of_base, strict=True)], axis=0) for of_base in tables]
    drawn = np.zeros(draws)
    for _ in tables:
        values = np.stack([(x * _resampled(rng, x.shape[1], draws)).mean(axis=1) for x in seeds])  # [B, draws]
        drawn += values[rng.integers(len(tables), size=draws), np.arange(draws)] / len(tables)
    by_base = tuple(float(np.mean([t.mean() for t in of_base])) for of_base in tables)
    low, high = np.quantile(drawn, [0.5 - statistics.CONFIDENCE / 2, 0.5 + statistics.CONFIDENCE / 2])
    return Pooled(float(low), float(high), statistics.clustered(np.array(by_base)), by_base)


def _resampled(rng: np.random.Generator, count: int, draws: int) -> np.ndarray:
    return rng.multinomial(count, np.full(count, 1 / count), draws)


def named(blocks: Sequence[Block]) -> dict[str, Any]:
    """Return the columns that say whose pooled row it is."""
    return {"task": blocks[0].task, "model": f"{blocks[0].model} over {len(blocks)} bases"}


def few(count: int) -> str:
    """Say how little a number of bases is."""
    return (
        f"{count} base models are very few: a bootstrap over {count} of them understates how much bases differ, and "
        f"the t interval over their differences has {count - 1} degree{'' if count == 2 else 's'} of freedom. Read the "
        "bases' own differences first."
    )
