"""One HTML page of a scale's results that opens from disk: ``python -m analysis report``.

It shows what lies in the results folder (tables, figures, sweeps, the ledger, imports) and the audit of the paper, as
their own Markdown says it. Pictures are in the page; numbers behind them are links to the files beside it.
"""

from __future__ import annotations

import base64
import html
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup

from analysis import audit, closing, paper, text
from analysis.exchange.imports import is_imported
from analysis.products import FIGURES, LEDGER, MAIN, PAGE, TABLES, imported, robustness_reports
from analysis.study import StudyFile, finished, load, workflow_command
from bapo import project
from bapo.errors import UserError
from bapo.store.files import MANIFEST, SUMMARY, read_json, write_text

TEMPLATES = Path(__file__).resolve().parent / "templates"
#: the heading, where no project has another
TITLE = "Buffer Matters"


def write(home: Path, out: Path | None = None) -> Path:
    """Write the page of ``home`` (a scale's folder) to ``out`` (default: report.html in it) and return its path.

    A project's page has no paper. Raises UserError where the folder holds no results or a file in it is damaged.
    """
    title = project.title()
    path, ledger = out or home / PAGE, home / f"{LEDGER}.md"
    if not shows_something(home):
        raise UserError(f"{home}: holds no results; make them with `bapo run {'all' if title else MAIN}`")
    parts = {
        "tables": _parts(home / "tables", path.parent),
        "figures": _parts(home / "figures", path.parent, "svg"),
        "sweeps": [part for report, *_ in robustness_reports(home) for part in _parts(report.parent, path.parent)],
        "imports": _imports(home),
    }
    studies = [load(file) for file in study_files(home)]
    first = next((s for s in studies if s.name == MAIN), next(iter(studies), None))
    loader, strict = jinja2.FileSystemLoader(TEMPLATES), jinja2.StrictUndefined
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("page.html").render(
        title=title or TITLE,
        scale=first.scale if first else home.name,
        note=first.note if first else "",
        opening=[_opening(study, home) for study in studies],
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        **parts,
        claims=None if title else markdown(_titled(ledger)[1]),
        audit=None if title else markdown(audit.markdown(audit.audit(paper.load()))),
        command=lambda target: workflow_command([target], first.config if first else ()),
        main="all" if title else MAIN,
        own=title is not None,
        text=text,
    )
    write_text(path, page)
    return path


def shows_something(home: Path) -> bool:
    """Return whether a page of ``home`` would show anything: runs alone are not shown."""
    files = [home / f"{LEDGER}.md", *study_files(home), *home.glob("tables/*.md"), *home.glob("figures/*.svg")]
    return any(file.is_file() for file in files) or bool(robustness_reports(home) or _imports(home))


def study_files(home: Path) -> list[Path]:
    """Return the descriptions of the studies of ``home``."""
    return sorted(home.glob("studies/*.json"))


def _opening(study: StudyFile, home: Path) -> dict[str, str]:
    """Return a study's title, what ran on which machines and how long, and its rows as text."""
    runs = [cell.run for cell in study.cells if finished(cell, study.is_evaluated)]
    seconds, processors = 0.0, set()
    for run in runs:
        with suppress(UserError, TypeError, AttributeError, KeyError):  # imported and damaged runs lack some of it
            seconds += read_json(run / SUMMARY)["totals"]["seconds"]
            processors.add(str(read_json(run / MANIFEST)["hardware"]["processor"]))
    facts = f"{len(runs)} of {len(study.cells)} runs, {text.duration(seconds)} of training"
    return {
        "title": study.title,
        "facts": " on ".join([facts, *([" and ".join(sorted(processors))] if processors else [])]) + ".",
        "rows": closing.rows(closing.table_of(home, study.name)),
    }


def _imports(home: Path) -> list[dict[str, Any]]:
    """Return what `bapo import` has written beside ``home``: a row each, with its accuracies and sources."""
    rows = []
    for summary in filter(lambda path: is_imported(path.parent), imported(home)):
        folder = summary.parent.parent if summary.parent.name == "eval" else summary.parent
        names = dict(zip(("task", "model", "method", "seed"), folder.parts[-4:], strict=True))
        content, manifest = read_json(summary), read_json(summary.parent / MANIFEST)
        rows.append({"steps": "", "benchmarks": {}} | names | content | {"sources": manifest["imported"]})
    return rows


# ------------------------------------------------------------------------------------------------ files


def _parts(folder: Path, page: Path, kind: str = "md") -> list[dict[str, Any]]:
    """Return a part for every NAME.kind of a folder, in the order of the products: NAME.* and NAME_* belong to it.

    body: its Markdown as HTML; files: the numbers behind it, relative to the page; pictures: of each file beside the
    page its title, the picture as a data: URI, and what the SVG file says of itself.
    """
    order = [*TABLES, *FIGURES]
    stems = sorted((p.stem for p in folder.glob(f"*.{kind}")), key=lambda s: (order.index(s) if s in order else 99, s))
    owned: dict[str, list[Path]] = {stem: [] for stem in stems}
    for path in sorted(folder.glob("*.*")):
        if owners := [stem for stem in stems if path.stem == stem or path.stem.startswith(f"{stem}_")]:
            owned[max(owners, key=len)].append(path)
    parts = []
    for stem, paths in owned.items():
        title, body = _titled(folder / f"{stem}.md")
        pictures = {os.path.relpath(p, page): _picture(p) for p in paths if p.suffix == ".svg"}
        numbers = [os.path.relpath(p, page) for p in paths if p.suffix in (".csv", ".tex")]
        part = {"key": stem, "title": title or _heading(stem), "body": markdown(body)}
        parts.append(part | {"pictures": pictures, "files": numbers})
    return parts


def _picture(path: Path) -> tuple[str, str, str]:
    svg = path.read_text(encoding="utf-8", errors="replace")
    caption = re.search(r"<dc:description>(.*?)</dc:description>", svg, re.DOTALL)
    image = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return _heading(path.stem), image, " ".join(html.unescape(caption[1]).split()) if caption else ""


def _heading(name: str) -> str:
    return FIGURES[name].heading if name in FIGURES else name.replace("_", " ").capitalize()


def _titled(path: Path) -> tuple[str, str]:
    """Return (the first heading of level 1 or "", the text without it) of a file of Markdown, which may be missing."""
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    match = re.search(r"^# (.+)\n?", page, re.MULTILINE)
    return (match[1].strip(), page[: match.start()] + page[match.end() :]) if match else ("", page)


def markdown(page: str) -> Markup:
    """Return Markdown as HTML, its headings two levels lower. Raw HTML is shown as text but for our <br> and <u>."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "autolink"])
    body = parser.renderer.render([*_lowered(parser.parse(page))], parser.options, {})
    body = body.replace("&lt;br&gt;", "<br>").replace("<table>", '<div class="scroll"><table>')
    body = re.sub(r"&lt;u&gt;(.*?)&lt;/u&gt;", r"<u>\1</u>", body.replace("</table>", "</table></div>"))
    return Markup(body.replace("text-align:right", "text-align: right"))


def _lowered(tokens: Sequence[Any]) -> Iterator[Any]:
    """Lower the headings, and name each by its words: the ledger's links lead there."""
    for token, inline in zip(tokens, [*tokens[1:], None], strict=False):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
        if token.type == "heading_open" and re.fullmatch(r"\w+", inline.content):
            token.attrSet("id", inline.content)
        yield token
