"""A study as a table: every method or variant beside the reference that the study names.

All training seeds of one block start from one base model, so their spread says nothing of another base. Where a study
has several bases of a kind, a difference is also pooled over them, with the base as a random effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import reading, results, statistics, text
from analysis.page import Page, Table
from analysis.products import compared_file
from analysis.results import AVERAGE, BASE, ByMethod, Row
from analysis.study import Block, StudyFile, StudyRun, model_of, plain
from analysis.tables import table3
from bapo.store.files import STEPS

#: sections of a configuration in which a method or variant may differ from the reference
COMPARED = ("method", "train", "sampling", "probe")
#: longest list of changed options that is printed in the Markdown; all of them are in the CSV
SHOWN_CHANGES = 4
#: columns of the frame that stand in comparison_STUDY.csv
COLUMNS = (
    r"^(task|model|method|title|benchmark|benchmark_title|seeds|mean|low|high|seed_.*|reference|difference.*|p|p_holm|"
    r"paired_seeds|margin|verdict|share.*|paper_share|over_base.*|changed|budget_not_reached|X2|X3|rollouts|"
    r"generated_tokens|seconds|updates|.*_flops|bases|base_\d+|improvement.*|iqm.*)$"
)


def seeds_of(seeds: Sequence[int]) -> str:
    """Return numbers of training seeds in words: seeds 1, 2."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def compare(study: StudyFile) -> pd.DataFrame:
    """Return the frame of a study, in each block the base model first, then the reference.

    It has the further columns changed: a list; short: the seeds whose run ended before it had used its budget, and
    their number; X2, X3: percent of the groups that a method trains on. Raises UserError naming a broken run.
    """
    frame = results.frame(study)
    last = (frame["method"] != BASE) * (1 + (frame["method"] != study.reference))
    order = frame.groupby(["task", "model"], sort=False).ngroup() * 3 + last
    further = {}
    for block in study.blocks:
        changed = changes(block, study.reference)
        for method, cells in block.methods.items():
            short = reading.short_of_budget(cells, study)
            row = {"changed": changed[method], "short": short, "budget_not_reached": len(short), **dose(cells, study)}
            further[block.task, block.model, method] = row
    none: Row = {"changed": [], "short": [], "budget_not_reached": 0}
    rows = pd.DataFrame([further.get(key, none) for key in results.keys(frame)], frame.index)
    return frame.join(rows).iloc[order.argsort(kind="stable")]


def dose(cells: Sequence[StudyRun], study: StudyFile) -> dict[str, float]:
    """Return X2's and X3's percent of all groups in the batches of a method's runs; {} where it has neither."""
    try:
        groups = sum(reading.table(cell, STEPS, study, ["x1", "x2", "x3"]).sum() for cell in cells)
    except reading.NotRecorded:
        return {}
    return {name.upper(): 100 * groups[name] / groups.sum() for name in ("x2", "x3") if groups["x2"] + groups["x3"] > 0}


def changes(block: Block, reference: str) -> dict[str, Sequence[str]]:
    """Return method -> the options in which its config.yaml differs from the reference's: "v: 5 -> 10".

    A method with another algorithm than the reference's differs in more than options can say: "another algorithm".
    Only options that both have are compared; a budget is compared in whole.
    """
    first = {m: text.flat(reading.config(cells[0])) for m, cells in block.methods.items()}
    ours = first.get(reference, {})
    changed: dict[str, Sequence[str]] = {}
    for method, theirs in first.items():
        other = ours and theirs.get("method.algorithm") != ours.get("method.algorithm")
        changed[method] = ["another algorithm"] * bool(other) + [
            f"{key.removeprefix('method.')}: {table3.as_text(value)} -> {table3.as_text(theirs[key])}"
            for key, value in ours.items()
            if key.split(".")[0] in COMPARED and key not in (*table3.NAMES, "method.algorithm")
            if key in theirs and theirs[key] != value
        ]
    return changed


def table(block: Block, rows: ByMethod) -> Table:
    """Return the table of a block. rows: of :func:`compare`."""
    averages = [of[AVERAGE] for of in rows.values()]
    reference = averages[0]["reference"]
    title = rows[reference][AVERAGE]["title"].lstrip("+") if reference in rows else reference
    lines = []
    for by_benchmark, row in zip(rows.values(), averages, strict=True):
        line = {"Method": row["title"]}
        for name, column in results.columns(block):
            spread = text.number(by_benchmark[name]["seed_sd"], missing="")
            line[column] = text.percent(*text.ends(by_benchmark[name])) + (f" (sd {spread})" if spread else "")
        none = "reference" if row["method"] == reference else text.MISSING
        line[f"Avg minus {title}"] = text.change(*text.ends(row, "difference")) if row["against"] else none
        line["p (Holm)"] = text.p_number(row["p_holm"])
        line["Against it"] = row["verdict"] or text.MISSING
        line["% of GRPO's gain"] = text.change(*text.ends(row, "share"))
        if any(np.isfinite(each["paper_share"]) for each in averages):
            line["The paper's"] = text.signed(row["paper_share"])
        options = row["changed"]
        more = [f"{len(options) - SHOWN_CHANGES} more in the csv"] if len(options) > SHOWN_CHANGES else []
        line |= {name: text.number(row.get(name)) for name in ("X2", "X3")}
        lines.append(line | results.cost_cells(row) | {"Changed": "; ".join([*options[:SHOWN_CHANGES], *more])})
    below = [] if reference in rows else [f"The study has no run of {reference}, so nothing is compared."]
    below += [
        f"{row['title'].lstrip('+')}: {seeds_of(row['short'])} ended at the limit of the steps, before the budget was "
        "used."
        for row in averages
        if row["short"]
    ]
    return Table.of(block.title, lines, "l" + "r" * (len(lines[0]) - 2) + "l", below)


# ------------------------------------------------------------------------------------------------ over base models


def over_bases(study: StudyFile, rows: Mapping[Block, ByMethod]) -> tuple[list[Table], list[Row]]:
    """Return a table of each kind of base with two or more blocks, and its rows under the columns of a comparison.

    A method has a row where it shares training seeds with the reference from every base. rows: of :func:`compare`.
    """
    tables, numbers = [], []
    for blocks in (blocks for blocks in reading.kinds(study, only_known=True).values() if len(blocks) > 1):
        each = [rows[block] for block in blocks]
        methods = [m for m in each[0] if all(m in of and of[m][AVERAGE]["paired_seeds"] > 0 for of in each)]
        if not methods:
            continue
        columns = [name for name, _ in results.columns(blocks[0])]
        model = model_of(blocks)
        pooled = {name: _pooled(model, [[of[m][name] for of in each] for m in methods]) for name in columns}
        title = f"{blocks[0].task_title}, pooled over {len(blocks)} base models: minus {study.reference}"
        below = text.words("bases", bases=", ".join(block.model_title for block in blocks))
        tables.append(Table.of(title, [_pooled_cells(row) for row in pooled[AVERAGE]], below=below))
        numbers += [pooled[name][i] for i in range(len(methods)) for name in columns]
    return tables, numbers


def _pooled(model: str, rows: Sequence[Sequence[Row]]) -> list[Row]:
    """Return one pooled row of each method's rows in one column, a row a base, with Holm's p over the methods.

    model: what stands in that column of all rows.
    """
    estimates = [statistics.over_bases([row["against"].by_seed_and_problem for row in of]) for of in rows]
    margins = [float(np.mean([row["margin"] for row in of])) for of in rows]
    adjusted = statistics.holm([e.p for e in estimates])
    within = statistics.holm([e.p_equivalent(m / 100) for e, m in zip(estimates, margins, strict=True)])
    pooled = []
    for of, e, margin, p, inside in zip(rows, estimates, margins, adjusted, within, strict=True):
        shared = {key: of[0][key] for key in ("task", "method", "title", "benchmark", "benchmark_title", "reference")}
        costs = {key: sum(row[key] for row in of) / len(of) for key in results.COSTS}
        pooled.append(
            {
                **shared,
                "model": model,
                "seeds": min(int(row["paired_seeds"]) for row in of),
                "bases": len(of),
                **text.columns("difference", e, "se", "low", "high"),
                "p": e.p,
                "p_holm": float(p),
                "margin": margin,
                "verdict": results.verdict(statistics.OverSeeds(e, e), float(p), float(inside), margin / 100),
                **{f"base_{i}": row["difference"] for i, row in enumerate(of, 1)},
                "costs": costs,
            }
        )
    return pooled


def _pooled_cells(row: Row) -> dict[str, str]:
    """Return a row of the table under its header."""
    return {
        "Method": row["title"],
        "Each base": ", ".join(text.signed(row[f"base_{i}"]) for i in range(1, row["bases"] + 1)),
        "Avg minus reference": text.change(*text.ends(row, "difference")),
        "p (Holm)": text.p_number(row["p_holm"]),
        "Against it": row["verdict"],
        **results.cost_cells(row["costs"]),
    }


# ------------------------------------------------------------------------------------------------ over tasks


def over_tasks(rows: Mapping[Block, ByMethod], reference: str) -> tuple[list[Table], list[Row]]:
    """Return a table of the methods that several tasks share with the reference, and its rows; none for one task.

    improvement: the chance that a run is above one of the reference's, of each block, and the mean over tasks of the
    mean over a task's base models; iqm: the interquartile mean of what runs gain over the base, in percent of what the
    reference gains. rows: of :func:`compare`.
    """
    blocks = [block for block, of in rows.items() if reference in of]
    tasks = Counter(block.task for block in blocks)
    above = partial(statistics.probability_of_improvement, weights=[1 / tasks[block.task] for block in blocks])
    if len(tasks) < 2:
        return [], []
    headers = [block.task_title if len(tasks) == len(blocks) else block.title for block in blocks]
    runs = {m: [rows[b][m][AVERAGE] for b in blocks if m in rows[b]] for m in rows[blocks[0]] if m != BASE}
    shared = {m: of for m, of in runs.items() if len(of) == len(blocks) and min(row["seeds"] for row in of) > 1}
    accuracy = {m: [100 * np.array(row["result"].mean(AVERAGE).seed_means) for row in of] for m, of in shared.items()}
    numbers, cells, whole = [], [], partial(text.number, digits=0)
    for method in accuracy if len(accuracy) > 1 and reference in accuracy else ():
        row: Row = {"task": "all", "model": f"{len(tasks)} tasks", "method": method, "benchmark": AVERAGE}
        row["title"], gained, each = shared[method][0]["title"], [], []
        if all(BASE in rows[block] for block in blocks):
            starts = [rows[block][BASE][AVERAGE]["mean"] for block in blocks]
            each_start = zip(accuracy[method], accuracy[reference], starts, strict=True)
            gained = [
                (ours - start) / (other.mean() - start) for ours, other, start in each_start if other.mean() > start
            ]
        if method != reference:
            sides = accuracy[method], accuracy[reference]
            each = [statistics.probability_of_improvement([x], [y]) for x, y in zip(*sides, strict=True)]
            row |= _with_ends("improvement", statistics.stratified(above, *sides))
        if len(gained) == len(blocks):
            row |= _with_ends("iqm", statistics.stratified(statistics.interquartile_mean, gained))
        shares = [whole(100 * float(share)) for share in each] or ["reference"] * len(blocks)
        over = {"All tasks": text.change(*text.ends(row, "improvement"), whole)}
        over["Interquartile mean of the gain, %"] = text.change(*text.ends(row, "iqm"), whole)
        numbers.append(row)
        cells.append({"Method": row["title"]} | dict(zip(headers, shares, strict=True)) | over)
    title = f"Over tasks: runs above a run of {plain(rows[blocks[0]][reference][AVERAGE]['title'])}, percent"
    return [Table.of(title, cells, below=text.words("over_tasks", draws=statistics.DRAWS))] if cells else [], numbers


def _with_ends(name: str, ends: tuple[float, float, float]) -> Row:
    return {f"{name}{end}": 100 * value for end, value in zip(("", "_low", "_high"), ends, strict=True)}


# ------------------------------------------------------------------------------------------------ files


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write comparison_STUDY.csv, .md and .tex, or comparison.* for a study file without a name.

    Raises UserError as :func:`compare`.
    """
    frame = compare(study)
    rows = {block: results.by_method(frame, block) for block in study.blocks}
    tables, pooled = over_bases(study, rows)
    across, of_tasks = over_tasks(rows, study.reference)
    tables = [*(table(block, of) for block, of in rows.items()), *tables, *across]
    seeds = text.counted([len(cells) for b in study.blocks for cells in b.methods.values()], "training seed")
    paper = ["beside_paper"] if frame["margin"].notna().any() else []
    notes = text.words("comparison", *paper, "varies", seeds=seeds, level=results.LEVEL)
    title = f"Comparison: {study.title or study.name or 'these runs'}"
    frame["margin"] = frame["margin"].where(frame["against"].notna())
    only_average = frame["benchmark"] == AVERAGE
    frame = frame.assign(changed=frame["changed"].map("; ".join), paper_share=frame["paper_share"].where(only_average))
    numbers = pd.concat([frame, pd.DataFrame([*pooled, *of_tasks])]).filter(regex=COLUMNS)
    return Page.of(study, title, tables, notes).write(out, compared_file(study.name), numbers)
