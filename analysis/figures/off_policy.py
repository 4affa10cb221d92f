"""What a batch's responses are worth to the policy that is trained on them, by origin and by age."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis import reading, style
from analysis.figures import frames
from analysis.figures.curves import band
from bapo.algorithm.rollouts import ORIGINS
from bapo.store.files import GROUPS, STEPS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.study import Block, Study

#: columns of steps.parquet, without the origin's number
RECORDED = ("surrogate", "clipped", "ess")
#: the column that a row of panels draws -> the name of its axis, and the column along which it is drawn
MEASURES = {
    "smoothed": (r"mean of $\rho A$", "step"),
    "clipped": ("clipped tokens (%)", "staleness"),
    "ess": ("effective sample (%)", "staleness"),
}


def off_policy_signal(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a column an origin: E[rho A] along training, clipped share and effective sample size by age."""
    import pandas as pd

    study = frames.part(study)
    frame = pd.concat([_rows(b, m, study) for b in study.blocks for m in b.methods], ignore_index=True)
    measures = [measure for measure in MEASURES if frame[measure].notna().any()]
    places = [(b, measure, part) for b in study.blocks for measure in measures for part in style.PARTS]
    fig, panels = style.grid(frames.caption(study, "off_policy_signal"), len(places), len(style.PARTS), 1.7)
    for axes, (block, measure, part) in zip(panels, places, strict=True):
        along = MEASURES[measure][1]
        rows = frames.of_block(frame, block, part=part).dropna(subset=[along, measure])
        for method, own in rows.groupby("method", sort=False):
            seeds = own.groupby(["seed", along])[measure].mean().groupby(along).agg(["mean", "min", "max"])
            band(axes, block, method, seeds.index, seeds.to_numpy().T, block.plain_title(method))
            axes.lines[-1].set(marker="" if along == "step" else ".")
        if along == "staleness":
            axes.set_xlim(-0.5, max(0.5, axes.get_xlim()[1]))
        axes.locator_params(axis="x", integer=True, nbins=5)
        axes.set_xlabel("training step" if along == "step" else "steps since sampling", labelpad=1)
        axes.set_title(f"{style.PARTS[part][0]}: {block.task_title}\n{block.model_title}" if along == "step" else "")
    for axes, (_, measure, _) in list(zip(panels, places, strict=True))[:: len(style.PARTS)]:
        axes.set_ylabel(MEASURES[measure][0])
    style.legend(fig, panels, 3)
    return fig, frame


def _rows(block: Block, method: str, study: Study) -> pd.DataFrame:
    """Return a row a seed, step and origin that the step had; NaN in the columns that a run has not recorded."""
    import pandas as pd

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
            rows.loc[values.index, "smoothed"] = frames.smooth(values.to_numpy(), max(1, len(values) // 10) | 1)
            parts.append(rows.reset_index())
    return pd.concat(parts, ignore_index=True)
