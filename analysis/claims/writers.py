"""The ledger as Markdown to read, CSV to sort, JSON with everything (the HTML report reads it)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis import text
from analysis.claims import VERDICTS
from analysis.claims.ledger import ALL, Line, as_dictionary
from analysis.page import markdown_table
from analysis.study import Study
from bapo.store.files import write_text

Row = dict[str, Any]  # of ledger.as_dictionary
ENDS = ("estimate", "low", "high")
INTRODUCTION = """\
Every quantitative sentence of the paper that the runs can be asked about. An interval is a 95% t interval for new
problems and new training seeds, as far as the runs can tell (for costs and training curves: new seeds). A claim about
a direction is **reproduced** where the whole interval lies on the claimed side, **contradicted** where all of it lies
on the other, **underpowered** otherwise; a claim about a size or a band likewise, with the band of its rule. Where the
paper gives a size for a direction, it is compared in words: at laptop scale the mechanism is tested, not the magnitude.
Every verdict is one claim's, at 95%, without correction for the number of claims; "p Holm" is corrected over all lines
that have a p value, and a firm verdict that would not survive it is marked with (*). "Overall" is the mean over tasks,
or, where the reason says so, all tasks at once. "Varies" names what an interval lets vary: problems, training seeds,
base models. What it does not name is given: a line without bases speaks of its one base model.
"""


def write(
    lines: Sequence[Line], studies: dict[str, Study], out: Path, name: str = "claims", paper: str = ""
) -> list[Path]:
    """NAME.md, NAME.csv and NAME.json in ``out``. paper: the title of another paper than this suite's."""
    import pandas as pd

    rows = [as_dictionary(line) for line in lines]
    scale = next((s.scale for s in studies.values()), "")
    note = next((s.note for s in studies.values()), "")
    paths = [out / f"{name}.{kind}" for kind in ("md", "csv", "json")]
    write_text(paths[0], markdown(rows, scale, note, paper))
    flat = [
        {k: " ".join(v) if k == "runs" else v for k, v in row.items() if k not in ("parts", "parameters", "studies")}
        for row in rows
    ]
    text.write_csv(paths[1], pd.DataFrame(flat))
    content = {
        **({"paper": paper} if paper else {}),
        "scale": scale,
        "note": note,
        "counts": counts(rows),
        "claims": rows,
    }
    write_text(paths[2], json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return paths


def counts(rows: Sequence[Row]) -> dict[str, Any]:
    """Count the lines with each verdict, those that only lack runs, and the claims behind them."""
    by_verdict = Counter(row["verdict"] for row in rows)
    return {
        "claims": len({row["id"] for row in rows}),
        "lines": {v: by_verdict[v] for v in VERDICTS},
        "overall": {v: sum(headline(rows, i)["verdict"] == v for i in _ids(rows)) for v in VERDICTS},
        "no_runs": sum(row["missing"] for row in rows),
    }


def _ids(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["id"] for row in rows))


def headline(rows: Sequence[Row], claim: str) -> Row:
    """Return the line that stands for a claim: over all tasks, else the only one, else the first that was tested."""
    lines = [row for row in rows if row["id"] == claim]
    return next((r for r in lines if r["task"] == ALL), next((r for r in lines if r["parts"]), lines[0]))


def markdown(rows: Sequence[Row], scale: str, note: str, paper: str = "") -> str:
    number = counts(rows)
    of = f" of {paper}" if paper else ""
    parts = [f"# Ledger of claims{of} at {scale or 'an unnamed'} scale", ""]
    table = [[v, str(number["overall"][v]), str(number["lines"][v])] for v in VERDICTS]
    if number["no_runs"]:
        table[-1][-1] += f" ({number['no_runs']} for want of runs)"
    head = ["Verdict", f"Claims ({number['claims']})", f"Lines: a claim on a task, or overall ({len(rows)})"]
    parts += [markdown_table(head, table, "lrr"), INTRODUCTION, note, ""]
    parts += ["## All claims", "", _summary(rows), "## Claim by claim", ""]
    parts += [_claim([r for r in rows if r["id"] == i]) for i in _ids(rows)]
    return "\n".join(parts)


def _summary(rows: Sequence[Row]) -> str:
    body = []
    for claim in _ids(rows):
        r = headline(rows, claim)
        several = len(r["parts"]) > 1 or (r["task"] == ALL and not r["parts"])
        here = _interval(r, r["unit"]) + (f": {r['part']}" if several and r["part"] else "")
        place = [f"[{claim}](#{claim})", r["section"], r["task"] or text.MISSING, _paper(r)]
        body.append([*place, here, _verdict(r), text.p_number(r["p_holm"])])
    return markdown_table(["Claim", "Where", "Task", "Paper", "Here", "Verdict", "p Holm"], body, "lllllll")


def _claim(rows: Sequence[Row]) -> str:
    first = rows[0]
    lines = [f"### {first['id']}", "", f"> {first['quote']}", "", f"{first['section']}."]
    if first["query"]:
        listed = {k: v if isinstance(v, list) else [v] for k, v in first["parameters"].items()}
        asked = ", ".join(f"{k} {', '.join(map(str, v))}" for k, v in listed.items())
        lines[-1] += f" Query: {first['query']} ({asked}); the claim holds if {first['rule']}."
    lines += ["", first["note"]] if first["note"] else []
    head = ["Task", "Paper", "Here", "Verdict", "p", "p Holm", "Seeds", "Varies", "Why, and each part"]
    lines += ["", markdown_table(head, [_cells(r) for r in rows], "llllllrll").rstrip()]
    lines += ["", f"The runs: `{first['command']}`"] if any(r["missing"] for r in rows) else []
    return "\n".join([*lines, ""])


def _cells(r: Row) -> list[str]:
    parts = [f"{p['part']}: {_interval(p)}" + (f"; {p['note']}" if p["note"] else "") for p in r["parts"]]
    place = " ".join(w for w in (r["task"], r["model"]) if w) or "all"
    numbers = [text.p_number(r["p"]), text.p_number(r["p_holm"]), str(r["n_seeds"]), r["varies"] or "nothing"]
    why = "<br>".join(filter(None, [r["reason"], *parts]))
    return [place, _paper(r), _interval(r, r["unit"]), _verdict(r), *numbers, why]


def _interval(row: Row, unit: str = "") -> str:
    if row["estimate"] is None:
        return text.MISSING
    shown = [f"{row[key]:.2f}" if abs(row[key]) < 10 else f"{row[key]:.1f}" for key in ENDS if row[key] is not None]
    shown[0] += unit if unit in ("%", "x", "") else f" {unit}"
    return shown[0] + (f" ({shown[1]} to {shown[2]})" if len(shown) > 2 else "")


def _paper(row: Row) -> str:
    value = row["paper_value"]
    return text.MISSING if value is None else value if isinstance(value, str) else f"{value:g}"


def _verdict(row: Row) -> str:
    firm = row["verdict"] in VERDICTS[:2]
    size = f" (size {row['size']})" if row["size"] in ("smaller", "larger") else ""
    return f"**{row['verdict']}**{size}" + (" (*)" if firm and not row["holds_corrected"] else "")
