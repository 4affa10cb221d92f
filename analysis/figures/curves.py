"""Curves: reward, entropy, rollouts and test accuracy along training (the paper's Figures 4, 5, 9, 11, 12 and 16), and
the chance that one of k samples is correct."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import paper, reading, results, statistics, style, text
from analysis.figures import frames
from analysis.statistics import Side
from analysis.study import Block, StudyFile
from bapo.errors import UserError
from bapo.store.files import SUMMARY

#: the paper compares BAPO with GRPO and DAPO
SHOWN = ("grpo", "dapo", "bapo")
#: column of steps.parquet -> its name
MEASURES = {"reward_mean": "mean reward", "entropy": "entropy per token", "response_length": "length (tokens)"}


def lines(
    axes: Axes,
    rows: pd.DataFrame,
    block: Block,
    column: str,
    labels: Mapping[str, str] | None = None,
    coloured: Collection[str] = (),
) -> None:
    """Draw the mean over seeds of each method's rows, and among few a band from the lowest to the highest seed.

    Args:
        axes: the panel.
        rows: a row a method, seed and step.
        block: names the methods.
        column: of the rows, on the y axis.
        labels: of the methods that are shown; by default all with their titles.
        coloured: the methods whose lines have a colour and a title, among grey ones; none: all.
    """
    methods = [m for m in block.methods if labels is None or m in labels]
    for method in sorted(methods, key=lambda m: bool(coloured) and m not in coloured):
        values = frames.select(rows, method=method).groupby("step")[column].agg(["mean", "min", "max"])
        if len(values):
            label = labels[method] if labels else block.plain_title(method)
            line = look(block, method)
            if coloured and method not in coloured:
                label, line = "other methods", {"color": style.GREY, "linewidth": 0.7, "alpha": 0.6, "zorder": 2}
            style.band(axes, values.index, values.to_numpy().T, len(methods), label=label, **line)
    style.step_axis(axes, int(rows["step"].max()) if len(rows) else 1)


def look(block: Block, method: str) -> dict[str, Any]:
    """Return how a method's line is drawn."""
    line = style.method_line(method, [*block.methods, method].index(method))
    return line | {"zorder": 4 if method == "bapo" else 3}


def _measures(
    study: StudyFile, names: Mapping[str, str], key: str, height: float, coloured: Collection[str] = ()
) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a task and model, a column a measure.

    names: column of steps.parquet -> its name; key: of the caption; coloured: as of :func:`lines`.
    """
    frame, averaged = frames.smoothed(study, list(names))
    caption, places = frames.caption(study, key, averaged=averaged), [(b, c) for b in study.blocks for c in names]
    fig, panels = style.grid(caption, len(places), len(names) if len(names) > 1 else 0, height)
    for axes, (block, column) in zip(panels, places, strict=True):
        lines(axes, frames.of_block(frame, block, measure=column), block, "smoothed", coloured=coloured)
        axes.set_title(f"{block.task_title}\n{block.model_title}: {names[column]}")
        if column == "response_length":  # a change of half a token is none
            axes.set_ylim(0, None)
    style.legend(fig, panels)
    return fig, frame


def training_curves(study: StudyFile, coloured: Collection[str] = ()) -> tuple[Figure, pd.DataFrame]:
    """Draw the mean reward of the fresh rollouts of every method, a panel a task and model."""
    names, key = {"reward_mean": MEASURES["reward_mean"]}, "three_curves" if coloured else "training_curves"
    fig, frame = _measures(frames.subset(study), names, key, 2.1, coloured)
    return fig, frame.drop(columns="measure").rename(columns={"value": "reward_mean"})


def figure4_training_curves(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw the paper's three methods in colour, and the study's others in grey."""
    return training_curves(study, SHOWN)


def figure11_dynamics(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw reward, entropy and length, a row a task and model."""
    return _measures(frames.subset(study, methods=SHOWN), MEASURES, "dynamics", 1.8)


def figure9_cumulative_rollouts(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw the responses generated up to each step, a panel a task and model."""
    study = frames.subset(study, methods=SHOWN)
    each = frames.recorded(study, ["fresh_rollouts", "regenerated_rollouts"])
    sums = each.groupby([*frames.RUN, "step"], sort=False)["value"].sum().groupby(frames.RUN, sort=False).cumsum()
    frame = sums.astype(int).rename("cumulative_rollouts").reset_index()
    fig, panels = style.grid(
        frames.caption(study, "cumulative_rollouts"), len(study.blocks), left="responses generated"
    )
    for axes, block in zip(panels, study.blocks, strict=True):
        here = frames.of_block(frame, block)
        ends = here.groupby(["method", "seed"])["cumulative_rollouts"].max().groupby("method").mean()
        times = {m: f" ({end / ends['grpo']:.2f}x)" if "grpo" in ends else "" for m, end in ends.items()}
        labels = {m: f"{block.plain_title(m)} {text.thousands(ends[m])}{times[m]}" for m in block.methods}
        lines(axes, here, block, "cumulative_rollouts", labels)
        axes.set_ylim(0, None)
        axes.yaxis.set_major_formatter(lambda value, _: text.thousands(value))
        axes.set_title(f"{block.task_title}\n{block.model_title}")
        axes.legend(loc="upper left", fontsize=7, handlelength=1.2)
    return fig, frame


# ------------------------------------------------------------------------------------------------ test curves

#: Figure 12's benchmark of each task, by the paper's name
BENCHMARKS = {"mathematics": "amc", "countdown": "cd4", "geometry": "geo3k_test"}
AIME = "aime24"
#: the panels of Figure 5
PAIRS = (("grpo", "bapo"), ("grpo", "bapo+mini"), ("dapo", "bapo"))
#: the methods of Figure 16
PPO = ("ppo", "ba_ppo")
#: one benchmark of a block, the methods that are compared on it, and a title
Panel = tuple[Block, str, Sequence[str], str]


def figure5_test_curves(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw BAPO against GRPO, its mini test against GRPO, BAPO against DAPO, on what stands for AIME 2024."""
    study = with_curves(study, [m for pair in PAIRS for m in pair])
    panels = list[Panel]()
    for block in study.blocks:
        pairs: list[tuple[str, ...]] = [pair for pair in PAIRS if set(pair) <= set(block.methods)]
        for pair in pairs or [tuple(block.methods)]:
            title = " and ".join(block.plain_title(m) for m in reversed(pair))
            panels.append((block, _benchmark(block, AIME), pair, title))
    return _draw(panels, study, sharey=len(study.blocks) == 1)


def figure12_test_curves(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw GRPO, DAPO and BAPO, a panel a task and model, on what stands for AMC, CD-4 and the Geometry3K test."""
    study = with_curves(study, SHOWN)
    places = [(b, _benchmark(b, BENCHMARKS.get(b.task, ""))) for b in study.blocks]
    return _draw([(b, name, list(b.methods), b.title) for b, name in places], study)


def figure16_ppo(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw PPO and BA-PPO on what stands for AIME 2024, a star at each one's highest point."""
    study = with_curves(study, PPO)
    return _draw([(b, _benchmark(b, AIME), list(b.methods), b.title) for b in study.blocks], study, stars=True)


def with_curves(study: StudyFile, methods: Sequence[str] = ()) -> StudyFile:
    """Return the methods of a figure that the study has curves of; all of those where it knows none of the figure's.

    Raises UserError naming every run without them and the command that makes them.
    """
    if not study.curves:
        raise UserError("the study has no test curves; name the methods that need them under 'curves' in its file")
    narrower = frames.subset(study, methods=[m for m in methods if m in study.curves] or study.curves)
    reading.require_runs(narrower, (SUMMARY, f"curve/{SUMMARY}"))
    return narrower


def _benchmark(block: Block, role: str) -> str:
    """Return the benchmark that plays the part of the paper's; the last one where none does."""
    names = [name for name, _ in block.benchmarks]
    return next((n for n in names if block.roles.get(n, n) == role), names[-1])


def _rows(block: Block, benchmark: str, method: str, study: StudyFile) -> pd.DataFrame:
    """Return a method's accuracy on a benchmark in percent, a row a step."""
    curve = reading.curves(block.methods[method], benchmark, study)
    accuracy = 100 * curve.accuracy
    means = [statistics.mean_over_seeds(accuracy[:, t]).problems for t in range(len(curve.steps))]
    frame = pd.DataFrame({"step": curve.steps, **{f: [getattr(e, f) for e in means] for f in ("mean", "low", "high")}})
    frame = frame.rename(columns={"mean": "accuracy"}).assign(**block.keys(method), benchmark=benchmark)
    seeds = {f"seed_{c.seed}": a.mean(axis=1) for c, a in zip(block.methods[method], accuracy, strict=True)}
    highest = frame.index == frame["accuracy"].idxmax()
    return frame.assign(highest=highest, problems=len(curve.problems), samples=curve.samples, **seeds)


def _draw(
    panels: Sequence[Panel], study: StudyFile, stars: bool = False, sharey: bool = False
) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel each. stars: at the highest point of a curve; sharey: one scale for all."""
    places = dict.fromkeys((block, benchmark, m) for block, benchmark, methods, _ in panels for m in methods)
    frame = pd.concat([_rows(*place, study) for place in places], ignore_index=True)
    star = "".join(text.words("star")) + " " if stars else ""
    samples = " or ".join(map(str, sorted(set(frame["samples"]))))
    caption = frames.caption(study, "test_curves", samples=samples, star=star)
    fig, axes_of = style.grid(caption, len(panels), left="accuracy, %", sharey=sharey)
    for axes, (block, benchmark, methods, title) in zip(axes_of, panels, strict=True):
        here = frames.of_block(frame, block, benchmark=benchmark)
        for method in methods:
            rows = frames.select(here, method=method)
            values, line = rows[["accuracy", "low", "high"]].to_numpy().T, look(block, method)
            style.band(axes, rows["step"], values, len(methods), label=block.plain_title(method), **line)
            colour = line["color"]
            axes.plot(rows["step"], rows.filter(like="seed_"), color=colour, linewidth=0.5, alpha=0.7, zorder=2)
            if stars:
                best = rows[rows["highest"]]
                axes.plot(best["step"], best["accuracy"], "*", color=colour, markersize=13, zorder=6)
        style.step_axis(axes, int(here["step"].max()))
        ours, theirs = dict(block.benchmarks)[benchmark], paper.stands_for(block, benchmark)
        axes.set_title(f"{title}\n{ours}{f' (for {theirs})' if theirs else ''}")
    style.legend(fig, axes_of)
    return fig, frame


# ------------------------------------------------------------------------------------------------ several samples

#: values of k, as far as an evaluation has as many samples
TRIES = (1, 2, 4, 8, 16, 32)
#: the most panels that can be read; if there are more benchmarks, each block has one panel with their average
MOST_PANELS = 3


def pass_at_k(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw the chance that one of k samples is correct, minus the reference's: a panel a benchmark or a block."""
    reading.require_runs(study)
    frame = pd.DataFrame([row for block in study.blocks for row in _chances(block, study)])
    if frame["difference"].isna().all():
        return style.nothing(f"No method of this study is compared with {study.reference}.")[0], frame
    places = [(block, name, title) for block in study.blocks for name, title in block.benchmarks]
    if len(places) > MOST_PANELS:
        several = [(block, len(block.benchmarks)) for block in study.blocks]
        places = [(b, results.AVERAGE, f"{n} benchmarks") if n > 1 else (b, *b.benchmarks[0]) for b, n in several]
    fig, panels = style.grid(frames.caption(study, "pass_at_k"), len(places), left=minus(study, "pass@k"))
    for axes, (block, benchmark, title) in zip(panels, places, strict=True):
        differences(axes, frames.of_block(frame, block, benchmark=benchmark), block, "k")
        axes.set_xlabel("k", labelpad=1)
        axes.set_title(f"{block.title}\n{title}")
    style.legend(fig, panels, 4, handlelength=3)
    return fig, frame


def _chances(block: Block, study: StudyFile) -> Iterator[dict[str, Any]]:
    """Yield a row a method, benchmark and k: the mean over seeds with its interval for new problems, the difference.

    Several benchmarks have a further row, their average.
    """
    rows = results.collect(block, study)
    reference = rows.get(study.reference)
    parts = {name: [name] for name, _ in block.benchmarks}
    parts |= {results.AVERAGE: [*parts]} if len(parts) > 1 else {}
    for result in rows.values():
        for part, names in parts.items():
            for k in (k for k in TRIES if k <= min(result.outcomes[name].samples for name in names)):
                chances, differs = [result.outcomes[name].pass_at(k) for name in names], None
                if reference and result is not reference:
                    other = Side([reference.outcomes[name].pass_at(k) for name in names], reference.seeds)
                    differs = statistics.difference(Side(chances, result.seeds), other).tested
                mean = text.points(statistics.mean_over_seeds(*chances).problems, "mean", "low", "high")
                keys = {**block.keys(result.method), "benchmark": part, "k": k}
                yield keys | mean | text.columns("difference", differs, "low", "high")


def minus(study: StudyFile, what: str) -> str:
    """Return the name of an axis of differences to the study's reference."""
    titles = [b.plain_title(study.reference) for b in study.blocks if study.reference in b.methods]
    return f"{what},\nminus {titles[0] if titles else study.reference} (points)"


def differences(axes: Axes, rows: pd.DataFrame, block: Block, along: str) -> None:
    """Draw differences to the reference with their intervals, the methods beside each other at each place.

    The panel shows all of the methods' intervals, and the base model at the last place.

    Args:
        axes: the panel.
        rows: a row a method and place, in points: difference, difference_low, difference_high; NaN for the reference.
        block: names the methods.
        along: the column of the places.
    """
    rows = rows.dropna(subset=["difference"])
    if rows.empty:
        return
    places = {value: i for i, value in enumerate(sorted(set(rows[along])))}
    methods = rows.groupby("method", sort=False)
    axes.axhline(0, color=style.DARK, linewidth=0.8)
    for i, (method, of_method) in enumerate(methods):
        line = {"marker": ".", **look(block, str(method)), "markevery": None}
        label = "base model" if method == results.BASE else block.plain_title(str(method))
        at = of_method[along].map(places) + 0.6 * ((i + 0.5) / methods.ngroups - 0.5)
        ends = of_method["difference_low"], of_method["difference_high"]
        style.whiskers(axes, at, of_method["difference"], ends, "y", label=label, capsize=0, **line)
    last = rows["difference"].where(rows[along] == max(places))
    low, high = (rows[f"difference_{end}"].where(rows["method"] != results.BASE, last) for end in ("low", "high"))
    axes.set_ylim(min(0, low.min()) - 1, max(0, high.max()) + 1)
    axes.set_xticks(range(len(places)), ["end" if place == np.inf else f"{place:g}" for place in places])
    axes.grid(axis="x", visible=False)
