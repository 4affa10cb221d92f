"""X2's admission beside what sampling the unchanged policy again would admit: beyond the paper."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from analysis import style
from analysis.beyond import admission
from analysis.figures.common import legend_above
from analysis.reading import require_runs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from analysis.study import Study

#: share of re-evaluated prompts -> (column, colour, marker, shift in rows)
SHOWN = {
    "admitted as X2": ("admitted", style.VERMILLION, "o", -0.14),
    "expected of the unchanged policy": ("expected", style.GREY, "s", 0.14),
}
ROW = 0.3  # inches
LABEL = 33  # characters of a line of a row's label


def x2_admission(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Return the figure and its data, in percent."""
    import pandas as pd

    require_runs(study)
    rows = []
    for block in study.blocks:
        for method in block.methods:
            runs = admission.of_method(block, method, study)
            if runs:
                where = [block.title] if len(study.blocks) > 1 else []
                lines = [*textwrap.wrap(block.plain_title(method), LABEL), *where]
                names = block.keys(method) | {"title": "\n".join(lines)}
                rows += [names | _row(a, next(iter(runs.values())).size) for a in admission.admissions(runs)]
    if not rows:
        return style.nothing("No run of this study re-evaluates a stored prompt, so there is no X2 to show.")
    frame = pd.DataFrame(rows)
    kinds, titles = list(dict.fromkeys(frame["stored"])), list(dict.fromkeys(frame["title"]))
    caption = (
        "Share of the re-evaluated prompts that eq. 6 admits, by what the stored group showed, and the share that the "
        "policy that stored them would show if it were only sampled again: from the distribution of success rates of "
        "its fresh groups. Bars: 95% interval, bootstrap over prompts and training seeds, t with S - 1 degrees of "
        f"freedom. {study.note}"
    )
    fig, [panels] = style.panels(
        caption, (1, len(kinds)), ROW * (len(titles) + 1), 0, top=0.6, left=1.75, wspace=0.12, sharey=True
    )
    for axes, kind in zip(panels, kinds, strict=True):
        _panel(axes, frame[frame["stored"] == kind], titles)
        axes.set_title(f"stored at {kind}" if kind != "all" else "all", loc="left")
    legend_above(fig, panels, left=0.6)
    return fig, frame.assign(title=frame["title"].str.replace("\n", " "))


def _row(a: admission.Admission, size: int) -> dict[str, object]:
    row: dict[str, object] = {
        "stored": "all" if a.stored is None else f"{a.stored}/{size}",
        "reevaluations": a.count,
        "prompts": a.prompts,
        "seeds": len(a.seeds),
    }
    for name in ("admitted", "expected", "difference"):
        e = getattr(a, name)
        row |= {name: 100 * e.mean, f"{name}_low": 100 * e.low, f"{name}_high": 100 * e.high}
    return row | {f"difference_seed_{s}": 100 * d for s, d in zip(a.seeds, a.by_seed, strict=True)}


def _panel(axes: Axes, rows: pd.DataFrame, titles: list[str]) -> None:
    """Draw one kind of stored group, a line a method."""
    for label, (column, colour, marker, shift) in SHOWN.items():
        places = [titles.index(t) + shift for t in rows["title"]]
        spread = [rows[column] - rows[f"{column}_low"].clip(lower=0), rows[f"{column}_high"] - rows[column]]
        look = {"color": colour, "capsize": 2, "markersize": 4, "linewidth": 1.2, "label": label}
        axes.errorbar(rows[column], places, xerr=spread, fmt=marker, **look)
    axes.set_ylim(len(titles) - 0.5, -0.5)
    axes.set_yticks(range(len(titles)), titles, fontsize=7)
    axes.set_xlim(left=0)
    axes.set_xlabel("% of re-evaluations")
