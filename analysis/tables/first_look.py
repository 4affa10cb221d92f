"""The first look: four rows of Table 1 with one seed, what they mean, and a picture. Files: first_look.md and .png."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis import results, style, text
from analysis.figures import ablations, curves, frames
from analysis.page import Page, Table, at_scale
from analysis.products import FIRST_LOOK, MAIN
from analysis.results import AVERAGE, BASE, Comparison, Result
from analysis.study import Block, Study, evaluated, plain, workflow_command
from bapo.experiments import order
from bapo.store.files import atomic, write_text

MARKDOWN, PICTURE = f"{FIRST_LOOK}.md", f"{FIRST_LOOK}.png"


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
    done, runs = (len(s.cells) for s in (evaluated(study), study))
    named = {
        "problems": sum(len(o.problems) for o in outcomes),
        "samples": outcomes[0].samples,
        "note": study.note,
        "runs": runs,
        "done": done,
        "tasks": ", ".join(dict.fromkeys(b.task_title for b in study.blocks)),
        "command": workflow_command([MAIN], study.config),
    }
    below = [*_meaning(rows), *(line.rstrip() for line in text.words("first_look", **named))]
    page = Page(at_scale("A first look", study.scale), [Table(block.title, header, cells, below=below)])
    write_text(out / MARKDOWN, f"{page.markdown()}\n![The same as a picture]({PICTURE})\n")
    _draw(block, rows, study, out / PICTURE)
    return [out / MARKDOWN, out / PICTURE]


def _block(study: Study) -> Block:
    """Return the runs of the first look, as the workflow chooses them."""
    chosen = order.first_look(study.cells)
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
    said = text.words("gains", gains=", ".join(gains)) if gains else []
    for other in others:
        if pair := results.between(pairs, last.method, other.method):
            told = "these two models differ" if pair.differ else "the difference of these two models is not significant"
            said.append(f"{_name(last)} minus {_name(other)}: {_points(pair)} points; {told}.")
    return said


def _points(pair: Comparison) -> str:
    return text.change(pair.difference.problems)


def _draw(block: Block, rows: Sequence[Result], study: Study, path: Path) -> None:
    study = study.of([block])
    with style.settings():
        frame, averaged = frames.smoothed(study, ["reward_mean"])
        fig, [ends, rewards] = style.grid(" ".join(text.words("first_picture", averaged=averaged)), 2, 2, 2.2)
        ablations.dots(ends, block, {r.method: r for r in rows}, {m: block.plain_title(m) for m in block.methods})
        ends.set_title("Accuracy after training")
        curves.lines(rewards, frame, block, "smoothed")
        rewards.set_title("Mean reward while they trained")
        with atomic(path) as temporary:
            fig.savefig(temporary, format="png", metadata={"Software": None})
