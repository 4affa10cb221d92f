"""Write the files that a dry run of every target makes: ``python benchmarks/job_sets.py FILE.json [--check]``.

With benchmarks/identities.py this proves that a change of the code changes no job. ``--check`` compares with FILE.json
instead of writing it. About 150 dry runs of some seconds each; ``results/`` must be empty, since finished files are not
listed. A target that a scale does not have is recorded with its error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from identities import differences

from bapo.experiments.places import options

ROOT = Path(__file__).resolve().parent.parent


def targets(scale: str) -> list[str]:
    """Return every target that a dry run finds at a scale."""
    command = [sys.executable, "-m", "snakemake", "--list-target-rules", "--config", f"scale={scale}"]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.split()


def files(target: str, scale: str) -> list[str]:
    """Return the files that a dry run of ``target`` would write, sorted, or the last line of its error."""
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "2", target, "--config", f"scale={scale}"]
    done = subprocess.run([*command, "--summary"], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        return ["error: " + (done.stdout + done.stderr).strip().splitlines()[-1]]
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return sorted(row[0] for row in rows if row[-1] == "update pending")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    parser.add_argument("--scale", nargs="+", choices=options("scale"), default=options("scale"))
    arguments = parser.parse_args()
    outputs: dict[str, dict[str, list[str]]] = {}
    for scale in arguments.scale:
        for target in targets(scale):
            outputs.setdefault(scale, {})[target] = files(target, scale)
            print(scale, target, len(outputs[scale][target]), file=sys.stderr)
    if not arguments.check:
        arguments.file.write_text(json.dumps(outputs, indent=0) + "\n", encoding="utf-8")
        return 0
    before = json.loads(arguments.file.read_text(encoding="utf-8"))
    lines = list(differences({scale: before.get(scale) for scale in outputs}, outputs))
    print("\n".join(lines) or "every target makes the same files as before")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
