"""``python -m analysis``: tables and figures from finished runs.

``--study FILE.json`` says which runs to read; the workflow writes such files, ``StudyFile`` in analysis/study.py
lists their fields. Paths in them are relative to where the command runs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from analysis import audit, figures, paper, products, study, tables
from analysis.exchange import compare, crate, evidence, imports
from bapo import commands
from bapo.errors import UserError, exit_status
from bapo.store import provenance
from bapo.store.files import SUMMARY, read_json, sha256

#: the files of a run's folder that stand for what an analysis has read
SUMMARIES = (SUMMARY, f"eval/{SUMMARY}", f"curve/{SUMMARY}")


@dataclass(frozen=True)
class Made:
    """What a command did.

    files: what it wrote, each of which gets a record of how it was made; read: the files that it was made from; text:
    what it prints; status: its exit status.
    """

    files: Sequence[Path] = ()
    read: Sequence[Path] = ()
    text: str = ""
    status: int = 0


#: the name of an argument, and the options of argparse's ``add_argument``
Argument = tuple[str, dict[str, Any]]


def path(name: str, metavar: str | None, text: str, **options: Any) -> Argument:
    """Return an argument that is a path. text: its help; options: of argparse's ``add_argument``."""
    return name, {"type": commands.path, "metavar": metavar, "help": text, **options}


STUDY = path("--study", "FILE.json", "which runs to read", required=True)
OUT = path("--out", "DIR", "folder for the files", required=True)
RESULTS = path("results", None, "the scale's folder, for example results/laptop")


def parser(program: str = "python -m analysis") -> argparse.ArgumentParser:
    """Return the parser of all commands. program: what the user typed."""
    top = argparse.ArgumentParser(prog=program, description=__doc__)
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], Made], *arguments: Argument, text: str = "") -> None:
        text, form = text or commands.TEXTS[name], argparse.RawDescriptionHelpFormatter
        sub = subparsers.add_parser(name, help=text, description=text, formatter_class=form)
        sub.epilog = commands.examples(name)
        sub.set_defaults(run=run)
        for argument, options in arguments:
            sub.add_argument(argument, **options)

    other = ("--reference", {"metavar": "METHOD", "help": "what rows are compared with; default: the study's"})
    for table in (products.TABLES | products.OTHERS).values():
        only = [other] if table.name in (products.SPECIFICATIONS, products.COVERAGE) else []
        command(table.name, _table, STUDY, OUT, *only, text=table.heading)
    figure = ("name", {"choices": products.FIGURES, "metavar": "NAME", "help": f"one of {', '.join(products.FIGURES)}"})
    text = "one figure: NAME.pdf, NAME.png, NAME.svg and NAME.csv with the data behind it"
    command("figure", _figure, STUDY, OUT, figure, text=text)
    trials = path("--trials", "FILE.json", "trials.json of the sweep", required=True)
    text = "how accuracy depends on a sweep's parameters: md, csv, figure"
    command("robustness", _robustness, trials, OUT, text=text)

    log = path("file", None, "a training log of verl, TRL or wandb, plain or .gz, or results_DATE.json of lm-eval")
    required = {"required": True, "help": "the name of a folder"}
    folders = [(f"--{name}", required) for name in ("task", "model", "method")]
    seed = ("--seed", {"type": partial(_count, below=2**63), "default": 1, "help": "of the run (1)"})
    numbers = (("batch", imports.BATCH, "prompts a step"), ("group", imports.GROUP, "responses"))
    sizes = [(f"--{name}", {"type": _count, "help": f"{what} ({n})"}) for name, n, what in numbers]
    home = path("--out", None, "default: results/imported", default=Path("results", products.IMPORTED))
    metric = ("--metric", {"help": "metric to read as reward or accuracy; see docs/sharing.md"})
    command("import", _import, log, *folders, metric, seed, *sizes, home)

    command("audit", _audit, path("--out", "DIR", "folder for audit.md and audit.json"))
    studies = path("--study", "FILE.json", "results/SCALE/studies/*.json", required=True, nargs="+")
    command("claims", _claims, studies, OUT)
    command("overview", _overview, studies, OUT)

    license = ("--license", {"type": _url, "metavar": "URL", "help": "default: that of this suite, Apache-2.0"})
    logbook = ("--trackio", {"action": "store_true", "help": "instead of an archive, a logbook, one page per claim"})
    command("export", _export, RESULTS, path("--out", "ARCHIVE", "a new folder", required=True), license, logbook)
    command("verify", _verify, path("crate", "ARCHIVE", "the folder of an archive"))
    command("evidence", _evidence, STUDY, OUT)
    command("unpack", _unpack, path("evidence", "FILE.zip", "evidence/SCALE/*.zip", nargs="+"), OUT)
    text = "a folder of results or of an archive, or the file of a published study"
    command("compare", _compare, path("a", "A", text), path("b", "B", text))

    names = ("--study", {"nargs": "*", "default": [], "metavar": "NAME", "help": "whose rows are shown"})
    command("closing", _closing, RESULTS, names, text="what a target ends with: the page, and rows of studies")

    newest = path("results", None, f"{RESULTS[1]['help']}; default: the scale that was described last", nargs="?")
    command("watch", _watch, newest)
    command("report", _report, RESULTS, path("--out", "FILE.html", f"default: {products.PAGE} in that folder"))
    return top


# ------------------------------------------------------------------------------------------------ what they do


def _table(options: argparse.Namespace) -> Made:
    runs = study.load(options.study)
    if getattr(options, "reference", None):
        runs = replace(runs, reference=options.reference)
    files = tables.write(options.command, runs, options.out)
    page = files[0].read_text(encoding="utf-8") if options.command == products.FIRST_LOOK else ""
    return Made(files, [options.study], page)


def _figure(options: argparse.Namespace) -> Made:
    return Made(figures.draw(options.name, study.load(options.study), options.out), [options.study])


def _audit(options: argparse.Namespace) -> Made:
    findings = audit.audit(paper.load())
    page = audit.markdown(findings)
    written = audit.write(options.out, page, findings) if options.out else []
    return Made(written, [paper.FOLDER / f"{name}.yaml" for name in ("setup", "table1")], page)


def _claims(options: argparse.Namespace) -> Made:
    from analysis.claims import entries, ledger

    studies = study.load_studies(options.study)
    files = ledger.write(ledger.ledger(entries.read(), studies), studies, options.out)
    return Made(files, options.study)


def _overview(options: argparse.Namespace) -> Made:
    from analysis.figures import overview

    return Made(overview.write([study.load(file) for file in options.study], options.out, night=True), options.study)


def _count(text: str, below: int = 10**6) -> int:
    """Return a number from 1. Raises ArgumentTypeError, to which argparse adds the option."""
    if not text.isdecimal() or len(text) > 20 or not 0 < int(text) < below:
        raise argparse.ArgumentTypeError(f"{text:.40}: must be a whole number from 1, below {below}")
    return int(text)


def _url(text: str) -> str:
    """Return the address of a licence. Raises ArgumentTypeError, to which argparse adds the option."""
    if not re.fullmatch(r"https?://[\w.-]+(:\d+)?(/[!-~]*)?", text):
        raise argparse.ArgumentTypeError(f"{text}: must be a URL, for example {crate.LICENSE}")
    return text


def _import(options: argparse.Namespace) -> Made:
    names = (options.task, options.model, options.method, options.seed)
    sizes = options.batch, options.group
    folder, log = imports.import_file(options.file, options.out, names, *sizes, options.metric)
    lines = [f"refused: {place}: {reason}" for place, reason in log.refused[: imports.SHOWN]] + log.notes
    return Made(text="\n".join([*lines, f"wrote {folder}; {len(log.refused)} records refused"]))


def _export(options: argparse.Namespace) -> Made:
    if options.out.exists():
        raise UserError(f"{options.out} exists; choose another name, or remove it")
    if options.trackio and options.license:
        raise UserError("--license: a logbook has none; leave it out, or --trackio")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.trackio:
        from analysis import report
        from analysis.exchange import logbook

        count = logbook.write(report.study_files(crate.home_of(options.results)), options.out)
        return Made(text=f"wrote {options.out}: a logbook of {count} claims; see it with `trackio logbook serve` there")
    packed = crate.collect(options.results)
    sums = crate.write(packed, options.out, options.license or crate.LICENSE)
    left = f"; unfinished and left out: {', '.join(packed.left_out)}" if packed.left_out else ""
    return Made(text=f"wrote {options.out}: {len(packed.files)} files, sums {sums}{left}")


def _evidence(options: argparse.Namespace) -> Made:
    file = evidence.pack(options.study, options.out)
    return Made(text=f"wrote {file}: {file.stat().st_size:,} bytes")


def _unpack(options: argparse.Namespace) -> Made:
    return Made(text="\n".join(f"wrote {evidence.unpack(file, options.out)}" for file in options.evidence))


def _verify(options: argparse.Namespace) -> Made:
    problems, sums = crate.problems(options.crate), sha256(options.crate / crate.SUMS)
    whole = f"{options.crate}: all files are as they were packed; sums {sums}"
    return Made(text="\n".join(problems) or whole, status=1 if problems else 0)


def _compare(options: argparse.Namespace) -> Made:
    numbers = compare.compare(options.a, options.b)
    page = compare.markdown(numbers, (str(options.a), str(options.b)))
    return Made(text=page, status=int((numbers["state"] == compare.DIFFERS).any()))


def _robustness(options: argparse.Namespace) -> Made:
    from analysis.beyond import sweep

    return Made(sweep.write(options.trials, options.out), [options.trials])


def _report(options: argparse.Namespace) -> Made:
    from analysis import report

    page = report.write(options.results, options.out)
    return Made([page], report.study_files(options.results))


def _closing(options: argparse.Namespace) -> Made:
    from analysis import closing, report

    if not report.shows_something(options.results):  # a target of runs alone
        return Made()
    page = report.write(options.results)
    provenance.record([page], ["analysis", "report", str(options.results)], inputs(report.study_files(options.results)))
    return Made(text=closing.closing(options.results, options.study))


def _watch(options: argparse.Namespace) -> Made:
    from analysis.watch import watch

    home = options.results
    if home is None:
        studies = sorted(Path("results").glob("*/studies"), key=lambda folder: folder.stat().st_mtime)
        if not studies:
            raise UserError("results: holds no results; name the scale's folder, for example results/laptop")
        home = studies[-1].parent
    watch(home)
    return Made()


def inputs(paths: Sequence[Path]) -> list[Path]:
    """Return files and the existing summaries of the runs that they list. Raises UserError for a damaged file."""
    runs = dict.fromkeys(run for path in paths if path.suffix == ".json" for run in _listed(path))
    return [*paths, *(file for run in runs for name in SUMMARIES if (file := run / name).is_file())]


def _listed(file: Path) -> list[Path]:
    """Return the runs of a study file, or of a sweep's trials."""
    if "trials" in read_json(file):
        from analysis.beyond import sweep

        return sweep.read(file).runs
    return [start.run for start in study.load(file).starts]


def main(arguments: Sequence[str] | None = None, program: str = "python -m analysis") -> int:
    """Return the exit status: 0, 2 after one clear sentence on stderr, or 1 where a check or the disk says no.

    program: what the user typed.
    """
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    return exit_status(lambda: _run(parser(program).parse_args(words), words))


def _run(options: argparse.Namespace, words: Sequence[str]) -> int:
    made = options.run(options)
    provenance.record(made.files, ["analysis", *words], inputs(made.read))
    print(made.text, end="\n" if made.text and not made.text.endswith("\n") else "")
    if made.files:
        print("wrote", *made.files, file=sys.stderr if made.text else sys.stdout)
    return made.status


if __name__ == "__main__":
    sys.exit(main())
