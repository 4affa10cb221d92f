"""The first look: four rows of Table 1 with one seed, what they mean, and a picture. Files: first_look.md and .png."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

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
GAINS = "Points above the base model, average of the benchmarks, 95% interval: {gains}."
BELOW = (
    "Accuracy is in percent, ± half of its 95% interval for new problems: {problems} problems, {samples} samples of "
    "each. Rollouts are the responses that training generated.",
    "One seed is one model of each method. Another seed may turn the order round, so this says nothing yet about "
    "the methods. {note}",
    "Still to come: Table 1 has {runs} runs ({tasks}), and {done} of them are evaluated. `{command}` makes the others. "
    "Meanwhile `python -m bapo watch` shows the rows of Table 1 that are there.",
)


def write(study: Study, out: Path) -> list[Path]:
    """Write the page and its picture. Raises UserError naming a run that is not evaluated."""
    block = _block(study)
    rows = results.collect(block, study)
    columns = results.columns(block)
    cells = [
        [_name(r), *(text.percent(r.mean(c).problems) for c, _ in columns), text.thousands(r.costs["rollouts"])]
        for r in rows
    ]
    header = ["Method", *(title for _, title in columns), "Rollouts"]
    outcomes = list(rows[0].outcomes.values())
    done, runs = (sum(len(c) for b in s.blocks for c in b.methods.values()) for s in (evaluated(study), study))
    named = {
        "problems": sum(len(o.problems) for o in outcomes),
        "samples": outcomes[0].samples,
        "note": study.note,
        "runs": runs,
        "done": done,
        "tasks": ", ".join(dict.fromkeys(b.task_title for b in study.blocks)),
        "command": workflow_command([MAIN], study.config),
    }
    below = [*_meaning(rows), *(line.format(**named).rstrip() for line in BELOW)]
    page = Page(
        at_scale("A first look", study.scale),
        [Table(block.title, header, cells, "l" + "r" * (len(columns) + 1), below)],
    )
    write_text(out / MARKDOWN, f"{page.markdown()}\n![The same as a picture]({PICTURE})\n")
    _draw(block, rows, study, out / PICTURE)
    return [out / MARKDOWN, out / PICTURE]


def _block(study: Study) -> Block:
    """Return the runs of the first look, as the workflow chooses them."""
    chosen = order.first_look([cell for b in study.blocks for runs in b.methods.values() for cell in runs])
    block = next(b for b in study.blocks if (b.task, b.model) == (chosen[0].task, chosen[0].model))
    methods = {m: tuple(cell for cell in runs if cell in chosen) for m, runs in block.methods.items()}
    return replace(block, methods={m: runs for m, runs in methods.items() if runs})


def _name(row: Result) -> str:
    return "base model" if row.is_base else plain(row.title)


def _meaning(rows: Sequence[Result]) -> list[str]:
    """Say what each method gained over the base model, and how the last one stands to the others."""
    pairs = results.compare(rows, AVERAGE)
    trained = [row for row in rows if not row.is_base]
    *others, last = trained
    gains = [f"{_name(row)} {_points(c)}" for row in trained if (c := results.between(pairs, row.method, BASE))]
    said = [GAINS.format(gains=", ".join(gains))] if gains else []
    for other in others:
        if pair := results.between(pairs, last.method, other.method):
            told = "these two models differ" if pair.differ else "these two models cannot be told apart"
            said.append(f"{_name(last)} minus {_name(other)}: {_points(pair)} points; {told}.")
    return said


def _points(pair: Comparison) -> str:
    return text.change(pair.difference.problems)


def _draw(block: Block, rows: Sequence[Result], study: Study, path: Path) -> None:
    study = replace(study, blocks=(block,))
    with style.settings():
        frame, window = frames.smoothed(study, ["reward_mean"])
        fig, [bars, rewards] = style.grid(CAPTION.format(window=frames.averaged(window)), 2, 2, 2.2)
        for y, row in enumerate(rows):
            e = row.mean(AVERAGE).problems
            colour = style.GREY if row.is_base else style.method_line(row.method, y)["color"]
            bars.barh(y, 100 * e.mean, color=colour, height=0.6)
            mean, low, high = 100 * np.array([[e.mean], [e.low], [e.high]])
            style.whiskers(bars, mean, [y], (low, high), color=style.BLACK)
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
