"""The numbers of the analysis: ``python benchmarks/golden_analysis.py [--write]``.

From simulated runs (tests/support/simulated.py) all tables, the data of all figures, the ledger and the audit are made.
tests/golden_analysis.json holds a digest of each table's cells, of each CSV column with its sum, of the numbers in the
notes in their order, and each line of the ledger, so that notes may be worded anew and numbers may not change. Digests
hold on the processor that wrote them; on another one a sixth digit may be rounded otherwise, and the sums are compared.
Every difference is named, and the exit status is 1. ``--write`` records instead: a changed number is a decision.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "golden_analysis.json"
HOME = Path("results/laptop")
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
#: of a line of the ledger
OF_CLAIMS = ("verdict", "estimate", "low", "high", "p", "p_holm", "n_seeds", "paper_value", "part", "size", "varies")
RELATIVE = 1e-5


def calls() -> list[list[str]]:
    """Return the words after ``python -m analysis`` that make everything."""
    out = {"--out": "tables"}
    made = [("table1", "table1"), ("first_look", "table1"), ("table2", "table1")]
    made += [(t, "table1") for t in ("table3", "table4", "checkpoint_choice", "theory_monitor")]
    made += [("comparison", s) for s in ("regimes", "bases", "drift", "figure6")] + [
        ("tuning", "tuning"),
        ("regimes", "regimes"),
    ]
    lines = [[command, "--study", f"studies/{s}.json", *next(iter(out.items()))] for command, s in made]
    shown = {"table1": (1, 4, 7, 8, 9, 11, 12, 13, 14, 15), "figure5": (5,), "figure6": (6,), "figure10": (10,)}
    for study, numbers in {**shown, "figure16": (16,)}.items():
        for name in figures(numbers):
            lines.append(["figure", name, "--study", f"studies/{study}.json", "--out", "figures"])
    studies = [f"studies/{s}.json" for s in ("table1", *list(shown)[1:], "figure16", "regimes", "bases")]
    return [*lines, ["claims", "--study", *studies, "--out", "."], ["audit", "--out", "."]]


def figures(numbers: tuple[int, ...]) -> list[str]:
    """Return the names of the paper's figures of these numbers."""
    from analysis.products import FIGURES

    return [name for n in numbers for name in FIGURES if name.startswith(f"figure{n}_")]


def measured(folder: Path) -> dict[str, Any]:
    """Make everything in an empty folder; return its numbers by file. Raises RuntimeError where a command fails."""
    from analysis.__main__ import main  # before tests/ is on the path, which has a folder of this name

    sys.path.insert(0, str(ROOT / "tests"))
    from support.simulated import write_all

    with contextlib.chdir(folder):
        write_all(HOME)
        os.chdir(HOME)
        for path in Path("studies").glob("*.json"):  # runs are named from the folder that the commands run in
            path.write_text(path.read_text(encoding="utf-8").replace(f'"{HOME}/', '"'), encoding="utf-8")
        for words in calls():
            with contextlib.redirect_stdout(io.StringIO()):
                if main(words):
                    raise RuntimeError(f"python -m analysis {' '.join(words)} has failed")
        found = {}
        for path in sorted(p for part in ("tables", "figures", ".") for p in Path(part).glob("*.*")):
            if numbers := numbers_of(path):
                found[str(path)] = numbers
        return found


def numbers_of(path: Path) -> dict[str, Any]:
    """Return the digests and numbers of one product; nothing for a picture."""
    if path.suffix == ".csv":
        return of_csv(path) if not path.name.startswith("claims") else {}
    text = path.read_text(encoding="utf-8") if path.suffix in (".md", ".tex", ".json") else ""
    if path.name == "claims.json":
        rows = json.loads(text)["claims"]
        return {"/".join(str(r[k]) for k in ("id", "task", "model")): [rounded(r[k]) for k in OF_CLAIMS] for r in rows}
    if path.name == "audit.json":
        return {"numbers": digest(" ".join(NUMBER.findall(text)))}
    if path.suffix in (".md", ".tex") and path.stem not in ("claims", "audit"):
        cells = [line for line in text.splitlines() if line.startswith("| ") or " & " in line]
        notes = [line for line in text.splitlines() if line not in cells]
        return {"cells": digest("\n".join(cells)), "numbers": digest(" ".join(NUMBER.findall("\n".join(notes))))}
    return {}


def of_csv(path: Path) -> dict[str, Any]:
    """Return [digest, sum of its numbers] of each column."""
    import pandas as pd

    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    numbers = {c: pd.to_numeric(frame[c], errors="coerce").sum() for c in frame}
    return {c: [digest("\n".join(frame[c])), rounded(float(numbers[c]))] for c in frame} | {"rows": [len(frame)]}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def rounded(value: Any) -> Any:
    """Return a number with 12 significant digits, anything else as it is."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def differences(recorded: Mapping[str, Any], found: Mapping[str, Any], strict: bool) -> list[str]:
    """Name what differs; not strict: digests are left out, numbers are compared within rounding."""
    lines = [f"{name}: is gone" for name in recorded if name not in found]
    for name, values in found.items():
        known = recorded.get(name, {})
        lines += [f"{name}: {key}: is gone" for key in known if key not in values]
        for key, value in values.items():
            if not same(known.get(key), value, strict):
                lines.append(f"{name}: {key}: {known.get(key)} is now {value}")
    return lines


def same(known: Any, value: Any, strict: bool) -> bool:
    """Return whether two values are equal; not strict: numbers within rounding, and digests are not compared."""
    if strict:
        return bool(known == value)
    if isinstance(value, list):
        return (
            isinstance(known, list) and len(known) == len(value) and all(map(same, known, value, [False] * len(value)))
        )
    if isinstance(value, float) and isinstance(known, float):
        return math.isclose(known, value, rel_tol=RELATIVE, abs_tol=1e-9)
    return isinstance(value, str) or bool(known == value)


def processor() -> str:
    """Return what decides how sums are rounded."""
    import numpy

    from bapo.store.provenance import hardware

    return f"{hardware()['processor']}, numpy {numpy.__version__}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the numbers instead of comparing them")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder))
    if write:
        content = json.dumps({"processor": processor(), "numbers": found}, separators=(",", ":"))
        FILE.write_text(content.replace('},"', '},\n"') + "\n", encoding="utf-8")
        return 0
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    lines = differences(recorded["numbers"], found, recorded["processor"] == processor())
    print("\n".join(lines) or "every number is as recorded")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
