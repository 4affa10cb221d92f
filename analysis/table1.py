"""Table 1 of the paper from finished runs: table1.csv (long), table1.md, table1.tex and table1_differences.csv.

All accuracies are in percent, as the paper prints them. A row is a method, averaged over its training seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import paper, results, statistics, text
from analysis.results import AVERAGE, Comparison, Result
from analysis.study import Block, Study
from bapo.runs import write_text

#: (a, b): the comparisons that the paper's claims rest on, one sentence each below the table
CLAIMS = (("bapo", "grpo"), ("bapo", "dapo"))
#: methods whose gain over the base is stated
LEARNERS = ("grpo", "dapo")


@dataclass(frozen=True)
class Section:
    """One block with everything that its rows need."""

    block: Block
    rows: list[Result]
    columns: list[tuple[str, str]]
    comparisons: dict[str, dict[tuple[str, str], Comparison]]  # by column
    marks: dict[str, dict[str, str]]  # by column, by method
    paper: paper.PaperModel | None

    @staticmethod
    def of(block: Block, study: Study) -> Section:
        rows, columns = results.collect(block, study), results.columns(block)
        comparisons = {name: results.compare(rows, name) for name, _ in columns}
        marks = {name: results.marks(rows, name, comparisons[name]) for name, _ in columns}
        printed = paper.match(block.task, block.model, block.paper_model)
        return Section(block, rows, columns, comparisons, marks, printed)

    def comparison(self, column: str, a: str, b: str) -> Comparison | None:
        """a minus b, whichever way round the pair is kept."""
        pairs = self.comparisons[column]
        if (a, b) in pairs:
            return pairs[(a, b)]
        if (b, a) not in pairs:
            return None
        c = pairs[(b, a)]
        flip = [statistics.Estimate(-e.mean, e.se, e.df) for e in (c.difference.problems, c.difference.both)]
        return Comparison(c.b, c.a, column, statistics.SeedDifference(*flip), c.adjusted)

    def printed(self, method: str, column: str) -> str:
        """The paper's number, or a dash."""
        return (self.paper and self.paper.printed(method, column)) or text.MISSING

    @property
    def paper_columns(self) -> list[tuple[str, str]]:
        """The paper's accuracy columns for this block, and its rollouts where it prints any."""
        extra = [("rollouts", "Rollouts")] if self.paper and "rollouts" in self.paper.columns else []
        return [*self.columns, *extra] if self.paper else []


def write(study: Study, out: Path) -> list[Path]:
    """Write the table in every format; returns the files."""
    sections = [Section.of(block, study) for block in study.blocks]
    paths = [out / f"table1.{suffix}" for suffix in ("csv", "md", "tex")] + [out / "table1_differences.csv"]
    text.write_csv(paths[0], long_table(sections))
    write_text(paths[1], markdown(sections, study))
    write_text(paths[2], latex(sections, study))
    text.write_csv(paths[3], differences(sections))
    return paths


# ------------------------------------------------------------------------------------------------ CSV


def long_table(sections: list[Section]) -> Any:
    """A DataFrame, one row a model x method x column (percent; costs are means over seeds)."""
    import pandas as pd

    frame = pd.DataFrame([row for s in sections for row in _long_rows(s)])
    seeds = sorted((c for c in frame if c.startswith("seed_") and c[5:].isdigit()), key=lambda c: int(c[5:]))
    return frame[[c for c in frame if c not in seeds] + seeds]


def _long_rows(section: Section) -> Iterator[dict[str, Any]]:
    block = section.block
    for row in section.rows:
        for name, title in section.columns:
            m = row.mean(name)
            outcomes = [row.outcomes[b] for b, _ in block.benchmarks if name in (b, AVERAGE)]
            value = section.paper.value(row.method, name) if section.paper else None
            yield {
                "task": block.task, "model": block.model, "method": row.method, "method_title": row.title,
                "type": row.kind, "benchmark": name, "benchmark_title": title,
                "problems": sum(len(o.problems) for o in outcomes), "samples": outcomes[0].samples,
                "seeds": 0 if row.is_base else len(row.seeds), "mean": 100 * m.mean,
                "se": 100 * m.problems.se, "low": 100 * m.problems.low, "high": 100 * m.problems.high,
                "seed_sd": 100 * m.seed_sd, "se_problems_and_seeds": 100 * m.both.se,
                "low_problems_and_seeds": 100 * m.both.low, "high_problems_and_seeds": 100 * m.both.high,
                "sampling_se": 100 * _sampling(outcomes), **_pass_at_k(outcomes),
                "unparsed": 100 * (1 - np.mean([o.parsed.mean() for o in outcomes])),
                "mark": section.marks[name].get(row.method, ""), **row.costs,
                "paper_model": section.paper.title if section.paper else "", "paper": value,
                **({} if row.is_base else {f"seed_{s}": 100 * v for s, v in zip(row.seeds, m.seed_means, strict=True)}),
            }  # fmt: skip


def _sampling(outcomes: list[Any]) -> float:
    """Standard error from sampling alone, on these problems and trained models."""
    per_benchmark = [
        statistics.average_standard_error([statistics.sampling_noise(bits) for bits in o.correct]) for o in outcomes
    ]
    return statistics.average_standard_error(per_benchmark)


def _pass_at_k(outcomes: list[Any]) -> dict[str, float]:
    """pass@8 and pass@32 in percent, where there are that many samples; the mean over seeds, problems, benchmarks."""
    found = {}
    for k in (8, 32):
        enough = all(o.samples >= k for o in outcomes)
        values = [
            np.mean([statistics.pass_at_k(bits.sum(axis=1), o.samples, k).mean() for bits in o.correct])
            for o in outcomes
            if enough
        ]
        found[f"pass@{k}"] = 100 * float(np.mean(values)) if values else float("nan")
    return found


def differences(sections: list[Section]) -> Any:
    """A DataFrame, one row a pair of rows and column: the difference a - b in points and its tests."""
    import pandas as pd

    found = []
    for s in sections:
        for (a, b), c in ((pair, c) for column in s.comparisons.values() for pair, c in column.items()):
            for_problems, both = c.difference.problems, c.difference.both
            found.append({
                "task": s.block.task, "model": s.block.model, "benchmark": c.column, "a": a, "b": b,
                "difference": 100 * c.difference.mean,
                "se_problems": 100 * for_problems.se, "low_problems": 100 * for_problems.low,
                "high_problems": 100 * for_problems.high, "p_problems": for_problems.p,
                "se_problems_and_seeds": 100 * both.se, "low_problems_and_seeds": 100 * both.low,
                "high_problems_and_seeds": 100 * both.high, "p_problems_and_seeds": both.p,
                "p_holm": c.adjusted, "real": c.real,
            })  # fmt: skip
    return pd.DataFrame(found)


# ------------------------------------------------------------------------------------------------ sentences


def _cell(row: Result, name: str) -> tuple[str, str]:
    """("31.9 ± 1.8", "0.6"): mean and half-width; the spread between seeds ("" where there is none)."""
    m = row.mean(name)
    body = f"{text.number(100 * m.mean)} ± {text.number(100 * m.problems.half_width)}"
    return body, text.number(100 * m.seed_sd) if np.isfinite(m.seed_sd) else ""


def _interval(c: Comparison) -> str:
    e = c.difference.tested
    return f"{text.signed(100 * e.low)} to {text.signed(100 * e.high)}, {text.p_value(e.p)}"


def _verdict(c: Comparison, a: str, b: str) -> str:
    if not c.real:
        return "no real difference (the rule is in the notes)"
    return f"{a} is really {'above' if c.difference.mean > 0 else 'below'} {b}"


def claim_sentences(section: Section) -> list[str]:
    """BAPO against GRPO and against DAPO: difference, interval, p, rollouts; and what the paper reports."""
    found = []
    for a, b in CLAIMS:
        c = section.comparison(AVERAGE, a, b)
        if not c:
            continue
        name_a, name_b = (x.title.lstrip("+").replace(" (Ours)", "") for x in (c.a, c.b))
        each = []
        for column, title in section.block.benchmarks:
            d = section.comparison(column, a, b)
            each.append(f"{title} {text.signed(100 * d.difference.mean)} ({_interval(d)})")
        line = (
            f"{name_a} minus {name_b}, Avg: {text.signed(100 * c.difference.mean)} points "
            f"(95% interval {_interval(c)}, Holm-adjusted {text.p_value(c.adjusted)}): {_verdict(c, name_a, name_b)}."
        )
        line += f" {'; '.join(each)}."
        rollouts = [x.costs["rollouts"] for x in (c.a, c.b)]
        if all(np.isfinite(rollouts)) and rollouts[1] > 0:
            amounts = f"{text.thousands(rollouts[0])} against {text.thousands(rollouts[1])}"
            line += f" Rollouts: {rollouts[0] / rollouts[1]:.2f} times those of {name_b} ({amounts})."
        printed = [section.paper.value(m, AVERAGE) if section.paper else None for m in (a, b)]
        if None not in printed:
            line += f" The paper reports {text.signed(printed[0] - printed[1], 2)} points with {section.paper.title}."
        found.append(line)
    return found


def learning_sentences(section: Section) -> list[str]:
    """How far GRPO and DAPO end above the base on the first benchmark, for the worst and the best seed."""
    rows = {r.method: r for r in section.rows}
    if results.BASE not in rows:
        return []
    name, title = section.block.benchmarks[0]
    start = rows[results.BASE].mean(name).mean
    found = []
    for row in (rows[m] for m in LEARNERS if m in rows):
        gains = sorted(100 * (v - start) for v in row.mean(name).seed_means)
        amount = f"{text.signed(gains[0])} to {text.signed(gains[-1])}" if len(gains) > 1 else text.signed(gains[0])
        found.append(f"{row.title.lstrip('+')} minus base on {title}, over its seeds: {amount} points.")
    return found


def notes(sections: list[Section], study: Study) -> list[str]:
    """The lines below the table: what the scale can show, what a cell is, the rule of the marks, the paper's part."""
    rows = [r for s in sections for r in s.rows]
    seeds = [len(r.seeds) for r in rows if not r.is_base]
    samples = [o.samples for r in rows for o in r.outcomes.values()]
    problems = dict.fromkeys(
        f"{len(s.rows[0].outcomes[name].problems)} problems of {title}"
        for s in sections
        for name, title in s.block.benchmarks
    )
    lines = [study.note] if study.note else []
    single = min(seeds) < 2
    lines.append(
        f"Accuracy in percent, mean over {text.span(seeds)} training seed{'s' if max(seeds) > 1 else ''}, "
        f"{text.span(samples)} samples a problem, {', '.join(problems)}. "
        "±: half-width of the 95% t interval for new problems (problems are the clusters), the trained models given; "
        "it does not cover the variance between training seeds. "
        + ("With one seed nothing here does. " if single else "(sd): standard deviation between seeds. ")
        + "Avg: mean of the benchmarks, standard error sqrt(sum SE_b^2)/B. Rollouts: responses generated in training, "
        "re-evaluations included, mean over seeds."
    )
    over = "over problems" if single else "over problems and training seeds"
    lines.append(
        "Bold: the best of a column, only where it is really above every other row; underlined: then the second, "
        f"only where it is really above all below it. Real: paired t test on the same problems, error {over}, "
        f"p below {results.LEVEL:.2g} after Holm's correction for all pairs of rows in that column (within a model). "
        "No mark: no such difference was found."
    )
    titles = list(dict.fromkeys(s.paper.title for s in sections if s.paper))
    if titles:
        lines.append(
            f"Paper: the numbers that the paper prints in Table 1 for {', '.join(titles)}; "
            f"{text.MISSING}: it has no such row or number."
        )
    return lines


# ------------------------------------------------------------------------------------------------ Markdown


def markdown(sections: list[Section], study: Study) -> str:
    parts = ["# Table 1" + (f" at {study.scale} scale" if study.scale else ""), ""]
    for s in sections:
        parts += [f"## {s.block.title}", "", _markdown_table(s), *[f"- {x}" for x in _sentences(s)], ""]
    parts += ["## Notes", "", *[f"- {n}" for n in notes(sections, study)]]
    return "\n".join(parts).rstrip() + "\n"


def _sentences(section: Section) -> list[str]:
    return claim_sentences(section) + learning_sentences(section)


def _markdown_table(s: Section) -> str:
    header = ["Method", *(t for _, t in s.columns), "Rollouts", "Type", *(f"Paper: {t}" for _, t in s.paper_columns)]
    rows = []
    for r in s.rows:
        cells = [r.title]
        for name, _ in s.columns:
            body, spread = _cell(r, name)
            marked = text.markdown_mark(body, s.marks[name].get(r.method, ""))
            cells.append(marked + (f" (sd {spread})" if spread else ""))
        cells += [text.thousands(r.costs["rollouts"]), r.kind or text.MISSING]
        rows.append(cells + [s.printed(r.method, name) for name, _ in s.paper_columns])
    return text.markdown_table(header, rows, "l" + "r" * len(s.columns) + "rl" + "r" * len(s.paper_columns))


# ------------------------------------------------------------------------------------------------ LaTeX


def latex(sections: list[Section], study: Study) -> str:
    """A ``table*`` for each block, then the sentences and notes that belong to all of them."""
    lines = ["% generated; needs \\usepackage{booktabs}"]
    for s in sections:
        lines += _latex_block(s)
    below = [x for s in sections for x in _sentences(s)] + notes(sections, study)
    lines += ["", r"\begin{footnotesize}", *(text.latex(x) + r"\par" for x in below), r"\end{footnotesize}"]
    return "\n".join(lines) + "\n"


def _latex_block(s: Section) -> list[str]:
    ours, theirs = len(s.columns), len(s.paper_columns)
    top = ["", rf"\multicolumn{{{ours + 2}}}{{c}}{{This reproduction}}"]
    rules = rf"\cmidrule(lr){{2-{ours + 3}}}"
    if theirs:
        top.append(rf"\multicolumn{{{theirs}}}{{c}}{{Paper ({text.latex(s.paper.title)})}}")
        rules += rf" \cmidrule(lr){{{ours + 4}-{ours + theirs + 3}}}"
    titles = ["Method", *(t for _, t in s.columns), "Rollouts", "Type", *(t for _, t in s.paper_columns)]
    rows = []
    for r in s.rows:
        cells = [text.latex(r.title)]
        for name, _ in s.columns:
            body, spread = _cell(r, name)
            marked = text.latex_mark(text.latex(body), s.marks[name].get(r.method, ""))
            cells.append(marked + (rf" {{\scriptsize({spread})}}" if spread else ""))
        cells += [text.latex(text.thousands(r.costs["rollouts"])), text.latex(r.kind or text.MISSING)]
        rows.append(text.latex_row(cells + [text.latex(s.printed(r.method, n)) for n, _ in s.paper_columns]))
    caption = f"{s.block.title}: accuracy in percent, with the 95% interval and (small) the spread between seeds."
    return [
        "",
        r"\begin{table*}[t]",
        r"\centering\small",
        rf"\caption{{{text.latex(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * ours}rl{'r' * theirs}}}",
        r"\toprule",
        text.latex_row(top),
        rules,
        text.latex_row([text.latex(t) for t in titles]),
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]
