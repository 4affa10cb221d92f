"""The table of checkpoint choices in words: checkpoint_choice.csv, .md and .tex."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis import text
from analysis.study import Study
from analysis.tables.checkpoint_choice import numbers as choice
from analysis.tables.checkpoint_choice.numbers import AVERAGE, HALVES, LAST, TEST, TITLES, VALIDATION, Choice, Measured
from bapo.store.files import write_text

HEADER = (
    "Method",
    "Last",
    "Best on validation",
    "gain",
    "Best on test",
    "gain",
    "Best on half of test, measured on the other",
    "gain",
)
ALIGN = "lrrrrrrr"


def write(study: Study, out: Path) -> list[Path]:
    """Write the table in every format; returns the files."""
    choices = choice.collect(study)
    paths = [out / f"checkpoint_choice.{suffix}" for suffix in ("csv", "md", "tex")]
    text.write_csv(paths[0], choice.long_table(choices))
    write_text(paths[1], markdown(choices, study))
    write_text(paths[2], latex(choices, study))
    return paths


def rows(choices: Sequence[Choice]) -> list[list[str]]:
    """A row a method, on the average of the tests: single benchmarks are in the CSV file."""
    return [[c.block.method_title(c.method), *_cells(c)] for c in choices if c.benchmark == AVERAGE]


def _cells(c: Choice) -> list[str]:
    cells = [_accuracy(c.rules[LAST])]
    for rule in (VALIDATION, TEST, HALVES):
        m = c.rules.get(rule)
        cells += [_accuracy(m), _gain(m)] if m else [text.MISSING, text.MISSING]
    return cells


def _accuracy(m: Measured) -> str:
    e = m.accuracy.problems
    return f"{text.number(100 * e.mean)} ± {text.number(100 * e.half_width)}"


def _gain(m: Measured) -> str:
    e = choice.tested(m.gain)
    return f"{text.signed(100 * e.mean)} [{text.signed(100 * e.low)}, {text.signed(100 * e.high)}]"


def by_block(choices: Sequence[Choice]) -> dict[str, list[Choice]]:
    found: dict[str, list[Choice]] = {}
    for c in choices:
        found.setdefault(c.block.title, []).append(c)
    return found


def tests(c: Choice) -> str:
    return ", ".join(title for name, title in c.block.benchmarks if name != c.validation)


def sentences(block: Sequence[Choice]) -> list[str]:
    """What choosing on the test problems would have gained, in words and steps, of all choices of one block."""
    averages = [c for c in block if c.benchmark == AVERAGE]
    first = averages[0]
    held_out = first.validation or "no problems were kept out of training for it"
    found = [f"Test: {tests(first)}. Validation: {held_out}."]
    for c in averages:
        steps = "; ".join(
            f"{TITLES[r]}: step {', '.join(map(str, c.rules[r].steps))}" for r in (VALIDATION, TEST) if r in c.rules
        )
        name = c.block.method_title(c.method).lstrip("+")
        found.append(f"{name}: choosing on test seems to gain {_seeming([c])} ({steps}).")
        single = [o for o in block if o.method == c.method and o.benchmark != AVERAGE]
        if single:
            found[-1] += f" Chosen on each benchmark for that benchmark alone, on average {_seeming(single)}."
    return found


def _seeming(choices: Sequence[Choice]) -> str:
    """The mean gain as it seems, and as it is on problems that did not choose."""
    seems, holds = (
        text.signed(100 * sum(c.rules[r].gain.mean for c in choices) / len(choices))
        if all(r in c.rules for c in choices)
        else text.MISSING
        for r in (TEST, HALVES)
    )
    return f"{seems} points, {holds} when measured on problems it was not chosen on"


def notes(choices: Sequence[Choice], study: Study) -> list[str]:
    checkpoints = text.span(sorted({c.checkpoints for c in choices}))
    samples = text.span(sorted({c.samples for c in choices}))
    seeds = text.counted([len(c.rules[LAST].tables[0]) for c in choices], "seed")
    said = [
        f"Accuracy in percent, average of the test benchmarks, {samples} samples a problem, mean over {seeds}, ± 95% "
        f"interval for new problems. Each seed's checkpoint is chosen for itself, from {checkpoints} kept after the "
        "start; of equal ones the latest.",
        "Gain: minus the last checkpoint of the same seed on the same problems, with the 95% interval for new problems "
        "and, with two or more seeds, new training runs.",
        '"Best on test" is chosen on the samples that it is measured on: it can never lie below the last, and its '
        "interval knows nothing of the choice.",
        '"Best on half" is chosen on a random half of the problems of each test benchmark and measured on the other, '
        f"mean over {choice.SPLITS} splits, both halves in turn. Half as many problems choose less well than all, so "
        "it is, if anything, below what a choice on all test problems would gain on new ones. Its interval takes the "
        "problems as independent, although they share their choices.",
    ]
    return [*said, study.note] if study.note else said


def markdown(choices: Sequence[Choice], study: Study) -> str:
    lines = ["# Choice of the checkpoint" + (f" at {study.scale} scale" if study.scale else ""), ""]
    for title, these in by_block(choices).items():
        lines += [f"## {title}", "", text.markdown_table(HEADER, rows(these), ALIGN)]
        lines += [*[f"- {s}" for s in sentences(these)], ""]
    return "\n".join([*lines, "## Notes", "", *[f"- {n}" for n in notes(choices, study)]]) + "\n"


def latex(choices: Sequence[Choice], study: Study) -> str:
    blocks = by_block(choices)
    body: list[str] = []
    for title, these in blocks.items():
        body += [r"\midrule", rf"\multicolumn{{{len(HEADER)}}}{{l}}{{\textbf{{{text.latex(title)}}}}} \\"]
        body += [text.latex_row([text.latex(cell) for cell in row]) for row in rows(these)]
    below = [f"{title}: {s}" for title, these in blocks.items() for s in sentences(these)] + notes(choices, study)
    lines = [
        "% generated; needs \\usepackage{booktabs,graphicx}",
        r"\begin{table*}[t]",
        r"\centering",
        r"\caption{The last checkpoint, the best on validation problems and the best on the test problems.}",
        rf"\resizebox{{\textwidth}}{{!}}{{\begin{{tabular}}{{{ALIGN}}}",
        r"\toprule",
        text.latex_row([text.latex(h) for h in HEADER]),
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table*}",
        "",
        r"\begin{footnotesize}",
        *(text.latex(x) + r"\par" for x in below),
        r"\end{footnotesize}",
    ]
    return "\n".join(lines) + "\n"
