"""How many wrong versions of the algorithm do the quick tests find? ``python benchmarks/mutants.py [--sample N]``.

mutmut changes one operator, number, name or argument at a time in ``bapo/algorithm``, ``bapo/methods`` and
``analysis/statistics.py`` and runs the tests that reach the changed function (``[tool.mutmut]`` in pyproject.toml).
Prints the share that is found and each mutant that no test finds, with the reason that ``mutants.yaml`` gives: under
``equivalent`` why the change changes no result, under ``survivors`` why no test finds it. Equivalent ones do not count.
Exits with 1 where fewer than 95% of the others are found. All mutants take about an hour on two cores; a sample is
drawn by the mutants' names, so the same code gives the same sample.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
REASONS = Path(__file__).with_name("mutants.yaml")
LEAST = 0.95
SURVIVED = (0, 33)  #: mutmut's exit codes of a mutant: every test passed; no test reaches it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, help="so many mutants instead of all")
    count = parser.parse_args().sample
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    children = ("--max-children", str(os.cpu_count()))
    mutmut("run", *children, "no.such.mutant")  # writes the mutants
    names = sorted(results(), key=lambda name: hashlib.blake2b(name.encode()).digest())[:count]
    said = mutmut("run", *children, *(names if count else ()))
    codes = {name: code for name, code in results().items() if name in set(names)}
    if not codes or None in codes.values():
        sys.exit(f"not every mutant was run: {said[-2000:]}")
    reasons = yaml.safe_load(REASONS.read_text(encoding="utf-8"))
    equivalent = survivors = 0
    for name in sorted(name for name, code in codes.items() if code in SURVIVED):
        line = f"{place(name)}: {difference(name)}"
        same = reason(reasons["equivalent"], line)
        equivalent += same is not None
        survivors += same is None
        print(f"{line}\n    {same or reason(reasons['survivors'], line) or 'NO REASON GIVEN'}")
    count = len(codes) - equivalent
    share = 1 - survivors / max(1, count)
    print(f"{count - survivors} of {count} mutants found ({share:.1%}); {equivalent} more change no result")
    sys.exit(share < LEAST)


def reason(reasons: dict[str, str], line: str) -> str | None:
    """Return the reason of the first pattern that a survivor's line matches."""
    return next((why for pattern, why in reasons.items() if re.search(pattern, line)), None)


def mutmut(*words: str) -> str:
    """Return what mutmut prints when it is called with these words."""
    run = subprocess.run(["mutmut", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


def results() -> dict[str, int | None]:
    """Return mutmut's exit code of each mutant, None where it was not run."""
    files = (ROOT / "mutants").rglob("*.meta")
    return {n: c for f in files for n, c in json.loads(f.read_text())["exit_code_by_key"].items()}


def place(name: str) -> str:
    """Return the module and the function of a mutant: ``bapo.algorithm.losses.aggregate``."""
    module, _, function = name.partition("__mutmut_")[0].rpartition(".")
    return f"{module}.{function.removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}"


def difference(name: str) -> str:
    """Return the lines of the mutant that differ from the code, without their indentation."""
    lines = mutmut("show", name).splitlines()
    return " / ".join(" ".join(line[1:].split()) for line in lines if line[:1] == "+" and line[:3] != "+++")


if __name__ == "__main__":
    main()
