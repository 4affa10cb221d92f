"""The theory monitor: the terms of Theorem 3.2 along BAPO's runs, and how often its bound says nothing.

Of every step: K1 to K3, the estimated total-variation distances of the trained policy to the policies that wrote the
batch, and the bound

- as printed: sum over the subsets in the batch of L_i - 2 K_i TV(pi, alpha_i) - 2 TV(pi_t, alpha_i);
- repaired: factor 1 for both 2s (rewards are in [0, 1]), each subset weighted by its share of the batch's prompts, and
  K2 over everything that eq. 6 admits (:func:`bapo.algorithm.theory.k2_worst`).

TV(pi_t, alpha_i) is not recorded. It is 0 for X2, and for X1 where the rollout policy is the current one; elsewhere 0
is put in its place, which only raises the bound. Ceilings are the largest values that any L_i would allow
(:func:`bapo.algorithm.theory.ceiling`). :data:`BIAS` says what is wrong with the estimate of TV.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import reading, style, text
from analysis.figures import frames
from analysis.page import Page, Table, at_scale
from analysis.study import Block, Study
from bapo.algorithm import theory
from bapo.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PARTS = (1, 2, 3)
COLUMNS = ["staleness", *(f"{name}{i}" for name in ("x", "tv_x", "k") for i in PARTS)]
#: of the ceilings and of the estimates, where a run has them
FORMS = {
    "ceiling_printed": "as printed, its largest value",
    "ceiling_repaired": "repaired, its largest value",
    "bound_printed": "as printed, estimated",
    "bound_repaired": "repaired, estimated",
}
#: column -> its label, colour and dash in the figure
TV_LOOKS = {f"tv_{part}": (*look, "-") for part, look in style.PARTS.items()}
BOUND_LOOKS = {
    "ceiling_printed": ("as printed, largest value", style.BLACK, "-"),
    "ceiling_repaired": ("repaired, largest value", style.PURPLE, "-"),
    "bound_printed": ("as printed, estimated", style.BLACK, (0, (4, 1.2))),
    "bound_repaired": ("repaired, estimated", style.PURPLE, (0, (4, 1.2))),
}
BIAS = (
    "TV is the mean of |pi/alpha - 1| / 2 over the responses of the step's mini-batches. Each mini-batch has its own "
    "policy, so the whole step's distance is understated; responses that alpha seldom draws are missed; and responses "
    "stand in the batch because of their rewards, which moves the mean in either direction."
)


def worst_k2(config: Mapping[str, Any]) -> float | None:
    """Return K2 over all that eq. 6 admits in groups of G, NaN where that is nothing; None: no variant of BAPO."""
    c1, group = config.get("method", {}).get("c1"), config.get("train", {}).get("group_size")
    if c1 is None or group is None:
        return None
    try:
        return theory.k2_worst(float(c1), int(group))
    except ValueError:  # nothing lies between c1 and 1
        return math.nan


def step_terms(row: Mapping[str, float], k2: float) -> dict[str, float]:
    """Return the bound's forms in a row of steps.parquet; NaN where the batch is empty or a term is unknown.

    k2: the worst case.
    """
    present = [i for i in PARTS if row[f"x{i}"] > 0]
    total = sum(row[f"x{i}"] for i in present)
    found = dict.fromkeys(FORMS, math.nan if not present else 0.0)
    for i in present:
        tv, printed = float(row[f"tv_x{i}"]), float(row[f"k{i}"])
        gain = float(row.get(f"surrogate_x{i}", math.nan))
        worst = k2 if i == 2 else printed
        for form, k, factor, weight in (("printed", printed, 2.0, 1.0), ("repaired", worst, 1.0, row[f"x{i}"] / total)):
            unknown = math.isnan(k) or math.isnan(tv)  # the formulas' comparisons would take NaN for 0
            largest = math.nan if unknown else theory.ceiling(k, tv, factor=factor)
            bound = math.nan if unknown or math.isnan(gain) else theory.lower_bound([gain], k, tv, 0.0, factor)
            found[f"ceiling_{form}"] += weight * largest
            found[f"bound_{form}"] += weight * bound
    return found


def monitor(block: Block, method: str, study: Study) -> pd.DataFrame | None:
    """Return a row for each seed and step, the terms and the forms of the bound; None if the method is not BAPO's."""
    import pandas as pd

    parts = []
    for cell in block.methods[method]:
        k2 = worst_k2(reading.config(cell, study))
        if k2 is None:
            return None
        frame = reading.table(cell, "steps.parquet", study)
        extra = [c for c in (f"surrogate_x{i}" for i in PARTS) if c in frame]
        rows = frame[["step", *COLUMNS, *extra]]
        terms = pd.DataFrame([step_terms(r, k2) for r in rows.to_dict("records")], columns=list(FORMS))
        names = {**block.keys(method), "seed": cell.seed}
        parts.append(pd.concat([rows.reset_index(drop=True), terms], axis=1).assign(k2_repaired=k2, **names))
    every = pd.concat(parts, ignore_index=True)
    return every[[*names, *(c for c in every if c not in names)]]


# ------------------------------------------------------------------------------------------------ the table


def _silent(values: pd.Series) -> str:
    """Say in how many steps the bound promises no improvement: not positive, or not known."""
    steps, unknown, not_positive = len(values), int(values.isna().sum()), int((values <= 0).sum())
    if unknown == steps:
        return "not recorded"
    detail = f", {unknown} unknown" if unknown else ""
    return f"{100 * (unknown + not_positive) / steps:.1f}% ({not_positive} of {steps} steps not positive{detail})"


def _terms(frame: pd.DataFrame) -> list[str]:
    """Return the range of each constant, and median and 95th percentile of each TV over the steps that have it."""
    cells = []
    for name in ("k1", "k2", "k2_repaired", "k3"):
        values = frame[name].dropna()
        ends = [f"{v:.2f}" for v in (values.min(), values.max())] if len(values) else [text.MISSING]
        cells.append(" to ".join(dict.fromkeys(ends)))
    for i in PARTS:
        tv = frame[f"tv_x{i}"].dropna()
        cells.append(f"{tv.median():.3f} ({tv.quantile(0.95):.3f}; {len(tv)})" if len(tv) else text.MISSING)
    return cells


def tables(frames: Sequence[tuple[Block, str, pd.DataFrame]]) -> list[Table]:
    """Return what the runs' terms were, and how often each form of the bound says nothing."""
    terms, silent = [], []
    for block, method, frame in frames:
        name = f"{block.title}, {block.method_title(method).lstrip('+')}"
        terms.append([name, *_terms(frame)])
        silent.append([name, *(_silent(frame[form]) for form in FORMS)])
    header = ["Runs", "K1", "K2", "K2, worst case", "K3", "TV to X1's policy", "TV to X2's policy", "TV to X3's policy"]
    below = ["TV: median over steps and seeds (95th percentile; number of steps with such samples)."]
    title = "How often the bound says nothing (not positive, or unknown)"
    return [
        Table("The constants and the distances", header, terms, "l" + "r" * 7, below),
        Table(title, ["Runs", *FORMS.values()], silent, "l" + "r" * len(FORMS)),
    ]


def notes(study: Study) -> list[str]:
    return [
        "As printed: the sum over X1, X2, X3 of L - 2 K TV(pi, alpha) - 2 TV(pi_t, alpha). Its largest value is the "
        "sum of (1 - K) TV, never positive, since K is at least 1 for 0/1 rewards.",
        "Repaired: factor 1 for both 2s, subsets weighted by their share of the batch, K2 over all that is admitted. "
        "Its largest value is the weighted TV, which rules nothing out.",
        "TV(pi_t, alpha): 0 where it is not recorded, so every number is an upper limit of the bound.",
        BIAS,
        *([study.note] if study.note else []),
    ]


def write(study: Study, out: Path) -> list[Path]:
    """Write theory_monitor.csv, .md, .tex, .pdf, .png and .svg of the study's BAPO runs.

    Raises UserError where runs are missing or none is BAPO's.
    """
    import pandas as pd

    methods = [(b, m) for b in study.blocks for m in (["bapo"] if "bapo" in b.methods else b.methods)]
    shown = [(b, m, f) for b, m in methods if (f := monitor(b, m, study)) is not None]
    if not shown:
        raise UserError("the theory monitor needs a run of BAPO (a method with the option c1); the study has none")
    page = Page(at_scale("Theory monitor: the bound of Theorem 3.2", study.scale), tables(shown), notes(study))
    every = pd.concat([f for _, _, f in shown], ignore_index=True)
    paths = page.write(out, "theory_monitor", every)
    with style.settings():
        title = "The bound of Theorem 3.2 along training"
        drawn = style.save(_figure(shown, study), every, out, "theory_monitor", title)
    return paths + [p for p in drawn if p not in paths]


# ------------------------------------------------------------------------------------------------ the figure


def _figure(shown: Sequence[tuple[Block, str, pd.DataFrame]], study: Study) -> Figure:
    """Draw distances, and the forms of the bound, along training; a row a task."""
    last = max(int(frame["step"].max()) for _, _, frame in shown)
    window = frames.window_of(last)
    caption = (
        "Left: total-variation distance of the trained policy to the policies that wrote the batch, estimated from "
        "sampled ratios (biased: theory_monitor.md). Right: the lower bound of Theorem 3.2, which promises an "
        "improvement only above 0. Largest value: whatever the policy gains. "
        f"Mean over {frames.seed_words([b for b, _, _ in shown], [m for _, m, _ in shown])}"
        f"{frames.averaged(window)}. {study.note}"
    )
    fig, panels = style.grid(caption, 2 * len(shown), 2)
    for (block, method, frame), left, right in zip(shown, panels[::2], panels[1::2], strict=True):
        for axes, columns in ((left, TV_LOOKS), (right, BOUND_LOOKS)):
            for column, (label, colour, dash) in columns.items():
                values = frame.groupby("step")[column].mean().dropna()  # over seeds
                axes.plot(values.index, frames.smooth(values, window), label=label, color=colour, linestyle=dash)
            style.step_axis(axes, last)
        right.axhline(0, color="#444444", linewidth=0.8)
        style.title(left, f"{block.plain_title(method)}: {block.title}")
        left.set_ylabel("TV (estimated)")
        right.set_ylabel("bound")
        left.set_ylim(bottom=0)
    style.legend(fig, panels[:2], 4)
    return fig
