"""A study as a table: every method or variant beside the reference that the study names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import paper, reading, results, text
from analysis.beyond import bases
from analysis.page import Page, Table, at_scale
from analysis.products import compared_file
from analysis.results import AVERAGE, Comparison, Result, share_columns
from analysis.statistics import SeedMean
from analysis.study import Block, Study
from analysis.tables import table3

#: sections of a configuration in which a method or variant may differ from the reference
COMPARED = ("method", "train", "sampling", "probe")
#: longest list of changed options that is printed in the Markdown; all of them are in the CSV
SHOWN_CHANGES = 4


@dataclass(frozen=True)
class Compared:
    """One block. against: column -> method -> its difference to the reference; empty without the reference's runs."""

    block: Block
    rows: tuple[Result, ...]  # the base model, the reference, the others
    reference: str
    against: Mapping[str, Mapping[str, Comparison]]
    over_base: Mapping[str, Mapping[str, Comparison]]  # likewise
    shares: Mapping[str, Mapping[str, SeedMean]]  # likewise: (row - GRPO) / (GRPO - base)
    changed: Mapping[str, Sequence[str]]
    short: Mapping[str, Sequence[int]]  # method -> seeds whose run ended before it had used its budget


def seeds_of(seeds: Sequence[int]) -> str:
    """Return numbers of training seeds in words: seeds 1, 2."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def compare(block: Block, study: Study) -> Compared:
    """Return every row of a block against the study's reference, as Table 1 compares two rows."""
    rows = results.collect(block, study)
    rows.sort(key=lambda r: (not r.is_base, r.method != study.reference))
    of = {r.method: r for r in rows}
    margins = results.margins(block, rows)
    against, over_base = (
        {name: results.against(rows, of[beside], name, m) for name, m in margins.items() if beside in of}
        for beside in (study.reference, results.BASE)
    )
    shares = {name: results.shares(rows, name) for name in margins}
    short = {method: reading.short_of_budget(cells, study) for method, cells in block.methods.items()}
    return Compared(block, tuple(rows), study.reference, against, over_base, shares, changes(block, study), short)


# ------------------------------------------------------------------------------------------------ what changed


def changes(block: Block, study: Study) -> dict[str, Sequence[str]]:
    """method -> the options in which its runs' config.yaml differ from the reference's: "v: 5 -> 10".

    A method with another algorithm than the reference's differs in more than options can say: "another algorithm".
    Only options that both have are compared; a budget is compared in whole.
    """
    first = {m: next(iter(configs.values())) for m, configs in table3.configurations(block, study).items()}
    ours = first.get(study.reference, {})
    changed: dict[str, Sequence[str]] = {}
    for method, theirs in first.items():
        other = ours and theirs.get("method.algorithm") != ours.get("method.algorithm")
        changed[method] = ["another algorithm"] * bool(other) + [
            f"{key.removeprefix('method.')}: {table3.shown(value)} -> {table3.shown(theirs[key])}"
            for key, value in ours.items()
            if key.split(".")[0] in COMPARED and key not in (*table3.NAMES, "method.algorithm")
            if key in theirs and theirs[key] != value
        ]
    return changed


# ------------------------------------------------------------------------------------------------ as text


def _accuracy(row: Result, column: str) -> str:
    m = row.mean(column)
    spread = f" (sd {text.number(100 * m.seed_sd)})" if math.isfinite(m.seed_sd) else ""
    return text.percent(m.problems) + spread


def _row(compared: Compared, row: Result, columns: Sequence[tuple[str, str]]) -> list[str]:
    cells = [row.title, *(_accuracy(row, name) for name, _ in columns)]
    test = compared.against.get(AVERAGE, {}).get(row.method)
    if test:
        cells += [text.change(test.difference.tested), text.p_number(test.adjusted), test.verdict]
    else:
        cells += ["reference" if row.method == compared.reference else text.MISSING, text.MISSING, text.MISSING]
    share, printed = compared.shares[AVERAGE].get(row.method), paper_share(compared.block, row.method)
    cells.append(text.change(share.tested) if share else text.MISSING)
    cells.append(text.MISSING if printed is None else text.signed(100 * printed))
    cells += results.cost_cells(row.costs)
    listed = compared.changed.get(row.method, ())
    more = [f"{len(listed) - SHOWN_CHANGES} more in the csv"] if len(listed) > SHOWN_CHANGES else []
    return [*cells, "; ".join([*listed[:SHOWN_CHANGES], *more])]


def table(compared: Compared) -> Table:
    columns = results.columns(compared.block)
    reference = next((r.title for r in compared.rows if r.method == compared.reference), compared.reference).lstrip("+")
    header = ["Method", *(title for _, title in columns), f"Avg minus {reference}", "p (Holm)", "Against it"]
    header += ["% of GRPO's gain", "The paper's", *results.COST_HEADER, "Changed"]
    below = [] if compared.against else [f"The study has no run of {compared.reference}, so nothing is compared."]
    below += [
        f"{row.title.lstrip('+')}: {seeds_of(compared.short[row.method])} ended at the limit of the steps, before the "
        "budget was used."
        for row in compared.rows
        if compared.short.get(row.method)
    ]
    rows = [_row(compared, row, columns) for row in compared.rows]
    return Table(compared.block.title, header, rows, "l" + "r" * (len(header) - 2) + "l", below)


# ------------------------------------------------------------------------------------------------ files


def paper_share(block: Block, method: str) -> float | None:
    """Return the paper's lead of a method over GRPO as a share of GRPO's gain, on average; None where it has none."""
    printed = paper.match(block.task, block.model, block.paper_model)
    return printed.share_of_gain(method, AVERAGE) if printed else None


def long_rows(compared: Compared) -> list[dict[str, Any]]:
    """Return one row a method and column, in percent and points."""
    rows = []
    for row in compared.rows:
        for name, title in results.columns(compared.block):
            m, test = row.mean(name), compared.against.get(name, {}).get(row.method)
            gain = compared.over_base.get(name, {}).get(row.method)
            seeds = {} if row.is_base else dict(zip(row.seeds, m.seed_means, strict=True))
            share, printed = compared.shares[name].get(row.method), paper_share(compared.block, row.method)
            rows.append(
                {
                    **compared.block.keys(row.method),
                    "title": row.title,
                    "benchmark": name,
                    "benchmark_title": title,
                    "seeds": len(seeds),
                    "mean": 100 * m.mean,
                    **text.points(m.problems, "low", "high"),
                    "seed_sd": 100 * m.seed_sd,
                    "reference": compared.reference,
                    **_difference(test, "difference", "se", "low", "high"),
                    "paired_seeds": len(test.difference.by_seed) if test else None,
                    "p": test.difference.tested.p if test else None,
                    "p_holm": test.adjusted if test else None,
                    "margin": 100 * test.margin if test else None,
                    "verdict": test.verdict if test else "",
                    **share_columns(share),
                    "paper_share": None if printed is None or name != AVERAGE else 100 * printed,
                    **_difference(gain, "over_base", "low", "high"),
                    "over_base_p_holm": gain.adjusted if gain else None,
                    "changed": "; ".join(compared.changed.get(row.method, ())),
                    "budget_not_reached": len(compared.short.get(row.method, ())),
                    **row.costs,
                    **{f"seed_{s}": 100 * v for s, v in seeds.items()},
                }
            )
    return rows


def _difference(test: Comparison | None, name: str, *fields: str) -> dict[str, float | None]:
    columns = [name, *(f"{name}_{field}" for field in fields)]
    if test is None:
        return dict.fromkeys(columns)
    return {name: 100 * test.difference.mean, **text.points(test.difference.tested, *fields, prefix=f"{name}_")}


def write(study: Study, out: Path) -> list[Path]:
    """comparison_STUDY.csv, .md and .tex; comparison.* for a study file without a name."""
    import pandas as pd

    blocks = [compare(block, study) for block in study.blocks]
    tables, pooled = bases.over_bases(blocks)
    rows = [row for c in blocks for row in long_rows(c)] + pooled
    heading = at_scale(f"Comparison: {study.title or study.name or 'these runs'}", study.scale)
    seeds = text.counted([len(cells) for b in study.blocks for cells in b.methods.values()], "training seed")
    notes = [*study.notes, *text.words("comparison", "varies", seeds=seeds, level=results.LEVEL)]
    page = Page(heading, [*map(table, blocks), *tables], notes)
    return page.write(out, compared_file(study.name), pd.DataFrame(rows))
