"""Probes, repeated samples of a fixed set of prompts at some steps of a run, and fair ways to compare them.

A prompt at 0/G has rarely a chance of exactly 0: an UNCHANGED base sampled again also "solves" some, and loses others.
Two ways to count what training changed:

within  a run, as the paper does: start and end from the same run. The probes of one run share their random numbers
        (one fixed key a run), so an unchanged model would repeat its answers: this count has no fair chance level.
across  seeds: prompts are chosen, or starting points taken, from ANOTHER seed's probe of the same base, and what
        happened is read from the seed's own probe: at a later step for the trained model, at step 0 for the unchanged
        one. Neither owes anything to the samples that the prompts were chosen by, so the two may be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import reading
from analysis.reading import NotRecorded
from analysis.study import Block, StudyFile
from bapo.errors import UserError
from bapo.store.files import PROBE

#: (correct answers of each prompt at the start [n], now [n]) -> a number or an array, the same shape for every pair
Value = Callable[[np.ndarray, np.ndarray], Any]


@dataclass(frozen=True)
class Probes:
    """The probes of one method.

    seeds [S]; steps [T]: those that every seed was probed at, and the last of each; prompts: ids, of each seed [n];
    correct: answers of ``samples``, integers, of each seed [T, n]. n differs between seeds only where their prompts do.
    """

    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    prompts: tuple[tuple[str, ...], ...]
    correct: tuple[np.ndarray, ...]
    samples: int

    @classmethod
    def of(cls, frames: Mapping[int, pd.DataFrame], samples: int) -> Probes:
        """Return the probes of frames of correct answers, one a seed: rows prompts, columns steps."""
        ordered = reading.at_common_steps([f.sort_index().T for f in frames.values()])
        prompts = tuple(tuple(map(str, f.columns)) for f in ordered)
        correct = tuple(f.to_numpy(np.int64) for f in ordered)
        return cls(tuple(frames), tuple(map(int, ordered[0].index)), prompts, correct, samples)

    @property
    def same_prompts(self) -> bool:
        return all(p == self.prompts[0] for p in self.prompts)

    def at(self, step: int) -> list[np.ndarray]:
        """Return the correct answers [n] of each seed at a step that all were probed at."""
        return [c[self.steps.index(step)] for c in self.correct]

    @property
    def obstacle(self) -> str:
        """Return why seeds cannot be compared with each other's base; "" where they can."""
        if not self.steps or self.steps[0] != 0:
            return "the base was not probed (no step 0)"
        if len(self.seeds) < 2:
            return "one seed: what chance alone shows needs a second sampling of the base"
        if not self.same_prompts:
            return "the seeds were probed on different prompts"
        start = self.at(0)
        if any(np.array_equal(x, y) for i, x in enumerate(start) for y in start[:i]):
            return "the seeds share their samples of the base, so chance cannot be told"
        return ""

    def within(self, step: int, value: Value) -> np.ndarray:
        """Return value(the seed's first probe, its probe at the step) of each seed [S, ...]."""
        pairs = zip(self.at(self.steps[0]), self.at(step), strict=True)
        return np.stack([np.asarray(value(x, y)) for x, y in pairs])

    def across(self, step: int, value: Value) -> np.ndarray:
        """Return the mean over the OTHER seeds of value(their probe of the base, the seed's own at the step) [S, ...].

        Step 0 is the unchanged base. Raises NotRecorded where there is an :attr:`obstacle`.
        """
        if self.obstacle:
            raise NotRecorded(self.obstacle)
        start, now = self.at(0), self.at(step)
        others = [[x for o, x in enumerate(start) if o != s] for s in range(len(now))]
        return np.stack([np.mean([value(x, y) for x in xs], axis=0) for xs, y in zip(others, now, strict=True)])


def read(block: Block, method: str, study: StudyFile, probed: str = "train", prompts: str = "") -> Probes:
    """Return the probes of one method of a block.

    probed: the set, "train" or "probe" for held-out prompts; prompts: a regular expression that is found in the ids.
    Raises UserError where a step or prompt is missing, NotRecorded where no such prompt was probed.
    """
    samples = 0
    frames: dict[int, pd.DataFrame] = {}
    for cell in block.methods[method]:
        frame = reading.table(cell, PROBE, study, ["step", "set", "prompt_id", "correct", "samples"])
        frame = frame[(frame["set"] == probed) & frame["prompt_id"].str.contains(prompts)]
        if frame.empty:
            raise NotRecorded(f"{cell.run / PROBE}: no prompt of '{probed}' was probed; set probe.prompts above 0")
        (frames[cell.seed],) = reading.rectangles(frame, "prompt_id", "step", ["correct"], cell.run / PROBE, study)
        samples = max(samples, int(frame["samples"].max()))
    return Probes.of(frames, samples)


def of_block(block: Block, study: StudyFile) -> dict[str, Probes]:
    """Return the probes of every method of a block. Raises UserError where two runs have other prompts."""
    probed = {method: read(block, method, study) for method in block.methods}
    first = next(iter(probed.values()))
    if any(p.prompts[0] != first.prompts[0] or not p.same_prompts for p in probed.values()):
        raise UserError(f"{study.name}: the runs of {block.title} do not share probes of the same prompts")
    return probed


# ------------------------------------------------------------------------------------------------ what is counted


def histogram(correct: np.ndarray, samples: int) -> np.ndarray:
    """Return how many prompts have 0, 1 .. G correct answers [G+1], from integers [n]."""
    return np.bincount(correct, minlength=samples + 1)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the total variation distance of histograms [G+1]: at least this share of prompts has another accuracy."""
    return float(np.abs(a / a.sum() - b / b.sum()).sum() / 2)


def migration(initial: np.ndarray, current: np.ndarray, samples: int) -> np.ndarray:
    """Return counts of prompts [G+1, G+1] by correct answers at the start (row) and now (column).

    initial, current: integers [n]; samples: G.
    """
    counts = np.zeros((samples + 1, samples + 1), dtype=np.int64)
    np.add.at(counts, (initial, current), 1)
    return counts


def degraded(counts: np.ndarray) -> float:
    """Return the share of the prompts below the diagonal: fewer correct answers now than at the start."""
    return float(np.tril(counts, -1).sum() / counts.sum())


def share(chosen: np.ndarray, hit: np.ndarray) -> float:
    """Return the share of the chosen that were hit; both in [0, 1], of one shape. NaN where none was chosen."""
    total = float(chosen.sum())
    return float((chosen * hit).sum() / total) if total else float("nan")


def improved(initial: np.ndarray, current: np.ndarray) -> float:
    """Return the share of prompts without a correct answer at the start that have one now; NaN without such prompts."""
    return share(initial == 0, current > 0)


def improved_across(probes: Probes, step: int) -> tuple[float, list[float]]:
    """Return the share solved now of the prompts at 0/G in another seed's base: (over all pairs of seeds, of each).

    Raises NotRecorded as :meth:`Probes.across`.
    """
    hard = probes.across(step, lambda base, now: base == 0)  # [S, n]: in which share of the other seeds
    solved = np.stack(probes.at(step)) > 0
    return share(hard, solved), [share(h, s) for h, s in zip(hard, solved, strict=True)]
