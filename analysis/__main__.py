"""``python -m analysis``: tables and figures from finished runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import figures, judging, products, tables
from analysis.commands import OF_ANALYSIS
from analysis.made import Made, inputs_of_report, inputs_of_studies, inputs_of_sweep, listed
from bapo.errors import UserError, unknown
from bapo.experiments import places
from bapo.store import provenance
from bapo.store.files import sha256

STUDY_FORMAT = """\
The study file (JSON; the workflow writes it) says which runs to compare. Paths are relative to where the command runs.
{
 "name": "table1",                       # optional: of experiments/study/, for `figures` and the cure in error messages
 "title": "Table 1",                     # optional: heading of `comparison`
 "scale": "laptop",                      # heading
 "reference": "grpo",                    # optional: the method that `comparison` compares the others with
 "config": ["scale=laptop", "seeds=[1]"],  # optional: the workflow's --config, for the cure in error messages
 "note": "...",                          # what the scale can show; printed below every table and figure
 "cells": [{"task": "countdown", "task_title": "Countdown", "model": "qwen2-112k", "model_title": "Qwen2 112k",
            "method": "bapo", "method_title": "+BAPO (Ours)", "kind": "off", "seed": 1,
            "run": "results/laptop/countdown/qwen2-112k/bapo/seed1",
            "tuned": ["rate 4e-4"],   # optional: what was chosen on held-out problems for the run, in words
            "paper_model": "qwen2.5-math-1.5b"}],   # optional; else the model's own key, else the task's first model
 "bases": [{"task": "countdown", "model": "qwen2-112k", "model_title": "Qwen2 112k", "run": ".../qwen2-112k/base"}],
 "chosen": {"countdown": {"bapo": ["rate_4e-4"]}},   # optional, for `tuning`: what the settings name
 "benchmarks": {"countdown": [["cd34", "CD-34"], ["cd4", "CD-4"]]}   # a third entry: the paper's benchmark that it
                                         # stands for, where the name differs: ["steps_5", "5 steps", "aime24"]
}
Required in a cell: task, model, method, seed, run. Required in a base: task, model, run.
"""


def parser(program: str = "python -m analysis") -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog=program, description=__doc__, epilog=STUDY_FORMAT, formatter_class=raw)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def of_study(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, epilog=STUDY_FORMAT, formatter_class=raw)
        sub.add_argument(
            "--study", required=True, type=Path, metavar="FILE.json", help="which runs to read (format below)"
        )
        sub.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the files")
        return sub

    def for_people(name: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=OF_ANALYSIS[name], description=OF_ANALYSIS[name])

    for table in (products.TABLES | products.OTHERS).values():
        of_study(table.name, table.heading)
    one = of_study("figure", "one figure: NAME.pdf, NAME.png, NAME.svg and NAME.csv with the data behind it")
    one.add_argument("name", choices=products.FIGURES, metavar="NAME", help=f"one of {', '.join(products.FIGURES)}")
    every = of_study("figures", "all figures of the study that the file names")
    for sub in (one, every):
        sub.add_argument(
            "--method", help="the method that figure15_migration shows (default: bapo, or the first there is)"
        )
    log = for_people("import")
    log.add_argument(
        "file", type=Path, help="a training log of verl or TRL, plain or .gz, or results_DATE.json of lm-eval"
    )
    log.add_argument("--reward", default="", metavar="NAME", help="the log's name of the reward to show")
    log.add_argument("--metric", default="", metavar="NAME", help="of an evaluation, for example exact_match")
    log.add_argument(
        "--benchmark", action="append", default=[], metavar="THEIRS=OURS", help="what to call a benchmark here"
    )
    for name in ("task", "model", "method"):
        log.add_argument(f"--{name}", required=True, help="the name of a folder, and a title in figures")
    log.add_argument("--seed", type=int, default=1)
    log.add_argument("--batch", type=int, default=128, help="prompts a step (default: 128)")
    log.add_argument("--group", type=int, default=8, help="responses a prompt (default: 8)")
    log.add_argument("--out", type=Path, default=Path("results", products.IMPORTED), help="default: results/imported")
    sweep = commands.add_parser("robustness", help="how accuracy depends on a sweep's parameters: md, csv, figure")
    sweep.add_argument("--trials", required=True, type=Path, metavar="FILE.json", help="trials.json of the sweep")
    sweep.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for robustness.*")
    audited = for_people("audit")
    audited.add_argument(
        "paper",
        nargs="?",
        metavar="PAPER.yaml",
        help="the table's file and what is said of it (format: docs/audit.md), or a name of analysis/paper/; default: "
        "that of the project, else the paper of this suite",
    )
    audited.add_argument("--out", type=Path, metavar="DIR", help="folder for audit.md and audit.json")
    claims = for_people("claims")
    claims.add_argument(
        "claims",
        nargs="?",
        metavar="CLAIMS.yaml",
        help="claims of another paper (format: docs/claims.md), or its PAPER.yaml, which names them; the files are "
        "called claims_NAME",
    )
    claims.add_argument(
        "--study",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE.json",
        help="every study there is; default: the project's own",
    )
    claims.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for claims.*; default: that of the project's results"
    )
    packed = for_people("export")
    packed.add_argument(
        "study",
        type=Path,
        metavar="STUDY",
        help="a study file, results/laptop/studies/table1.json, or a scale's folder for all of its studies",
    )
    packed.add_argument(
        "--out", required=True, type=Path, metavar="CRATE", help="a folder, or a file that ends in .zip"
    )
    packed.add_argument("--checkpoints", action="store_true", help="the trained models too")
    packed.add_argument("--title", default="", help="default: made from the studies' titles")
    packed.add_argument("--author", default="", help="who publishes it")
    packed.add_argument("--license", metavar="URL", help="default: that of this suite, Apache-2.0")
    verified = for_people("verify")
    verified.add_argument("crate", type=Path, metavar="CRATE", help="a folder or a .zip file")
    compared = for_people("compare")
    for side in ("a", "b"):
        compared.add_argument(
            side, type=Path, metavar=side.upper(), help="a results folder, or a crate (folder or .zip)"
        )
    compared.add_argument("--all", action="store_true", help="print every number, not only those that do not agree")
    watched = for_people("watch")
    watched.add_argument("results", type=Path, help="the scale's folder, for example results/laptop")
    watched.add_argument("--once", action="store_true", help="one frame, all of it")
    watched.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="between two frames (5)")
    page = for_people("report")
    page.add_argument("results", type=Path, help="the scale's folder, for example results/laptop")
    page.add_argument("--out", type=Path, metavar="FILE.html", help=f"default: {products.PAGE} in that folder")
    return top


def _import(options: argparse.Namespace) -> Made:
    from analysis import imports

    names = (options.task, options.model, options.method, options.seed)
    renamed = dict(entry.partition("=")[::2] for entry in options.benchmark)
    if not all(side for pair in renamed.items() for side in pair):
        raise UserError(f"--benchmark {' '.join(options.benchmark)}: must be THEIRS=OURS, for example math_500=math500")
    more = (options.batch, options.group, options.reward, options.metric, renamed)
    folder, log = imports.import_file(options.file, options.out, names, *more)
    said = [f"refused: {place}: {reason}" for place, reason in log.refused[: imports.SHOWN]]
    if options.task not in places.options("task"):
        what = "no task of yours has this name, so its numbers stand in a table of their own"
        said.append(unknown(f"--task {options.task}", what, options.task, places.options("task")))
    return Made(f"{folder}; {len(log.refused)} records refused", text="\n".join(said))


def _export(options: argparse.Namespace) -> Made:
    from analysis import sharing

    packed = sharing.collect(options.study, options.checkpoints)
    sums = sharing.write(packed, options.out, options.title, options.author, options.license or sharing.LICENSE)
    left = f"; unfinished and left out: {', '.join(packed.left_out)}" if packed.left_out else ""
    return Made(f"{options.out}: {len(packed.files)} files, sums {sums}{left}")


def _verify(options: argparse.Namespace) -> Made:
    from analysis import sharing

    with sharing.opened(options.crate) as folder:
        found = sharing.problems(folder)
        sums = sha256(folder / sharing.SUMS)
    said = "\n".join(found) or f"{options.crate}: all files are as they were packed; sums {sums}"
    return Made(text=said, status=1 if found else 0)


def _compare(options: argparse.Namespace) -> Made:
    from analysis import compare, sharing

    with sharing.opened(options.a) as a, sharing.opened(options.b) as b:
        found = compare.compare(a, b)
    page = compare.markdown(found, (str(options.a), str(options.b)), options.all)
    return Made(text=page, status=0 if found.agree else 1)


def _robustness(options: argparse.Namespace) -> Made:
    from analysis.beyond import sweep

    files = sweep.write(options.trials, options.out)
    return Made(listed(files), files, inputs_of_sweep(options.trials))


def _report(options: argparse.Namespace) -> Made:
    from analysis import report

    page = report.write(options.results, options.out)
    return Made(str(page), [page], inputs_of_report(options.results))


def _watch(options: argparse.Namespace) -> Made:
    from analysis.watch import watch

    watch(options.results, options.once, options.every)
    return Made()


def _of_study(options: argparse.Namespace) -> Made:
    """Write a table, a figure or all figures of the study that a file names."""
    from analysis import study

    read = study.load(options.study, products.MAIN if options.command == products.MAIN else None)
    if options.command in products.TABLES | products.OTHERS:
        files = tables.write(options.command, read, options.out)
    else:
        names = [options.name] if options.command == "figure" else figures.of_study(read.name)
        files = [path for name in names for path in figures.draw(name, read, options.out, options.method)]
    if options.command == products.SO_FAR:  # a page that is written again a minute later has no record of its origin
        return Made(listed(files))
    said = files[0].read_text(encoding="utf-8") if options.command == products.FIRST_LOOK else ""
    return Made(listed(files), files, inputs_of_studies([options.study]), said)


#: commands that do not read one study
OTHERS = {
    "import": _import,
    "audit": judging.audit,
    "claims": judging.claims,
    "export": _export,
    "verify": _verify,
    "compare": _compare,
    "robustness": _robustness,
    "report": _report,
    "watch": _watch,
}


def main(arguments: Sequence[str] | None = None, program: str = "python -m analysis") -> int:
    """Return the exit status: 0, or 2 after one clear sentence on stderr; 1 where a check has found something.

    program: what the user typed.
    """
    options = parser(program).parse_args(arguments)
    try:
        made = OTHERS.get(options.command, _of_study)(options)
        provenance.record(made.files, ["analysis", *(sys.argv[1:] if arguments is None else arguments)], made.inputs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(made.text, end="\n" if made.text and not made.text.endswith("\n") else "")
    if made.message:
        print(f"wrote {made.message}", file=sys.stderr if made.text else sys.stdout)
    return made.status


if __name__ == "__main__":
    sys.exit(main())
