"""How many wrong versions of the algorithm do the quick tests find? ``python benchmarks/mutants.py [--sample N]``.

mutmut changes one operator, number, name or argument at a time in ``bapo/algorithm``, ``bapo/methods`` and
``analysis/statistics.py`` and runs the tests that reach the changed function (``[tool.mutmut]`` in pyproject.toml).
Prints the share that is found, and each mutant that no test finds with the reason that ``mutants.yaml`` gives. Exits
with 1 where fewer than 95% are found, or where a survivor has no reason. All mutants take about an hour on two cores;
a sample is drawn by the mutants' names, so the same code gives the same sample.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
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
    mutmut("run", "--max-children", str(os.cpu_count()), "no.such.mutant")  # writes the mutants, finds their tests
    names = sorted(results(), key=lambda name: hashlib.blake2b(name.encode()).digest())
    if count:
        names = names[:count]
    mutmut("run", "--max-children", str(os.cpu_count()), *(names if count else ()))
    codes = {name: code for name, code in results().items() if name in set(names)}
    alive = sorted(name for name, code in codes.items() if code in SURVIVED)
    reasons = yaml.safe_load(REASONS.read_text(encoding="utf-8")) or {}
    unexplained = 0
    for name in alive:
        function, change = place(name), difference(name)
        why = reasons.get(function, {}).get(change)
        unexplained += why is None
        print(f"{function}: {change}\n    {why or 'no reason given'}")
    found = 1 - len(alive) / len(codes)
    print(f"{len(codes) - len(alive)} of {len(codes)} mutants found ({found:.1%}); {unexplained} survivors unexplained")
    sys.exit(found < LEAST or unexplained > 0)


def mutmut(*words: str) -> str:
    return subprocess.run(["mutmut", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout


def results() -> dict[str, int | None]:
    """Return mutmut's exit code of each mutant, None where it was not run."""
    files = (ROOT / "mutants").rglob("*.meta")
    return {n: c for f in files for n, c in json.loads(f.read_text())["exit_code_by_key"].items()}


def place(name: str) -> str:
    """Return the module and the function of a mutant: ``bapo.algorithm.losses.aggregate``."""
    module, _, function = name.partition("__mutmut_")[0].rpartition(".")
    return f"{module}.{function.removeprefix('x_').replace('xǁ', '').replace('ǁ', '.')}"


def difference(name: str) -> str:
    """Return the lines of the mutant that differ from the code, without their indentation."""
    lines = mutmut("show", name).splitlines()
    return " / ".join(" ".join(line[1:].split()) for line in lines if line[:1] == "+" and line[:3] != "+++")


if __name__ == "__main__":
    main()
