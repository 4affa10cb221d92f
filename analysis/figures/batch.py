"""What training batches are made of, X1, X2 and X3 of equation 5 (the paper's Figures 8 and 14), and what each is worth
to the policy that is trained on it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from analysis import reading, style
from analysis.figures import frames
from analysis.study import Block, StudyFile
from bapo.algorithm.rollouts import ORIGINS
from bapo.store.files import GROUPS, STEPS

#: Figure 8 shows the ablations beside BAPO
VARIANTS = ("bapo", "bapo_without_x2", "bapo_without_x3")


def figure8_batch_composition(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw BAPO and its ablations on mathematics side by side."""
    study = frames.subset(study, ("mathematics",), VARIANTS)
    return _draw(study, [(b, m) for b in study.blocks for m in sorted(b.methods, key=lambda m: (m not in VARIANTS, m))])


def figure14_batch_composition(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw BAPO on every task, side by side."""
    study = frames.subset(study, methods=("bapo",))
    return _draw(study, [(b, m) for b in study.blocks for m in b.methods])


def _draw(study: StudyFile, shown: Sequence[tuple[Block, str]]) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel for every (block, method): groups in the batch of each step; red: the batch size B."""
    caption = frames.caption(study, "batch_composition")
    fig, panels = style.grid(caption, len(shown), left="groups in the batch", sharey=True)
    parts = []
    for axes, (block, method) in zip(panels, shown, strict=True):
        size = reading.batch_size(block.methods[method][0])
        frame = reading.steps(block, method, study, [*style.PARTS, "batch_groups"])
        parts.append(frame.assign(**block.keys(method), batch_size=size))
        mean = frame.groupby("step")[list(style.PARTS)].mean()
        labels, colours = zip(*style.PARTS.values(), strict=True)
        axes.stackplot(mean.index, mean.T, labels=labels, colors=colours, step="mid", linewidth=0)
        style.step_axis(axes, int(mean.index[-1]))
        axes.set_xlim(left=mean.index[0])
        axes.grid(axis="x", visible=False)
        axes.axhline(size, color="#CC0000", linewidth=1.4, label="batch size $B$")
        shares = "  ".join(f"$X_{p[1]}$ {mean[p].mean() / size:.0%}" for p in style.PARTS) + f"  of $B$ = {size}"
        axes.set_title(f"{block.plain_title(method)}: {block.task_title}\n{block.model_title}\n{shares}")
    style.legend(fig, panels)
    return fig, pd.concat(parts, ignore_index=True)


# ------------------------------------------------------------------------------------------------ what a part is worth

#: columns of steps.parquet, whose names end in the origin's number
RECORDED = ("surrogate", "clipped", "ess")
#: measure, one a column of panels -> the name of its axis, and the column of the data along which it is drawn
MEASURES = {
    "smoothed": (r"mean of $\rho A$", "step"),
    "clipped": ("clipped tokens (%)", "staleness"),
    "ess": ("effective sample (%)", "staleness"),
}


def off_policy_signal(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a method that trains on stored or stale responses (all, where none does), a line an origin."""
    study = frames.subset(study)
    parts = {(b, m): _signal(b, m, study) for b in study.blocks for m in b.methods}
    frame = pd.concat(parts.values(), ignore_index=True)
    off = [place for place, rows in parts.items() if (rows["part"] != "x1").any() or (rows["staleness"] > 0).any()]
    measures = [measure for measure in MEASURES if frame[measure].notna().any()]
    if not measures:
        return style.nothing("No run here has measured its ratios.")
    places = [(*place, measure) for place in off or parts for measure in measures]
    fig, panels = style.grid(frames.caption(study, "off_policy_signal"), len(places), len(measures), 1.5)
    for axes, (block, method, measure) in zip(panels, places, strict=True):
        name, along = MEASURES[measure]
        rows = parts[block, method].dropna(subset=[along, measure])
        for part, of_part in rows.groupby("part"):
            seeds = of_part.groupby(["seed", along])[measure].mean().groupby(along).agg(["mean", "min", "max"])
            label, colour = style.PARTS[str(part)]
            marker = "" if along == "step" else "."
            style.band(axes, seeds.index, seeds.to_numpy().T, color=colour, label=label, marker=marker)
        axes.locator_params(axis="x", integer=True, nbins=5)
        axes.set_xlabel("training step" if along == "step" else "steps since sampling", labelpad=1)
        axes.set_ylabel(name)
        if measure == measures[0]:
            axes.set_title(f"{block.plain_title(method)}\n{block.title}")
    style.legend(fig, panels)
    return fig, frame


def _signal(block: Block, method: str, study: StudyFile) -> pd.DataFrame:
    """Return a row a seed, step and origin that the step had; NaN in the columns that a run has not recorded."""
    parts = []
    for cell in block.methods[method]:
        steps = reading.table(cell, STEPS, study).set_index("step")
        groups = reading.table(cell, GROUPS, study, ["step", "origin", "version", "used"]).query("used")
        ages = (groups["step"] - 1 - groups["version"]).groupby([groups["step"], groups["origin"]]).mean().round()
        for i, (part, origin) in enumerate(zip(style.PARTS, ORIGINS, strict=True), start=1):
            rows = steps.reindex(columns=[f"{name}_x{i}" for name in RECORDED]).set_axis(list(RECORDED), axis=1)
            rows = rows.dropna(how="all").assign(**block.keys(method), seed=cell.seed, part=part)
            rows[["clipped", "ess"]] *= 100
            rows["staleness"] = ages[ages.index.get_level_values("origin") == origin].droplevel("origin")
            values = rows["surrogate"].dropna()
            rows["smoothed"] = frames.smooth(values, max(1, len(values) // 10) | 1)
            parts.append(rows.reset_index())
    return pd.concat(parts, ignore_index=True)
