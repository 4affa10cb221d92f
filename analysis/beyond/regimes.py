"""Difficulty regimes: for which share of training prompts at 0/8 BAPO beats GRPO, at equal steps, rollouts, updates
and compute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import reading, results, statistics, style, text
from analysis.page import Page, Table, at_scale
from analysis.results import AVERAGE
from analysis.study import Block, Study
from analysis.tables.comparison import seeds_of
from bapo.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SUBJECT = "bapo"
#: what both runs have the same of -> (the method that ends with it, the totals of summary.json that it sums)
BUDGETS = {
    "steps": (SUBJECT, ("steps",)),
    "rollouts": (f"{SUBJECT}+rollouts", ("rollouts",)),
    "updates": (f"{SUBJECT}+updates", ("updates",)),
    "compute": (f"{SUBJECT}+compute", ("forward_flops", "backward_flops")),
}
#: verdict -> (colour, marker)
LOOKS = {"better": (style.BLUE, "o"), "worse": (style.VERMILLION, "v"), "cannot tell": (style.GREY, "s")}


@dataclass(frozen=True)
class Regime:
    """BAPO minus the reference from one base model, under one budget; the average of the benchmarks.

    shares: of prompts without a correct answer in ``samples`` of the base model, by seed; prompts: probed ones.
    difference: its error covers new problems and new seeds, seeds paired (problems alone where there is one seed).
    by_seed: seed -> difference; used: BAPO's share of what should be equal, 1 where it is; adjusted: Holm's p over the
    study; seeds_p: the paired t test over seeds, on these problems; short: seeds whose run ended before its budget.
    """

    block: Block
    budget: str
    shares: tuple[float, ...]
    prompts: int
    samples: int
    difference: statistics.Estimate
    by_seed: Mapping[int, float]
    used: float
    seeds_p: float
    adjusted: float = math.nan
    short: tuple[int, ...] = ()

    @property
    def share(self) -> float:
        return float(np.mean(self.shares))

    @property
    def verdict(self) -> str:
        if not self.adjusted < results.LEVEL:
            return "cannot tell"
        return "better" if self.difference.mean > 0 else "worse"


# ------------------------------------------------------------------------------------------------ numbers


def start(block: Block, study: Study) -> tuple[tuple[float, ...], int, int]:
    """Return shares, prompts and samples of the reference's probes of step 0. Raises UserError where there is none."""
    probes = reading.probes(block, study.reference, study)
    lacking = [seed for seed, frame in probes.items() if 0 not in frame]
    if lacking:
        raise UserError(f"{block.title}, seed {lacking[0]}: the base was not probed (no step 0); `{study.command}`")
    first = next(iter(probes.values()))
    shares = tuple(float((frame[0] == 0).mean()) for frame in probes.values())
    return shares, len(first), first.attrs["samples"]


def _total(block: Block, method: str, keys: Sequence[str], study: Study) -> float:
    summaries = [reading.summary(c.run, study) for c in block.methods[method]]
    return float(np.mean([sum(({**s, **s.get("totals", {})}).get(k, math.nan) for k in keys) for s in summaries]))


def compare(study: Study) -> list[Regime]:
    """Return every base model and budget of the study, Holm's correction over all of them."""
    regimes: list[Regime] = []
    for block in study.blocks:
        rows = {r.method: r for r in results.collect(block, study)}
        if study.reference not in rows:
            continue
        hard = start(block, study)
        for budget, (method, keys) in BUDGETS.items():
            if method not in rows:
                continue
            pair = results.paired(rows[method], rows[study.reference], AVERAGE)
            if pair is None:
                continue
            p = statistics.clustered(np.array(list(pair.by_seed.values()))).p
            used = _total(block, method, keys, study) / _total(block, study.reference, keys, study)
            short = tuple(reading.short_of_budget(block.methods[method], study))
            regimes.append(Regime(block, budget, *hard, pair.difference.tested, pair.by_seed, used, p, short=short))
    adjusted = statistics.holm([r.difference.p for r in regimes])
    return [replace(r, adjusted=float(p)) for r, p in zip(regimes, adjusted, strict=True)]


def notes(study: Study, regimes: Sequence[Regime]) -> list[str]:
    seeds = text.counted([len(r.by_seed) for r in regimes], "seed")
    return [
        *([study.note] if study.note else []),
        "Share at 0/8: training prompts without a correct answer in the probe at step 0, mean over seeds.",
        f"Differences: points of average accuracy, last checkpoints, {seeds}, paired by seed and problem; 95% interval "
        "over problems and seeds, not corrected.",
        f"better, worse: p below {results.LEVEL:.2g} after Holm's correction over the {len(regimes)} comparisons.",
        "used: BAPO's amount of what is held equal, divided by the reference's; not reached: seeds whose run ended "
        "before its budget.",
    ]


# ------------------------------------------------------------------------------------------------ files


def _cell(r: Regime | None) -> str:
    if r is None:
        return text.MISSING
    short = f", not reached: {seeds_of(r.short)}" if r.short else ""
    return f"{text.change(r.difference)}: {r.verdict} [used {text.number(r.used, 2)}{short}]"


def frame(regimes: Sequence[Regime]) -> Any:
    """Return a DataFrame, one row a base model and budget; accuracies in points."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "task": r.block.task,
                "model": r.block.model,
                "model_title": r.block.model_title,
                "share_at_zero": r.share,
                "lowest_share": min(r.shares),
                "highest_share": max(r.shares),
                "prompts": r.prompts,
                "samples": r.samples,
                "equal": r.budget,
                "used": r.used,
                "not_reached": len(r.short),
                "seeds": len(r.by_seed),
                "difference": 100 * r.difference.mean,
                **text.points(r.difference, "se", "low", "high"),
                "p": r.difference.p,
                "p_holm": r.adjusted,
                "p_seeds_only": r.seeds_p,
                "verdict": r.verdict,
                **{f"seed_{s}": 100 * d for s, d in r.by_seed.items()},
            }
            for r in regimes
        ]
    )


def write(study: Study, out: Path) -> list[Path]:
    """regimes.csv, .md and .tex, and regimes_figure.pdf, .png, .svg and .csv. Raises UserError without a comparison."""
    regimes = compare(study)
    if not regimes:
        wanted = ", ".join(method for method, _ in BUDGETS.values())
        raise UserError(f"study {study.name}: no base has runs of {study.reference} and of one of {wanted}")
    names = SUBJECT.upper(), regimes[0].block.plain_title(study.reference)
    header = ["Base", "Share at 0/8", *(f"Equal {b}" for b in BUDGETS)]
    bases: dict[str, dict[str, Regime]] = {}
    for r in sorted(regimes, key=lambda r: r.share):  # the easiest start first
        bases.setdefault(r.block.title, {})[r.budget] = r
    cells = [
        [title, f"{100 * next(iter(found.values())).share:.1f}%", *(_cell(found.get(budget)) for budget in BUDGETS)]
        for title, found in bases.items()
    ]
    table = Table(f"{names[0]} minus {names[1]}, average accuracy", header, cells, "lr" + "l" * len(BUDGETS))
    data = frame(regimes)
    page = Page(at_scale("Difficulty regimes", study.scale), [table], notes(study, regimes))
    with style.settings():
        fig = _figure(data, names, study.note)
        drawn = style.save(fig, data, out, "regimes_figure", f"{names[0]} minus {names[1]} by difficulty")
    return page.write(out, "regimes", data) + drawn


def _figure(frame: pd.DataFrame, names: tuple[str, str], note: str) -> Figure:
    """Draw the difference against how hard the training prompts are, a panel a budget."""
    budgets = list(dict.fromkeys(frame["equal"]))
    caption = (
        f"{names[0]} minus {names[1]} in points of average accuracy, against the share of training prompts without a "
        "correct answer before training: one point a base model, bar: 95% interval over problems and seeds, seeds "
        f"paired; better and worse: after Holm's correction. {note}"
    )
    fig, panels = style.grid(caption, len(budgets), max(2, len(budgets)), sharey=True)
    for axes, budget in zip(panels, budgets, strict=True):
        axes.axhline(0, color="#444444", linewidth=0.8)
        for verdict, (colour, marker) in LOOKS.items():
            here = frame[(frame["equal"] == budget) & (frame["verdict"] == verdict)]
            spread = [here["difference"] - here["low"], here["high"] - here["difference"]]
            look: dict[str, Any] = {"color": colour, "capsize": 2, "markersize": 5, "linewidth": 1.2, "label": verdict}
            if len(here):
                axes.errorbar(100 * here["share_at_zero"], here["difference"], yerr=spread, fmt=marker, **look)
        axes.set_xlim(0, 100)
        axes.set_xlabel("share at 0/8 (%)")
        style.title(axes, f"equal {budget}")
    panels[0].set_ylabel("difference (points)")
    style.legend(fig, panels)
    return fig
