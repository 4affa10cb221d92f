"""A study as a table: every method or variant beside the reference that the study names.

All training seeds of one block start from one base model, so their spread says nothing of another base. Where a study
has several bases of a kind, a difference is also pooled over them, with the base as a random effect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import paper, reading, results, statistics, text
from analysis.page import Page, Table
from analysis.products import compared_file
from analysis.results import AVERAGE, Comparison, Result
from analysis.statistics import SeedMean
from analysis.study import Block, Cell, Study
from analysis.tables import table3
from bapo.store.files import STEPS

#: sections of a configuration in which a method or variant may differ from the reference
COMPARED = ("method", "train", "sampling", "probe")
#: sections that make a run's base model, and of those what differs between bases of one kind
MAKES, DRAWN = ("task", "data", "model", "base"), {"model": ("name", "title"), "base": ("seed",)}
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
    doses: Mapping[str, Mapping[str, float]]  # method -> X2, X3: percent of the groups that it trains on


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
    changed = changes(block, study.reference)
    doses = {method: dose(cells, study) for method, cells in block.methods.items()}
    return Compared(block, tuple(rows), study.reference, against, over_base, shares, changed, short, doses)


def dose(cells: Sequence[Cell], study: Study) -> dict[str, float]:
    """Return X2's and X3's percent of all groups in the batches of a method's runs; {} where it has neither."""
    try:
        groups = sum(reading.table(cell, STEPS, study, ["x1", "x2", "x3"]).sum() for cell in cells)
    except reading.NotRecorded:
        return {}
    return {name.upper(): 100 * groups[name] / groups.sum() for name in ("x2", "x3") if groups["x2"] + groups["x3"] > 0}


# ------------------------------------------------------------------------------------------------ what changed


def changes(block: Block, reference: str) -> dict[str, Sequence[str]]:
    """method -> the options in which its runs' config.yaml differ from the reference's: "v: 5 -> 10".

    A method with another algorithm than the reference's differs in more than options can say: "another algorithm".
    Only options that both have are compared; a budget is compared in whole.
    """
    first = {m: text.flat(reading.config(cells[0])) for m, cells in block.methods.items()}
    ours = first.get(reference, {})
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


def _cells(compared: Compared, row: Result) -> dict[str, str]:
    """Return a row of the table under its header."""
    reference = next((r.title for r in compared.rows if r.method == compared.reference), compared.reference).lstrip("+")
    cells = {"Method": row.title}
    for name, title in results.columns(compared.block):
        m = row.mean(name)
        spread = f" (sd {text.number(100 * m.seed_sd)})" if math.isfinite(m.seed_sd) else ""
        cells[title] = text.percent(m.problems) + spread
    test, share = compared.against.get(AVERAGE, {}).get(row.method), compared.shares[AVERAGE].get(row.method)
    none = "reference" if row.method == compared.reference else text.MISSING
    cells[f"Avg minus {reference}"] = text.change(test.difference.tested) if test else none
    cells["p (Holm)"] = text.p_number(test.adjusted if test else None)
    cells["Against it"] = test.verdict if test else text.MISSING
    cells["% of GRPO's gain"] = text.change(share.tested) if share else text.MISSING
    printed = paper_share(compared.block, row.method)
    cells["The paper's"] = text.MISSING if printed is None else text.signed(100 * printed)
    listed = compared.changed.get(row.method, ())
    more = [f"{len(listed) - SHOWN_CHANGES} more in the csv"] if len(listed) > SHOWN_CHANGES else []
    cells |= {name: text.number(compared.doses.get(row.method, {}).get(name)) for name in ("X2", "X3")}
    return cells | results.cost_cells(row.costs) | {"Changed": "; ".join([*listed[:SHOWN_CHANGES], *more])}


def table(compared: Compared) -> Table:
    below = [] if compared.against else [f"The study has no run of {compared.reference}, so nothing is compared."]
    below += [
        f"{row.title.lstrip('+')}: {seeds_of(compared.short[row.method])} ended at the limit of the steps, before the "
        "budget was used."
        for row in compared.rows
        if compared.short.get(row.method)
    ]
    rows = [_cells(compared, row) for row in compared.rows]
    if all(row["The paper's"] == text.MISSING for row in rows):
        rows = [{name: cell for name, cell in row.items() if name != "The paper's"} for row in rows]
    return Table.of(compared.block.title, rows, "l" + "r" * (len(rows[0]) - 2) + "l", below)


# ------------------------------------------------------------------------------------------------ over base models


def kind_of_base(block: Block) -> str:
    """Return what makes a block's base model but for its seed; "" where the runs do not say."""
    config = reading.config(next(iter(block.methods.values()))[0])
    if any(not isinstance(config.get(key), dict) for key in MAKES):
        return ""
    made = {key: {k: v for k, v in config[key].items() if k not in DRAWN.get(key, ())} for key in MAKES}
    return json.dumps(made, sort_keys=True)


def kinds(study: Study) -> dict[str, list[Block]]:
    """Return the blocks that have runs by task and kind of base model."""
    found: dict[str, list[Block]] = {}
    for block in filter(lambda block: block.methods, study.blocks):
        found.setdefault(f"{block.task} {kind_of_base(block) or block.model}", []).append(block)
    return found


def over_bases(compared: Sequence[Compared]) -> tuple[list[Table], list[dict[str, Any]]]:
    """Return a table of each kind of base with two or more blocks, and its rows under the columns of a comparison.

    A method has a row where it shares training seeds with the reference from every base.
    """
    kinds: dict[str, list[Compared]] = {}
    for each in compared:
        kinds.setdefault(kind_of_base(each.block), []).append(each)
    tables, rows = [], []
    for same in (same for name, same in kinds.items() if name and len(same) > 1):
        first, pairs = same[0], [c.against.get(AVERAGE, {}) for c in same]
        methods = [m for m in pairs[0] if all(m in of and of[m].difference.by_seed for of in pairs)]
        if not methods:
            continue
        found = [row for name, title in results.columns(first.block) for row in _pooled(same, methods, name, title)]
        found.sort(key=lambda row: methods.index(row["method"]))
        cells = [_pooled_cells(row, same) for row in found if row["benchmark"] == AVERAGE]
        title = f"{first.block.task_title}, pooled over {len(same)} base models: minus {first.reference}"
        below = text.words("bases", bases=", ".join(c.block.model_title for c in same))
        tables.append(Table.of(title, cells, below=below))
        rows += found
    return tables, rows


def _pooled(same: Sequence[Compared], methods: Sequence[str], column: str, title: str) -> Iterator[dict[str, Any]]:
    """Yield one pooled row a method, in points, with Holm's p over these rows."""
    block = same[0].block
    pairs = {method: [c.against[column][method] for c in same] for method in methods}
    pooled = {method: statistics.over_bases([pair.by_seed_and_problem for pair in of]) for method, of in pairs.items()}
    adjusted = statistics.holm([e.p for e in pooled.values()])
    for (method, e), p in zip(pooled.items(), adjusted, strict=True):
        margin = float(np.mean([pair.margin for pair in pairs[method]]))
        yield {
            "task": block.task,
            "model": f"{block.model} over {len(same)} bases",
            "method": method,
            "title": pairs[method][0].a.title,
            "benchmark": column,
            "benchmark_title": title,
            "seeds": min(len(pair.difference.by_seed) for pair in pairs[method]),
            "bases": len(same),
            "reference": same[0].reference,
            **text.columns("difference", e, "se", "low", "high"),
            "p": e.p,
            "p_holm": float(p),
            "margin": 100 * margin,
            "verdict": results.verdict(statistics.OverSeeds(e, e), float(p), margin),
            **{f"base_{i}": 100 * pair.difference.mean for i, pair in enumerate(pairs[method], 1)},
        }


def _pooled_cells(row: Mapping[str, Any], same: Sequence[Compared]) -> dict[str, str]:
    """Return a row of the table under its header."""
    difference, low, high = (text.signed(row[f"difference{end}"]) for end in ("", "_low", "_high"))
    costs = [r.costs for c in same for r in c.rows if r.method == row["method"]]
    return {
        "Method": row["title"],
        "Each base": ", ".join(text.signed(row[f"base_{i}"]) for i in range(1, row["bases"] + 1)),
        "Avg minus reference": f"{difference} ({low} to {high})",
        "p (Holm)": text.p_number(row["p_holm"]),
        "Against it": row["verdict"],
        **results.cost_cells({key: sum(c[key] for c in costs) / len(costs) for key in costs[0]}),
    }


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
            gain, share = compared.over_base.get(name, {}).get(row.method), compared.shares[name].get(row.method)
            printed = paper_share(compared.block, row.method) if name == AVERAGE else None
            rows.append(
                {
                    **compared.block.keys(row.method),
                    "title": row.title,
                    "benchmark": name,
                    "benchmark_title": title,
                    "seeds": len(row.seeds),
                    "mean": 100 * m.mean,
                    **text.points(m.problems, "low", "high"),
                    "seed_sd": 100 * m.seed_sd,
                    "reference": compared.reference,
                    **text.columns("difference", test.difference.tested if test else None, "se", "low", "high"),
                    "paired_seeds": len(test.difference.by_seed) if test else None,
                    "p": test.difference.tested.p if test else None,
                    "margin": 100 * test.margin if test else None,
                    "verdict": test.verdict if test else "",
                    "p_holm": test.adjusted if test else None,
                    **text.columns("share", share.tested if share else None, "low", "high"),
                    "paper_share": None if printed is None else 100 * printed,
                    **text.columns("over_base", gain.difference.tested if gain else None, "low", "high"),
                    "over_base_p_holm": gain.adjusted if gain else None,
                    "changed": "; ".join(compared.changed.get(row.method, ())),
                    "budget_not_reached": len(compared.short.get(row.method, ())),
                    **compared.doses.get(row.method, {}),
                    **row.costs,
                    **{f"seed_{seed}": 100 * v for seed, v in zip(row.seeds, m.seed_means, strict=not row.is_base)},
                }
            )
    return rows


def write(study: Study, out: Path) -> list[Path]:
    """comparison_STUDY.csv, .md and .tex; comparison.* for a study file without a name."""
    blocks = [compare(block, study) for block in study.blocks]
    tables, pooled = over_bases(blocks)
    rows = [row for c in blocks for row in long_rows(c)] + pooled
    seeds = text.counted([len(cells) for b in study.blocks for cells in b.methods.values()], "training seed")
    notes = text.words("comparison", "varies", seeds=seeds, level=results.LEVEL)
    title = f"Comparison: {study.title or study.name or 'these runs'}"
    page = Page.of(study, title, [*map(table, blocks), *tables], notes)
    return page.write(out, compared_file(study.name), rows)
