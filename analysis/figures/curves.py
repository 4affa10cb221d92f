"""Curves along training: reward, entropy, rollouts, test accuracy (the paper's Figures 4, 5, 9, 11, 12 and 16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import paper, reading, statistics, style, text
from analysis.figures import frames
from analysis.study import Block, Study
from bapo.errors import UserError
from bapo.store.files import SUMMARY

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: the paper compares BAPO with GRPO and DAPO
SHOWN = ("grpo", "dapo", "bapo")
#: column of steps.parquet -> its name
MEASURES = {
    "reward_mean": "mean reward",
    "entropy": "entropy (nats a token)",
    "response_length": "response length (tokens)",
}


def lines(axes: Axes, rows: pd.DataFrame, block: Block, column: str, labels: Mapping[str, str] | None = None) -> None:
    """Draw the mean over seeds of each method's rows, with a band. labels: of those shown."""
    shown = labels if labels is not None else {m: block.plain_title(m) for m in block.methods}
    for i, method in enumerate(block.methods):
        values = frames.wide(frames.of(rows, method=method), column)
        if method in shown and len(values):
            style.band(axes, method, i, values, shown[method])
    style.step_axis(axes, int(rows["step"].max()) if len(rows) else 1)


def training_curves(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw the mean reward of the fresh rollouts of every method, a panel a task and model."""
    study = frames.part(study)
    frame, window = frames.smoothed(study, ["reward_mean"])
    caption = (
        f"Mean reward of the fresh rollouts at each step, {frames.seed_words(study.blocks)} a method"
        f"{frames.averaged(window)}. Line: mean over seeds; band: lowest to highest seed. Methods with a delayed "
        "rollout policy show that policy's reward; MoPPS chooses its prompts, so its reward is on other ones. "
        f"{study.note}"
    )
    fig, panels = style.grid(caption, len(study.blocks), 1, 2.5)
    for axes, block in zip(panels, study.blocks, strict=True):
        lines(axes, frames.of_block(frame, block), block, "smoothed")
        style.title(axes, block.title)
        axes.set_ylabel("mean reward")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return fig, frame.drop(columns="measure").rename(columns={"value": "reward_mean"})


#: the paper's, and one that any study may name under ``also``
figure4_training_curves = training_curves


def figure11_dynamics(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a task and model, a column a measure."""
    study = frames.part(study, methods=SHOWN)
    frame, window = frames.smoothed(study, list(MEASURES))
    caption = (
        "Of each step: mean reward and length of the fresh rollouts, and the policy's mean entropy over the tokens of "
        f"the training batch, which methods choose differently. Mean over {frames.seed_words(study.blocks)}"
        f"{frames.averaged(window)}; band: lowest to highest seed. A delayed rollout policy (BAPO's) shows its own "
        f"reward and length. A run that recorded no such measure has no line. {study.note}"
    )
    fig, panels = style.grid(caption, len(study.blocks) * len(MEASURES), len(MEASURES), 1.8)
    parts = [(b, column, name) for b in study.blocks for column, name in MEASURES.items()]
    for axes, (block, column, name) in zip(panels, parts, strict=True):
        lines(axes, frames.of_block(frame, block, measure=column), block, "smoothed")
        style.title(axes, f"{block.task_title}\n{block.model_title}: {name}")
    style.legend(fig, panels)
    return fig, frame[["task", "model", "method", "seed", "step", "measure", "value", "smoothed"]]


def figure9_cumulative_rollouts(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw the responses generated up to each step, a panel a task and model."""
    import pandas as pd

    study = frames.part(study, methods=SHOWN)
    rows = []
    for block in study.blocks:
        for m in block.methods:
            read = reading.steps(block, m, study, ["fresh_rollouts", "regenerated_rollouts"])
            read["rollouts"] = read["fresh_rollouts"] + read["regenerated_rollouts"]
            steps, values = frames.series(read, "rollouts")
            sums = np.cumsum(values, axis=1).astype(np.int64)
            rows.append(frames.by_seed(block, m, steps, {"cumulative_rollouts": sums}))
    frame = pd.concat(rows, ignore_index=True)
    caption = (
        "Responses generated up to each step: fresh rollouts, those that dynamic sampling throws away, and "
        f"re-evaluations; mean over {frames.seed_words(study.blocks)}, band: lowest to highest seed. "
        f"In brackets: times GRPO. {study.note}"
    )
    fig, panels = style.grid(caption, len(study.blocks), max(2, min(3, len(study.blocks))))
    for axes, block in zip(panels, study.blocks, strict=True):
        here = frames.of_block(frame, block)
        ends = here.groupby(["method", "seed"])["cumulative_rollouts"].max().groupby("method").mean()
        labels = {
            m: f"{block.plain_title(m)} {text.thousands(ends[m])}"
            + (f" ({ends[m] / ends['grpo']:.2f}x)" if ends.get("grpo") else "")
            for m in block.methods
        }
        lines(axes, here, block, "cumulative_rollouts", labels)
        axes.set_ylim(0, None)
        axes.yaxis.set_major_formatter(lambda v, _: f"{v / 1000:g}k" if v >= 1000 else f"{v:g}")
        style.title(axes, f"{block.task_title}\n{block.model_title}")
        axes.legend(loc="upper left", fontsize=7, handlelength=1.2)
    panels[0].set_ylabel("responses generated")
    return fig, frame


# ------------------------------------------------------------------------------------------------ test curves

#: Figure 12's benchmark of each task, by the paper's name
BENCHMARKS = {"mathematics": "amc", "countdown": "cd4", "geometry": "geo3k_test"}
AIME = "aime24"
#: the panels of Figure 5
PAIRS = (("grpo", "bapo"), ("grpo", "bapo+mini"), ("dapo", "bapo"))
#: PPO with triangles, BA-PPO with circles, as in Figure 16
MARKERS = {"ppo": "^", "ba_ppo": "o"}


@dataclass(frozen=True)
class Panel:
    """One benchmark of a block and the methods that are compared on it."""

    block: Block
    benchmark: str
    methods: tuple[str, ...]
    title: str


def figure5_test_curves(study: Study) -> tuple[Figure, pd.DataFrame]:
    """BAPO against GRPO, its mini test against GRPO, BAPO against DAPO, on what stands for AIME 2024."""
    study = _part(study, [m for pair in PAIRS for m in pair])
    panels = []
    for block in study.blocks:
        pairs: list[tuple[str, ...]] = [pair for pair in PAIRS if all(m in block.methods for m in pair)]
        for pair in pairs or [tuple(block.methods)]:
            title = " and ".join(block.plain_title(m) for m in reversed(pair))
            panels.append(Panel(block, _benchmark(block, AIME), pair, title))
    return _draw(panels, study)


def figure12_test_curves(study: Study) -> tuple[Figure, pd.DataFrame]:
    """GRPO, DAPO and BAPO, a panel a task and model, on what stands for AMC, CD-4 and the Geometry3K test."""
    study = _part(study, SHOWN)
    named = {b: _benchmark(b, BENCHMARKS.get(b.task, "")) for b in study.blocks}
    return _draw([Panel(b, name, tuple(b.methods), b.title) for b, name in named.items()], study)


def figure16_ppo(study: Study) -> tuple[Figure, pd.DataFrame]:
    """PPO and BA-PPO on what stands for AIME 2024, a star at each one's highest point."""
    study = _part(study, tuple(MARKERS))
    return _draw([Panel(b, _benchmark(b, AIME), tuple(b.methods), b.title) for b in study.blocks], study, stars=True)


def _part(study: Study, methods: Sequence[str]) -> Study:
    """Return the methods of a figure that the study has curves of; all of those where it knows none of the figure's.

    Raises UserError naming every run without them and the command that makes them.
    """
    if not study.curves:
        raise UserError("the study has no test curves; name the methods that need them under 'curves' in its file")
    narrower = frames.part(study, methods=[m for m in methods if m in study.curves] or study.curves)
    reading.require_runs(narrower, (SUMMARY, f"curve/{SUMMARY}"))
    return narrower


def _benchmark(block: Block, role: str) -> str:
    """Return the benchmark that plays the part of the paper's; the last one where none does."""
    names = [name for name, _ in block.benchmarks]
    return next((n for n in names if block.roles.get(n, n) == role), names[-1])


def _name(block: Block, benchmark: str) -> str:
    """Return its title and, where it stands for one of the paper's, whose part it plays."""
    title, role = dict(block.benchmarks)[benchmark], block.roles.get(benchmark, benchmark)
    printed = paper.match(block.task, block.model, block.paper_model)
    theirs = printed.columns.get(role, role) if printed else role
    return title if theirs in (benchmark, title) else f"{title} (for {theirs})"


def _rows(panel: Panel, method: str, study: Study) -> pd.DataFrame:
    """Return a method's accuracy on the panel's benchmark in percent, a row a step."""
    import pandas as pd

    curve = reading.curves(panel.block.methods[method], panel.benchmark, study)
    accuracy = 100 * curve.accuracy
    means = [statistics.mean_over_seeds(accuracy[:, t]).problems for t in range(len(curve.steps))]
    highest = int(np.argmax([e.mean for e in means]))
    return pd.DataFrame(
        {
            **panel.block.keys(method),
            "benchmark": panel.benchmark,
            "step": curve.steps,
            "accuracy": [e.mean for e in means],
            "low": [e.low for e in means],
            "high": [e.high for e in means],
            "highest": [t == highest for t in range(len(means))],
            "problems": len(curve.problems),
            "samples": curve.samples,
            **{f"seed_{c.seed}": a.mean(axis=1) for c, a in zip(panel.block.methods[method], accuracy, strict=True)},
        }
    )


def _draw(panels: Sequence[Panel], study: Study, stars: bool = False) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel each. stars: at the highest point of a curve, and markers."""
    import pandas as pd

    data = {(p, m): _rows(p, m, study) for p in panels for m in p.methods}
    frame = pd.concat(data.values(), ignore_index=True).drop_duplicates(ignore_index=True)
    star = (
        "Star: the highest point of a curve, chosen on the test problems themselves: on new problems the same "
        "checkpoint would mostly lie lower. "
    )
    caption = (
        f"Accuracy of the kept checkpoints, {' or '.join(map(str, sorted(set(frame['samples']))))} samples a problem; "
        f"step 0: before training. Thick: mean over {frames.seed_words(study.blocks)}; thin: each seed; band: 95% "
        f"interval of the mean for new problems, these trained models given. {star if stars else ''}{study.note}"
    )
    across = max(2, min(3, len(panels)))
    fig, axes_of = style.grid(caption, len(panels), across)
    for axes, p in zip(axes_of, panels, strict=True):
        for method in p.methods:
            _curve(axes, p, method, data[p, method], stars)
        style.step_axis(axes, max(int(data[p, m]["step"].max()) for m in p.methods))
        style.title(axes, f"{p.title}\n{_name(p.block, p.benchmark)}")
    for axes in axes_of[::across]:
        axes.set_ylabel("accuracy, %")
    if len({(p.block.task, p.block.model, p.benchmark) for p in panels}) == 1:  # the same numbers: one scale
        style.same_scale(axes_of)
    style.legend(fig, axes_of)
    return fig, frame


def _curve(axes: Axes, panel: Panel, method: str, rows: pd.DataFrame, stars: bool) -> None:
    line = style.method_line(method, list(panel.block.methods).index(method))
    steps, colour = rows["step"], line["color"]
    axes.fill_between(steps, rows["low"], rows["high"], color=colour, alpha=0.13, linewidth=0)
    axes.plot(steps, rows[[c for c in rows if c.startswith("seed_")]], color=colour, linewidth=0.5, alpha=0.7, zorder=2)
    look: dict[str, Any] = {"marker": MARKERS.get(method) if stars else None, "markersize": 4, "clip_on": not stars}
    title = panel.block.plain_title(method)
    axes.plot(steps, rows["accuracy"], label=title, zorder=5 if method == "bapo" else 3, **look, **line)
    if stars:
        best = rows[rows["highest"]]
        star: dict[str, Any] = {"marker": "*", "markersize": 13, "markeredgecolor": "white", "linestyle": "none"}
        axes.plot(best["step"], best["accuracy"], color=colour, zorder=6, **star)
