"""The first look: four rows of Table 1 with one seed, what they mean, and a picture. Files: first_look.md and .png."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis import results, style, text
from analysis.figures import curves, frames
from analysis.page import Page, Table, at_scale
from analysis.products import FIRST_LOOK, MAIN
from analysis.results import AVERAGE, BASE, Comparison, Result
from analysis.study import Block, Study, evaluated, plain, workflow_command
from bapo.experiments import order
from bapo.store.files import atomic, write_text

MARKDOWN, PICTURE = f"{FIRST_LOOK}.md", f"{FIRST_LOOK}.png"
CAPTION = (
    "Left: accuracy on the test problems at the end of training, average of the benchmarks, with its 95% interval for "
    "new problems. Right: mean reward of each step's own responses{window}. One seed: each bar and each line is one "
    "model."
)


def write(study: Study, out: Path) -> list[Path]:
    """Write the page and its picture. Raises UserError naming a run that is not evaluated."""
    block = _block(study)
    rows = results.collect(block, study)
    table = Table(
        block.title,
        ["Method", *(title for _, title in results.columns(block)), "Rollouts"],
        [_row(row, block) for row in rows],
        "l" + "r" * (len(block.benchmarks) + 2),
        [*_meaning(rows), *_limits(rows, study), _rest(study)],
    )
    page = Page(at_scale("A first look", study.scale), [table])
    write_text(out / MARKDOWN, f"{page.markdown()}\n![The same as a picture]({PICTURE})\n")
    _draw(block, rows, study, out / PICTURE)
    return [out / MARKDOWN, out / PICTURE]


def _block(study: Study) -> Block:
    """Return the runs of the first look, as the workflow chooses them."""
    cells = order.first_look([cell for b in study.blocks for runs in b.methods.values() for cell in runs])
    block = next(b for b in study.blocks if (b.task, b.model) == (cells[0].task, cells[0].model))
    return replace(block, methods={m: kept for m, runs in block.methods.items() if (kept := _in(runs, cells))})


def _in(runs: Sequence[order.R], chosen: Sequence[order.R]) -> tuple[order.R, ...]:
    return tuple(run for run in runs if run in chosen)


def _row(row: Result, block: Block) -> list[str]:
    accuracies = [text.percent(row.mean(name).problems) for name, _ in results.columns(block)]
    return [_name(row), *accuracies, text.thousands(row.costs["rollouts"])]


def _name(row: Result) -> str:
    return "base model" if row.is_base else plain(row.title)


# ------------------------------------------------------------------------------------------------ in words


def _meaning(rows: Sequence[Result]) -> list[str]:
    """Say what each method gained over the base model, and how the last one stands to the others."""
    pairs = results.compare(rows, AVERAGE)
    trained = [row for row in rows if not row.is_base]
    said = []
    if rows[0].is_base:
        gains = [f"{_name(row)} {_points(pairs[BASE, row.method])}" for row in trained]
        said.append(f"Points above the base model, average of the benchmarks, 95% interval: {', '.join(gains)}.")
    *others, last = trained
    for other in others:
        pair = pairs[other.method, last.method]
        told = "these two models differ" if pair.differ else "these two models cannot be told apart"
        said.append(f"{_name(last)} minus {_name(other)}: {_points(pair)} points; {told}.")
    return said


def _points(pair: Comparison) -> str:
    """Return the second row minus the first, in points."""
    e = pair.difference.problems
    low, high = text.signed(-100 * e.high), text.signed(-100 * e.low)
    return f"{text.signed(-100 * e.mean)} ({low} to {high})"


def _limits(rows: Sequence[Result], study: Study) -> list[str]:
    """Say how to read the table, and what one seed cannot show."""
    first = next(iter(rows[0].outcomes.values()))
    problems = sum(len(o.problems) for o in rows[0].outcomes.values())
    return [
        f"Accuracy is in percent, ± half of its 95% interval for new problems: {problems} problems, {first.samples} "
        "samples of each. Rollouts are the responses that training generated.",
        "One seed is one model of each method. Another seed may turn the order round, so this says nothing yet about "
        f"the methods. {study.note}".rstrip(),
    ]


def _rest(study: Study) -> str:
    """Say what is still to come."""
    done, runs = (sum(len(c) for b in s.blocks for c in b.methods.values()) for s in (evaluated(study), study))
    tasks = dict.fromkeys(block.task_title for block in study.blocks)
    command = workflow_command([MAIN], study.config)
    return (
        f"Still to come: Table 1 has {runs} runs ({', '.join(tasks)}), and {done} of them are evaluated. `{command}` "
        "makes the others. Meanwhile `python -m bapo watch` shows the rows of Table 1 that are there."
    )


# ------------------------------------------------------------------------------------------------ the picture


def _draw(block: Block, rows: Sequence[Result], study: Study, path: Path) -> None:
    study = replace(study, blocks=(block,))
    with style.settings():
        frame, window = frames.smoothed(study, ["reward_mean"])
        fig, [bars, rewards] = style.grid(CAPTION.format(window=frames.averaged(window)), 2, 2, 2.2)
        for y, row in enumerate(rows):
            estimate = row.mean(AVERAGE).problems
            colour = style.GREY if row.is_base else style.method_line(row.method, y)["color"]
            bars.barh(y, 100 * estimate.mean, color=colour, height=0.6)
            error: dict[str, Any] = {"color": style.BLACK, "capsize": 2, "linewidth": 1}
            bars.errorbar(100 * estimate.mean, y, xerr=100 * estimate.half_width, **error)
        bars.set_yticks(range(len(rows)), [_name(row) for row in rows])
        bars.invert_yaxis()
        bars.grid(axis="y", visible=False)
        bars.set_xlabel("test accuracy (%)")
        style.title(bars, "Accuracy after training")
        curves.lines(rewards, frame, block, "smoothed")
        rewards.set_ylabel("mean reward")
        style.title(rewards, "While they trained")
        with atomic(path) as temporary:
            fig.savefig(temporary, format="png", metadata={"Software": None})
