"""``python -m analysis``: tables and figures from finished runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import figures
from bapo.errors import UserError

STUDY_FORMAT = """\
The study file (JSON; the workflow writes it) says which runs to compare. Paths are relative to where the command runs.
{
 "scale": "laptop",                      # heading, and the cure in error messages
 "note": "...",                          # what the scale can show; printed below every table and figure
 "cells": [{"task": "countdown", "task_title": "Countdown", "model": "qwen2-112k", "model_title": "Qwen2 112k",
            "method": "bapo", "method_title": "+BAPO (Ours)", "kind": "off", "seed": 1,
            "run": "results/laptop/countdown/qwen2-112k/bapo/seed1",
            "paper_model": "qwen2.5-math-1.5b"}],   # optional; else the model's own key, else the task's first model
 "bases": [{"task": "countdown", "model": "qwen2-112k", "model_title": "Qwen2 112k", "run": ".../qwen2-112k/base"}],
 "benchmarks": {"countdown": [["cd34", "CD-34"], ["cd4", "CD-4"]]}
}
Required in a cell: task, model, method, seed, run. Required in a base: task, model, run.
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m analysis",
        description=__doc__,
        epilog=STUDY_FORMAT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=text, description=text, epilog=STUDY_FORMAT, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        sub.add_argument(
            "--study", required=True, type=Path, metavar="FILE.json", help="which runs to read (format below)"
        )
        sub.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the files")
        return sub

    command("table1", "Table 1: table1.csv, table1.md, table1.tex and table1_differences.csv")
    one = command("figure", "one figure: NAME.pdf, NAME.png and NAME.csv with the data behind it")
    one.add_argument("name", choices=list(figures.NAMES), metavar="NAME", help="one of " + ", ".join(figures.NAMES))
    every = command("figures", "all figures")
    for sub in (one, every):
        sub.add_argument(
            "--method", help="the method that migration_matrix shows (default: bapo, or the first there is)"
        )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after one clear sentence on stderr."""
    options = parser().parse_args(arguments)
    try:
        from analysis import study

        target = "table1" if options.command == "table1" else "figures"
        read = study.load(options.study, target)
        if options.command == "table1":
            from analysis import table1

            paths = table1.write(read, options.out)
        else:
            names = [options.name] if options.command == "figure" else list(figures.NAMES)
            paths = [p for name in names for p in figures.draw(name, read, options.out, options.method)]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("wrote " + " ".join(str(p) for p in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
