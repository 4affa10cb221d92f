"""``python -m analysis``: tables and figures from finished runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis import figures, tables
from bapo.errors import UserError
from bapo.experiments import products
from bapo.experiments.products import ALSO, FIGURES, LEDGER, PAGE, TABLES, Product
from bapo.store import provenance

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


@dataclass(frozen=True)
class Made:
    """What a command wrote. message: in words; files, inputs: for the record of where the files come from."""

    message: str
    files: Sequence[Path] = ()
    inputs: Sequence[Path] = ()


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="python -m analysis", description=__doc__, epilog=STUDY_FORMAT, formatter_class=raw
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def of_study(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, epilog=STUDY_FORMAT, formatter_class=raw)
        sub.add_argument(
            "--study", required=True, type=Path, metavar="FILE.json", help="which runs to read (format below)"
        )
        sub.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the files")
        return sub

    for table in TABLES.values():
        of_study(*table.command, _described(table))
    compared = _names(products.comparison("STUDY"))
    special = f"of the study {products.REGIMES} also {products.REGIMES}.csv, .md, .tex and a figure"
    of_study("comparison", f"every method of a study beside its reference: {compared}; {special}")
    of_study(products.TUNING, _described(products.comparison(products.TUNING)))
    one = of_study("figure", "one figure: NAME.pdf, NAME.png, NAME.svg and NAME.csv with the data behind it")
    one.add_argument("name", choices=[*FIGURES, *ALSO], metavar="NAME", help="one of " + ", ".join([*FIGURES, *ALSO]))
    every = of_study("figures", "all figures of the study that the file names")
    for sub in (one, every):
        sub.add_argument(
            "--method", help="the method that figure15_migration shows (default: bapo, or the first there is)"
        )
    log = commands.add_parser("import", help="a logged history of another project as a run directory")
    log.add_argument(
        "file", type=Path, help="JSON lines, plain or .gz: accuracy histories, tracking logs, verl metrics"
    )
    log.add_argument("--format", choices=["histories", "tracking", "verl"], help="default: by the first line's fields")
    for name in ("task", "model", "method"):
        log.add_argument(f"--{name}", required=True, help="the name of a folder, and a title in figures")
    log.add_argument("--seed", type=int, default=1)
    log.add_argument("--batch", type=int, default=128, help="prompts a step (default: 128)")
    log.add_argument("--group", type=int, default=8, help="responses a prompt (default: 8)")
    asked = commands.add_parser("what-if", help="the batches that BAPO would have drawn from a recorded run")
    asked.add_argument("run", type=Path, help="a run directory with groups.parquet")
    asked.add_argument("options", nargs="*", metavar="KEY=VALUE", help="of the method, for example m=10 c1=0.25")
    asked.add_argument("--algorithm", default="bapo")
    asked.add_argument("--batch", type=int, help="B (default: the largest step of the run)")
    for sub in (log, asked):
        sub.add_argument("--out", type=Path, default=Path("results/imported"), help="default: results/imported")
    sweep = commands.add_parser("robustness", help="how accuracy depends on a sweep's parameters: md, csv, figure")
    sweep.add_argument("--trials", required=True, type=Path, metavar="FILE.json", help="trials.json of the sweep")
    sweep.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for robustness.*")
    claims = commands.add_parser("claims", help="the ledger: every claim of the paper with a verdict")
    claims.add_argument(
        "--study", required=True, nargs="+", type=Path, metavar="FILE.json", help="every study there is"
    )
    claims.add_argument("--out", required=True, type=Path, metavar="DIR", help=f"folder for {_names(LEDGER)}")
    page = commands.add_parser("report", help="one HTML page of a scale's results that opens from disk")
    page.add_argument("results", type=Path, help="the scale's folder, for example results/laptop")
    page.add_argument("--out", type=Path, metavar="FILE.html", help=f"default: {_names(PAGE)} in that folder")
    return top


def _described(product: Product) -> str:
    title = f"{product.number}, {product.title}" if product.number else product.title
    return f"{title}: {_names(product)}"


def _names(product: Product) -> str:
    return ", ".join([*(Path(file).name for file in product.files), *product.untracked])


def _import(options: argparse.Namespace) -> Made:
    from analysis.imports.folders import STUDY, import_log
    from analysis.imports.formats import Settings

    settings = Settings(batch=options.batch, group=options.group)
    names = (options.task, options.model, options.method, options.seed)
    folder = import_log(options.file, options.out, *names, settings, options.format)
    return Made(f"{folder} and {options.out / options.task / STUDY}")


def _what_if(options: argparse.Namespace) -> Made:
    import yaml

    from analysis.imports.what_if import write_what_if

    texts = dict(option.partition("=")[::2] for option in options.options)
    values = {key: yaml.safe_load(value) for key, value in texts.items()}
    return Made(str(write_what_if(options.run, options.out, options.algorithm, values, options.batch)))


def _claims(options: argparse.Namespace) -> Made:
    from analysis.claims import entries, ledger, view, writers

    studies = view.load_studies(options.study)
    files = writers.write(ledger.ledger(entries.read(), studies), studies, options.out)
    return Made(_listed(files), files, provenance.inputs_of_studies(options.study))


def _robustness(options: argparse.Namespace) -> Made:
    from analysis import robustness

    files = robustness.write(options.trials, options.out)
    return Made(_listed(files), files, provenance.inputs_of_sweep(options.trials))


def _report(options: argparse.Namespace) -> Made:
    from analysis import report

    page = report.write(options.results, options.out)
    return Made(str(page), [page.path], provenance.inputs_of_report(options.results))


def _of_study(options: argparse.Namespace) -> Made:
    """Write a table, a figure or all figures of the study that a file names."""
    from analysis import study

    read = study.load(options.study, products.MAIN if options.command == products.MAIN else None)
    if options.command in tables.MODULES:
        files = tables.write(options.command, read, options.out)
    else:
        names = [options.name] if options.command == "figure" else figures.of_study(read.name)
        files = [path for name in names for path in figures.draw(name, read, options.out, options.method)]
    return Made(_listed(files), files, provenance.inputs_of_studies([options.study]))


def _listed(files: Sequence[Path]) -> str:
    return " ".join(map(str, files))


#: commands that do not read one study
OTHERS = {"import": _import, "what-if": _what_if, "claims": _claims, "robustness": _robustness, "report": _report}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 0, or 2 after one clear sentence on stderr."""
    options = parser().parse_args(arguments)
    try:
        made = OTHERS.get(options.command, _of_study)(options)
        provenance.record(made.files, ["analysis", *(sys.argv[1:] if arguments is None else arguments)], made.inputs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {made.message}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
