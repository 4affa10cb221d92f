"""``python -m analysis``: tables and figures from finished runs.

``--study FILE.json`` says which runs to read; the workflow writes such files, ``StudyFile`` in analysis/study.py lists
their fields. Paths in them are relative to where the command runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis import figures, products, tables
from analysis.commands import OF_ANALYSIS
from bapo.errors import UserError
from bapo.store import provenance
from bapo.store.files import SUMMARY, read_json, sha256

#: the files of a run's folder that stand for what an analysis has read
SUMMARIES = (SUMMARY, f"eval/{SUMMARY}", f"curve/{SUMMARY}")


@dataclass(frozen=True)
class Made:
    """What a command did. files: what it wrote; inputs: what it read, for the record of where the files come from.

    text: what it prints; message: what it wrote, where that is not files; status: its exit status.
    """

    files: Sequence[Path] = ()
    inputs: Sequence[Path] = ()
    text: str = ""
    message: str = ""
    status: int = 0


def parser(program: str = "python -m analysis") -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog=program, description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], Made], text: str = "") -> Callable[..., argparse.Action]:
        text = text or OF_ANALYSIS[name]
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub.add_argument

    def of_study(
        name: str, run: Callable[[argparse.Namespace], Made], text: str = ""
    ) -> Callable[..., argparse.Action]:
        add = command(name, run, text)
        add("--study", required=True, type=Path, metavar="FILE.json", help="which runs to read")
        add("--out", required=True, type=Path, metavar="DIR", help="folder for the files")
        return add

    def of_results(name: str, run: Callable[[argparse.Namespace], Made]) -> Callable[..., argparse.Action]:
        add = command(name, run)
        add("results", type=Path, help="the scale's folder, for example results/laptop")
        return add

    for table in (products.TABLES | products.OTHERS).values():
        of_study(table.name, _table, table.heading)
    add = of_study("figure", _figure, "one figure: NAME.pdf, NAME.png, NAME.svg and NAME.csv with the data behind it")
    add("name", choices=products.FIGURES, metavar="NAME", help=f"one of {', '.join(products.FIGURES)}")

    add = command("robustness", _robustness, "how accuracy depends on a sweep's parameters: md, csv, figure")
    add("--trials", required=True, type=Path, metavar="FILE.json", help="trials.json of the sweep")
    add("--out", required=True, type=Path, metavar="DIR", help="folder for robustness.*")

    add = command("import", _import)
    add("file", type=Path, help="a training log of verl or TRL, plain or .gz, or results_DATE.json of lm-eval")
    for name in ("task", "model", "method"):
        add(f"--{name}", required=True, help="the name of a folder")
    for name, number, what in (("seed", 1, "of the run"), ("batch", 128, "prompts a step"), ("group", 8, "responses")):
        add(f"--{name}", type=int, default=number, help=f"{what} ({number})")
    add("--out", type=Path, default=Path("results", products.IMPORTED), help="default: results/imported")

    command("audit", _audit)("--out", type=Path, metavar="DIR", help="folder for audit.md and audit.json")

    add = command("claims", _claims)
    add("--study", required=True, nargs="+", type=Path, metavar="FILE.json", help="results/SCALE/studies/*.json")
    add("--out", required=True, type=Path, metavar="DIR", help="folder for claims.*")

    add = of_results("export", _export)
    add("--out", required=True, type=Path, metavar="CRATE", help="a new folder")
    add("--license", metavar="URL", help="default: that of this suite, Apache-2.0")

    of_study("evidence", _evidence)
    add = command("unpack", _unpack)
    add("evidence", nargs="+", type=Path, metavar="FILE.zip", help="evidence/SCALE/*.zip")
    add("--out", required=True, type=Path, metavar="DIR", help="folder for SCALE/studies/NAME.json and its runs")

    command("verify", _verify)("crate", type=Path, metavar="CRATE", help="the folder of a crate")
    add = command("compare", _compare)
    for side in ("a", "b"):
        add(side, type=Path, metavar=side.upper(), help="a results folder, or that of a crate")

    of_results("watch", _watch)
    add = of_results("report", _report)
    add("--out", type=Path, metavar="FILE.html", help=f"default: {products.PAGE} in that folder")
    return top


# ------------------------------------------------------------------------------------------------ what they do


def _table(options: argparse.Namespace) -> Made:
    from analysis import study

    read = study.load(options.study, products.MAIN if options.command == products.MAIN else None)
    files = tables.write(options.command, read, options.out)
    said = files[0].read_text(encoding="utf-8") if options.command == products.FIRST_LOOK else ""
    return Made(files, inputs([options.study]), said)


def _figure(options: argparse.Namespace) -> Made:
    from analysis import study

    return Made(figures.draw(options.name, study.load(options.study), options.out), inputs([options.study]))


def _audit(options: argparse.Namespace) -> Made:
    from analysis import audit

    found = audit.audit(audit.load(audit.SETUP))
    page = audit.markdown(found)
    written = audit.write(options.out, page, found) if options.out else []
    return Made(written, [audit.SETUP, audit.SETUP.with_name("table1.yaml")], page)


def _claims(options: argparse.Namespace) -> Made:
    from analysis.claims import entries, ledger, view

    studies = view.load_studies(options.study)
    files = ledger.write(ledger.ledger(entries.read(), studies), studies, options.out)
    return Made(files, inputs(options.study))


def _import(options: argparse.Namespace) -> Made:
    from analysis import imports

    names = (options.task, options.model, options.method, options.seed)
    folder, log = imports.import_file(options.file, options.out, names, options.batch, options.group)
    said = [f"refused: {place}: {reason}" for place, reason in log.refused[: imports.SHOWN]]
    return Made(message=f"{folder}; {len(log.refused)} records refused", text="\n".join(said))


def _export(options: argparse.Namespace) -> Made:
    from analysis import sharing

    packed = sharing.collect(options.results)
    sums = sharing.write(packed, options.out, options.license or sharing.LICENSE)
    left = f"; unfinished and left out: {', '.join(packed.left_out)}" if packed.left_out else ""
    return Made(message=f"{options.out}: {len(packed.files)} files, sums {sums}{left}")


def _evidence(options: argparse.Namespace) -> Made:
    from analysis import evidence

    file = evidence.pack(options.study, options.out)
    return Made(message=f"{file}: {file.stat().st_size:,} bytes")


def _unpack(options: argparse.Namespace) -> Made:
    from analysis import evidence

    return Made(message=" ".join(str(evidence.unpack(file, options.out)) for file in options.evidence))


def _verify(options: argparse.Namespace) -> Made:
    from analysis import sharing

    found, sums = sharing.problems(options.crate), sha256(options.crate / sharing.SUMS)
    said = "\n".join(found) or f"{options.crate}: all files are as they were packed; sums {sums}"
    return Made(text=said, status=1 if found else 0)


def _compare(options: argparse.Namespace) -> Made:
    from analysis import compare

    found = compare.compare(options.a, options.b)
    page = compare.markdown(found, (str(options.a), str(options.b)))
    return Made(text=page, status=0 if found.agree else 1)


def _robustness(options: argparse.Namespace) -> Made:
    from analysis.beyond import sweep

    return Made(sweep.write(options.trials, options.out), inputs([options.trials]))


def _report(options: argparse.Namespace) -> Made:
    from analysis import report

    page = report.write(options.results, options.out)
    return Made([page], inputs(sorted(options.results.glob("studies/*.json"))))


def _watch(options: argparse.Namespace) -> Made:
    from analysis.watch import watch

    watch(options.results)
    return Made()


def inputs(paths: Sequence[Path]) -> list[Path]:
    """Return files that list runs (of a study, of a sweep) and the existing summaries of the runs in them."""
    runs = [run for path in paths for run in _runs(read_json(path))]
    return [*paths, *(p for run in dict.fromkeys(runs) for name in SUMMARIES if (p := Path(run, name)).is_file())]


def _runs(content: object) -> Iterator[str]:
    """Yield what stands under "run" in a JSON document, and each value under "runs"."""
    if isinstance(content, list):
        for entry in content:
            yield from _runs(entry)
    for key, value in content.items() if isinstance(content, dict) else ():
        yield from [value] if key == "run" else value.values() if key == "runs" else _runs(value)


def main(arguments: Sequence[str] | None = None, program: str = "python -m analysis") -> int:
    """Return the exit status: 0, or 2 after one clear sentence on stderr; 1 where a check has found something.

    program: what the user typed.
    """
    options = parser(program).parse_args(arguments)
    try:
        made = options.run(options)
        provenance.record(made.files, ["analysis", *(sys.argv[1:] if arguments is None else arguments)], made.inputs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(made.text, end="\n" if made.text and not made.text.endswith("\n") else "")
    if written := made.message or " ".join(map(str, made.files)):
        print(f"wrote {written}", file=sys.stderr if made.text else sys.stdout)
    return made.status


if __name__ == "__main__":
    sys.exit(main())
