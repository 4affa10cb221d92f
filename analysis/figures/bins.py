"""Probed prompts by how often they are answered, 0/8 to 8/8, before and during training (the paper's Figures 1, 7, 13
and 15)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import probes, style
from analysis.figures import frames
from analysis.probes import Probes
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = ("grpo", "dapo", "bapo")
#: matrices of Figure 15 in a row
STEPS = 4
WITHIN, ACROSS = "within a run", "across seeds"  # where rows and columns of a matrix come from
CHANCE = (
    "Across seeds: from the base in ANOTHER seed's probe to the seed's own probe, of the trained model or, unchanged "
    "base, of the base again: what sampling alone shows. What training did is the difference. The probes of one run "
    "can share their random numbers, and an unchanged model would then repeat its answers: within a run there is no "
    "fair chance level. "
)


def bins(
    block: Block, method: str, found: Probes, steps: Sequence[int], shares: Mapping[str, np.ndarray]
) -> pd.DataFrame:
    """Return how many prompts have 0, 1 .. G correct answers, a row a seed, step and bin.

    shares: further columns [T, S].
    """
    import pandas as pd

    return pd.DataFrame(
        [
            {
                **block.keys(method),
                "seed": seed,
                "step": step,
                "correct": correct,
                "samples": found.samples,
                "prompts": int(count),
                **{name: share[t, s] for name, share in shares.items()},
            }
            for s, seed in enumerate(found.seeds)
            for t, step in enumerate(steps)
            for correct, count in enumerate(probes.histogram(found.at(step)[s], found.samples))
        ]
    )


def chance(read: Iterable[Probes]) -> str:
    """Return the caption's part on chance, with why seeds cannot be compared where they cannot be."""
    obstacles = dict.fromkeys(found.obstacle for found in read if found.obstacle)
    return CHANCE + (f"Not shown: {'; '.join(obstacles)}. " if obstacles else "")


# ------------------------------------------------------------------------------------------------ Figure 1


def figure1_accuracy_groups(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel a model: how many probed training prompts are answered 0 .. G times of G at step 0 and last."""
    import pandas as pd

    study = frames.part(study, ("mathematics",), ("grpo",))
    read = {(b, m): probes.read(b, m, study) for b in study.blocks for m in b.methods}
    parts = {(b, m): _moves(b, m, found) for (b, m), found in read.items()}
    caption = (
        f"A fixed set of training prompts by the number of correct answers out of {next(iter(read.values())).samples} "
        f"before and after training, mean over {frames.seed_words(study.blocks)}, lines from lowest to highest seed. "
        "Moved: half the sum of the differences, at least this share of the prompts has changed its group. "
        f"{chance(read.values())}{study.note}"
    )
    fig, panels = style.grid(caption, len(parts), 1, 2.8)
    for axes, ((block, method), frame) in zip(panels, parts.items(), strict=True):
        _groups(axes, block, method, frame)
    return fig, pd.concat(parts.values(), ignore_index=True)


def _moves(block: Block, method: str, found: Probes) -> pd.DataFrame:
    """Return the bins of the first and the last step, with the share of prompts that moved."""
    ends = (found.steps[0], found.steps[-1])

    def moved(initial: np.ndarray, current: np.ndarray) -> float:
        return probes.distance(probes.histogram(initial, found.samples), probes.histogram(current, found.samples))

    shares = {"moved_within_run": found.within(ends[1], moved)}  # [S], as the next two
    for name, step in (("moved_across_seeds", ends[1]), ("unchanged_base_across_seeds", 0)):
        shares[name] = np.full(len(found.seeds), np.nan) if found.obstacle else found.across(step, moved)
    return bins(block, method, found, ends, {k: np.stack([v, v]) for k, v in shares.items()})


def _groups(axes: Axes, block: Block, method: str, frame: pd.DataFrame) -> None:
    samples, steps = int(frame["samples"].iloc[0]), sorted(set(frame["step"]))
    labels = ("base" if steps[0] == 0 else f"step {steps[0]}", f"after {block.plain_title(method)}, step {steps[-1]}")
    looks = zip(steps, labels, ("#B9B9B9", style.method_line(method)["color"]), strict=True)
    for i, (step, label, colour) in enumerate(looks):
        counts = frames.of(frame, step=step).groupby("correct")["prompts"].agg(["mean", "min", "max"])
        place = counts.index + 0.4 * (i - 0.5)
        spread = [counts["mean"] - counts["min"], counts["max"] - counts["mean"]]
        look: dict[str, Any] = {"error_kw": {"linewidth": 0.8}, "color": colour, "label": label}
        bars = axes.bar(place, counts["mean"], 0.38, yerr=spread, **look)
        axes.bar_label(bars, fmt="%.0f", padding=2, fontsize=6.5)
    axes.set_xticks(range(samples + 1), [f"{i}/{samples}" for i in range(samples + 1)])
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("correct answers of a prompt")
    axes.set_ylabel("training prompts")
    axes.legend(loc="upper right")
    by_seed = frame.groupby("seed").first()
    detail = f"moved within a run: {by_seed['moved_within_run'].mean():.0%}"
    if by_seed["moved_across_seeds"].notna().any():
        across, alone = (by_seed[c].mean() for c in ("moved_across_seeds", "unchanged_base_across_seeds"))
        detail += f"   across seeds: {across:.0%}   unchanged base: {alone:.0%}"
    style.title(axes, f"{block.title}\n{detail}")


# ------------------------------------------------------------------------------------------------ Figures 7 and 13


def figure7_tracking(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Mathematics."""
    return _tracking(frames.part(study, ("mathematics",), SHOWN))


def figure13_tracking(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Countdown and geometry."""
    return _tracking(frames.part(study, ("countdown", "geometry"), SHOWN))


def _tracking(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a task and model, a panel a method, a bar a probed step (the first: the base model); red: 0/G."""
    import pandas as pd

    read = {(b, m): probes.read(b, m, study) for b in study.blocks for m in b.methods}
    parts = {(b, m): _improvements(b, m, found) for (b, m), (found) in read.items()}
    samples = next(iter(read.values())).samples
    caption = (
        f"A fixed set of training prompts by the number of correct answers out of {samples}, of the base and during "
        f"training, mean over {frames.seed_words(study.blocks)}; red: no correct answer. Above the bars: share of the "
        f"base's 0/{samples} prompts with at least one correct answer at the last step (lowest to highest seed). "
        f"Within a run: as the paper counts. {chance(read.values())}{study.note}"
    )
    across = max(len(b.methods) for b in study.blocks)
    fig, panels = style.grid(caption, across * len(study.blocks), across, 2.5)
    for i, block in enumerate(study.blocks):
        row = panels[across * i : across * (i + 1)]
        for axes in row[len(block.methods) :]:
            axes.set_visible(False)
        for axes, method in zip(row, block.methods, strict=False):
            _stacks(axes, block, method, parts[block, method])
        row[0].set_ylabel("number of prompts")
    style.legend(fig, panels[:1], samples + 1, title="correct", fontsize=7, handlelength=1.1, columnspacing=1)
    return fig, pd.concat(parts.values(), ignore_index=True)


def _improvements(block: Block, method: str, found: Probes) -> pd.DataFrame:
    """Return the bins of every step, with the share of the base's 0/G prompts that have a correct answer."""
    none = (float("nan"), [float("nan")] * len(found.seeds))
    across = [none if found.obstacle else probes.improved_across(found, step) for step in found.steps]
    shares = {
        "improved_within_run": np.stack([found.within(step, probes.improved) for step in found.steps]),  # [T, S]
        "improved_across_seeds": np.array([by_seed for _, by_seed in across]),
        "unchanged_base_across_seeds": np.array([across[0][1]] * len(found.steps)),
    }
    frame = bins(block, method, found, found.steps, shares)
    frame.attrs["across"] = {"across seeds": across[-1][0], "unchanged base": across[0][0]}  # over all pairs of seeds
    return frame


def bin_colours(samples: int) -> list[str]:
    """Return 0/G in vermillion, then light to dark blue."""
    import matplotlib
    from matplotlib.colors import to_hex

    blues = matplotlib.colormaps["Blues"](np.linspace(0.16, 0.98, samples))
    return [style.VERMILLION, *(to_hex(c) for c in blues)]


def _stacks(axes: Axes, block: Block, method: str, frame: pd.DataFrame) -> None:
    counts = frame.groupby(["step", "correct"])["prompts"].mean().unstack("correct")  # rows: steps
    x, samples = np.arange(len(counts)), counts.shape[1] - 1
    bottom = np.zeros(len(x))
    for correct, fill in enumerate(bin_colours(samples)):
        label = f"{correct}/{samples}"
        bars = axes.bar(x, counts[correct], 0.78, bottom, color=fill, edgecolor="white", linewidth=0.3, label=label)
        if correct == 0:
            axes.bar_label(bars, [f"{n:.0f}" for n in counts[0]], label_type="center", fontsize=6.5, color="white")
        bottom += counts[correct].to_numpy()
    axes.set_xticks(x, ["base" if s == 0 else str(s) for s in counts.index])
    axes.set_xlabel("training step")
    axes.grid(axis="x", visible=False)
    last = frames.of(frame, step=counts.index[-1]).groupby("seed").first()
    words = [f"within a run: {_share(last['improved_within_run'].mean(), last['improved_within_run'])}"]
    if last["improved_across_seeds"].notna().any():
        columns = {"across seeds": "improved_across_seeds", "unchanged base": "unchanged_base_across_seeds"}
        words += [f"{name}: {_share(frame.attrs['across'][name], last[c])}" for name, c in columns.items()]
    style.title(axes, "\n".join([f"{block.plain_title(method)}: {block.task_title}", block.model_title, *words]))


def _share(mean: float, by_seed: pd.Series) -> str:
    """Return a share over seeds, from the lowest to the highest."""
    known = by_seed.dropna()
    if known.empty:
        return "no such prompt"
    return f"{mean:.0%}" + (f" ({100 * known.min():.0f} to {known.max():.0%})" if len(known) > 1 else "")


# ------------------------------------------------------------------------------------------------ Figure 15


def figure15_migration(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a task and model, a matrix a step: prompts by bin in the base (row) and at the step (column).

    The base's bin is another seed's, so that the first matrix is the unchanged base against itself; with one seed both
    bins come from the same run, as in the paper. The method: BAPO, or the first of a study without it.
    """
    import pandas as pd

    methods = [m for b in study.blocks for m in b.methods]
    method = "bapo" if "bapo" in methods else methods[0]
    study = frames.part(study, methods=[method])
    read = {b: probes.read(b, method, study) for b in study.blocks}
    parts = {b: _migrations(b, method, found) for b, found in read.items()}
    caption = (
        f"{study.blocks[0].plain_title(method)}: training prompts by correct answers out of "
        f"{next(iter(read.values())).samples}, before training (row) and now (column), "
        f"{frames.seed_words(study.blocks, [method])}; colour: share of the row. Below the diagonal (lower left): "
        "worse than before; above: better. "
        "Mean over the ordered pairs of seeds, or over runs where there are none; rounded, below one half: empty. "
        f"{chance(read.values())}{study.note}"
    )
    fig, panels = style.grid(caption, STEPS * len(parts), STEPS, 1.95)
    for i, (block, frame) in enumerate(parts.items()):
        compared = ACROSS if ACROSS in set(frame["compared"]) else WITHIN
        shown = frames.of(frame, compared=compared)
        row = panels[STEPS * i : STEPS * (i + 1)]
        for axes, (step, cells) in zip(row, shown.groupby("step"), strict=False):
            base = "unchanged base" if compared == ACROSS else "base"
            axes.tick_params(labelleft=axes is row[0])
            _matrix(axes, f"{base if step == 0 else f'step {step}'}\n{block.task_title}", cells)
        for axes in row[shown["step"].nunique() :]:
            axes.set_visible(False)
        row[0].set_ylabel("bin, other seed's base" if compared == ACROSS else "initial bin", labelpad=2)
    return fig, pd.concat(parts.values(), ignore_index=True)


def spaced(steps: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of the probed steps, the first and the last among them, the others nearest to equal spacing."""
    steps = sorted(steps)
    if len(steps) <= count:
        return steps
    wanted = np.linspace(steps[0], steps[-1], count)
    return sorted({min(steps, key=lambda s: (abs(s - w), s)) for w in wanted})


def _migrations(block: Block, method: str, found: Probes) -> pd.DataFrame:
    """Return a row a comparison, step and pair of bins: the mean number of prompts over seeds, or pairs of seeds."""
    import pandas as pd

    def matrix(initial: np.ndarray, current: np.ndarray) -> np.ndarray:
        return probes.migration(initial, current, found.samples)

    rows: list[dict[str, Any]] = []
    for compared, measure in ((WITHIN, found.within), (ACROSS, found.across))[: 1 if found.obstacle else 2]:
        for step in spaced(found.steps, STEPS):
            table = measure(step, matrix).mean(axis=0)
            same = {**block.keys(method), "compared": compared, "step": step}
            rows += [
                {**same, "initial": i, "current": j, "samples": found.samples, "prompts": float(n)}
                | {"share_below_diagonal": probes.degraded(table)}
                for (i, j), n in np.ndenumerate(table)
            ]
    return pd.DataFrame(rows)


def _matrix(axes: Axes, title: str, cells: pd.DataFrame) -> None:
    counts = cells.pivot(index="initial", columns="current", values="prompts").to_numpy()
    totals, g = counts.sum(axis=1, keepdims=True), len(counts) - 1
    share = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.plot([-0.5, g + 0.5], [-0.5, g + 0.5], color=style.VERMILLION, linewidth=0.6)
    for (row, column), n in np.ndenumerate(counts):
        if n >= 0.5:
            colour = "white" if share[row, column] > 0.55 else "#222222"
            axes.text(column, row, str(int(n + 0.5)), ha="center", va="center", fontsize=4.8, color=colour)
    ticks = np.arange(0, g + 1, 2 if g > 4 else 1)
    axes.set_xticks(ticks, [f"{t}/{g}" for t in ticks], fontsize=6.5)
    axes.set_yticks(ticks, [f"{t}/{g}" for t in ticks], fontsize=6.5)
    axes.grid(visible=False)
    axes.set_xlabel("current bin", labelpad=2)
    style.title(axes, f"{title}\nbelow diagonal: {cells['share_below_diagonal'].iloc[0]:.1%}")
