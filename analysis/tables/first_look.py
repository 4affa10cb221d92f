"""The first look: four rows of Table 1 with one seed, what they mean, and a picture. Files: first_look.md and .png."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis import results, style, text
from analysis.figures import ablations, curves, frames
from analysis.page import Page, Table, heading
from analysis.products import FIRST_LOOK, MAIN
from analysis.results import AVERAGE, BASE, ByMethod, Row
from analysis.study import Block, StudyFile, evaluated, plain, workflow_command
from bapo.experiments import order
from bapo.store.files import atomic, write_text

MARKDOWN, PICTURE = f"{FIRST_LOOK}.md", f"{FIRST_LOOK}.png"


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write the page and its picture. Raises UserError naming a run that is not evaluated."""
    block = _block(study)
    frame = results.frame(study.of([block]))
    rows = results.by_method(frame, block)
    columns = results.columns(block)
    cells = [
        [
            _name(of[AVERAGE]),
            *(text.percent(*text.ends(of[name])) for name, _ in columns),
            text.thousands(of[AVERAGE]["rollouts"]),
        ]
        for of in rows.values()
    ]
    header = ["Method", *(title for _, title in columns), "Rollouts"]
    first = next(iter(rows.values()))[AVERAGE]
    fields = {
        **{key: first[key] for key in ("problems", "samples")},
        "note": study.note,
        "runs": len(study.cells),
        "done": len(evaluated(study).cells),
        "tasks": ", ".join(dict.fromkeys(b.task_title for b in study.blocks)),
        "command": workflow_command([MAIN], study.config),
    }
    meaning = _meaning(block, rows, results.pairs(frame[frame["benchmark"] == AVERAGE]))
    below = [*meaning, *(line.rstrip() for line in text.words("first_look", **fields))]
    page = Page(heading("A first look", study.scale), [Table(block.title, header, cells, below=below)])
    write_text(out / MARKDOWN, f"{page.markdown()}\n![The same as a picture]({PICTURE})\n")
    _draw(block, rows, study, out / PICTURE)
    return [out / MARKDOWN, out / PICTURE]


def _block(study: StudyFile) -> Block:
    """Return the runs of the first look, as the workflow chooses them."""
    cells = order.first_look(study.cells)
    block = next(b for b in study.blocks if (b.task, b.model) == (cells[0].task, cells[0].model))
    methods = {m: tuple(cell for cell in runs if cell in cells) for m, runs in block.methods.items()}
    return replace(block, methods={m: runs for m, runs in methods.items() if runs})


def _name(row: Row) -> str:
    return "base model" if row["method"] == BASE else plain(row["title"])


def _meaning(block: Block, rows: ByMethod, pairs: pd.DataFrame) -> list[str]:
    """Say what each method gained over the base model, and how the last one stands to the others."""
    names = {method: _name(of[AVERAGE]) for method, of in rows.items()}
    *others, last = (method for method in names if method != BASE)

    def points(of: str, minus: str) -> str:
        row = results.of_pair(pairs, block, of, minus)
        return text.change(row["difference"], row["low_problems"], row["high_problems"])

    gains = [f"{names[method]} {points(method, BASE)}" for method in (*others, last) if BASE in names]
    sentences = text.words("gains", gains=", ".join(gains)) if gains else []
    for other in others:
        differ = results.of_pair(pairs, block, last, other)["these_models_differ"]
        verdict = "these two models differ" if differ else "the difference of these two models is not significant"
        sentences.append(f"{names[last]} minus {names[other]}: {points(last, other)} points; {verdict}.")
    return sentences


def _draw(block: Block, rows: ByMethod, study: StudyFile, path: Path) -> None:
    study = study.of([block])
    with style.settings():
        frame, averaged = frames.smoothed(study, ["reward_mean"])
        fig, [ends, rewards] = style.grid(" ".join(text.words("first_picture", averaged=averaged)), 2, 2, 2.2)
        ablations.dots(ends, block, rows, {m: block.plain_title(m) for m in block.methods})
        ends.set_title("Accuracy after training")
        curves.lines(rewards, frame, block, "smoothed")
        rewards.set_title("Mean reward while they trained")
        with atomic(path) as temporary:
            fig.savefig(temporary, format="png", metadata={"Software": None})
