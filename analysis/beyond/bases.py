"""Base models of one kind: the same model, data and training of the base, drawn from another seed.

All training seeds of one block start from one base model, so their spread says nothing of another base. Where a study
has several bases of a kind, a difference is pooled over them, with the base as a random effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import reading, results, statistics, text
from analysis.page import Table
from analysis.results import AVERAGE, COST_HEADER, cost_cells
from analysis.study import Block

if TYPE_CHECKING:
    from analysis.tables.comparison import Compared

#: parts of a run's config.yaml that make its base model
MAKES = ("task", "data", "model", "base")
#: of those, what differs between bases of one kind
DRAWN = {"model": ("name", "title"), "base": ("seed",)}


def kind(block: Block) -> str:
    """Return what makes a block's base model but for its seed; "" where the runs do not say."""
    first = next(iter(block.methods.values()))[0]
    config = reading.config(first)
    if any(not isinstance(config.get(key), dict) for key in MAKES):
        return ""
    made = {key: {k: v for k, v in config[key].items() if k not in DRAWN.get(key, ())} for key in MAKES}
    return json.dumps(made, sort_keys=True)


def of_one_kind(blocks: Sequence[Block]) -> list[list[Block]]:
    """Return the blocks whose bases are draws of one kind, two or more of each."""
    kinds: dict[str, list[Block]] = {}
    for block in blocks:
        kinds.setdefault(kind(block), []).append(block)
    return [same for name, same in kinds.items() if name and len(same) > 1]


# ------------------------------------------------------------------------------------------------ the table

HEADER = ("Method", "Each base", "Avg minus reference", "p (Holm)", "Against it", *COST_HEADER)


def over_bases(compared: Sequence[Compared]) -> tuple[list[Table], list[dict[str, Any]]]:
    """Return a table of each kind of base with two or more blocks, and its rows under the columns of a comparison.

    A method has a row where it shares training seeds with the reference from every base.
    """
    tables, rows = [], []
    of = {id(c.block): c for c in compared}
    for blocks in of_one_kind([c.block for c in compared]):
        same = [of[id(block)] for block in blocks]
        methods = [m for m in same[0].against.get(AVERAGE, {}) if all(_paired(c, m) for c in same)]
        if not methods:
            continue
        found = [row for name, title in results.columns(blocks[0]) for row in _rows(same, methods, name, title)]
        found.sort(key=lambda row: methods.index(row["method"]))
        shown = [_cells(row, same) for row in found if row["benchmark"] == AVERAGE]
        title = f"{blocks[0].task_title}, pooled over {len(same)} base models: minus {same[0].reference}"
        below = text.words("bases", bases=", ".join(b.model_title for b in blocks))
        tables.append(Table(title, HEADER, shown, "l" + "r" * (len(HEADER) - 1), below))
        rows += found
    return tables, rows


def _paired(compared: Compared, method: str) -> bool:
    pair = compared.against.get(AVERAGE, {}).get(method)
    return pair is not None and bool(pair.difference.by_seed)


def _rows(same: Sequence[Compared], methods: Sequence[str], column: str, title: str) -> Iterator[dict[str, Any]]:
    """Yield one pooled row a method, in points, with Holm's p over these rows."""
    block = same[0].block
    pairs = {method: [c.against[column][method] for c in same] for method in methods}
    pooled = {m: statistics.mean_over_bases([p.difference.tested for p in of]) for m, of in pairs.items()}
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
            "difference": 100 * e.mean,
            **text.points(e, "se", "low", "high", prefix="difference_"),
            "p": e.p,
            "p_holm": float(p),
            "margin": 100 * margin,
            "verdict": results.verdict(statistics.OverSeeds(e, e), float(p), margin),
            **{f"base_{i}": 100 * pair.difference.mean for i, pair in enumerate(pairs[method], 1)},
        }


def _cells(row: Mapping[str, Any], same: Sequence[Compared]) -> list[str]:
    each = ", ".join(text.signed(row[f"base_{i}"]) for i in range(1, row["bases"] + 1))
    ends = " to ".join(text.signed(row[f"difference_{end}"]) for end in ("low", "high"))
    costs = [r.costs for c in same for r in c.rows if r.method == row["method"]]
    mean_costs = cost_cells({key: sum(c[key] for c in costs) / len(costs) for key in costs[0]})
    shown = f"{text.signed(row['difference'])} ({ends})"
    return [row["title"], each, shown, text.p_number(row["p_holm"]), row["verdict"], *mean_costs]
