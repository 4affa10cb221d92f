"""The page itself: a Jinja2 template that escapes everything, one style sheet, one script, and nothing from outside."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from analysis import html, text
from analysis.audit import SETUP, audit
from analysis.audit import load as load_audit
from analysis.claims import papers
from analysis.products import LEDGER, MAIN
from analysis.report import claims, files, findings, others, picture, provenance
from analysis.report.gains import COSTS
from analysis.study import StudyFile, workflow_command
from analysis.tables.table2 import QUANTITIES
from bapo import project
from bapo.errors import UserError
from bapo.store.files import write_text

FOLDER = Path(__file__).resolve().parent / "templates"
#: of the page, where no project has another
TITLE = "Buffer Matters"
SCRIPTS = ("common.js", "tables.js", "figures.js", "runs.js")


@dataclass(frozen=True)
class Report:
    """What was written. size: bytes of the page."""

    path: Path
    size: int
    tables: int
    figures: int
    sweeps: int
    claims: int
    findings: int
    runs: int
    configurations: int

    def __str__(self) -> str:
        return (
            f"{self.path} ({readable_bytes(self.size)}: {self.tables} tables, {self.figures} figures, {self.sweeps} "
            f"sweeps, {self.claims} claims, {self.findings} findings, {self.runs} runs of {self.configurations} "
            "configurations)"
        )


def write(results: Path, out: Path | None = None, setup: Path = SETUP) -> Report:
    """Write the page of ``results`` (a scale's folder) to ``out`` (default: report.html in it).

    setup: what the audit reads; in a project the paper that ``bapo.yaml`` names, or nothing.
    Raises UserError where the folder does not exist or a file in it is damaged.
    """
    about = project.about()
    if not results.is_dir():
        raise UserError(f"{results} does not exist; make it with `snakemake --cores all {'all' if about else MAIN}`")
    paper = about.paper if about else setup
    name = _ledger_of(paper) if about else LEDGER
    ledger = results / f"{name}.json"
    origin = provenance.collect(results)
    content = {
        "tables": files.tables(results / "tables"),
        "figures": files.figure_list(results / "figures"),
        "sweeps": files.sweeps(results),
        "claims": claims.load(ledger) if name else [],
        "findings": audit(load_audit(paper)) if paper else [],
    }
    path = out or results / "report.html"
    judged = claims.lines(ledger) if name else None
    opening = findings.collect(results, origin.studies, judged)
    page = render(
        results.name,
        origin,
        title=about.title if about else TITLE,
        paper=paper,
        audit_command=shlex.join(["python", "-m", "bapo", "audit", *([str(paper)] if about else [])]),
        is_judged=judged is not None,
        everything="all" if about else MAIN,
        shows_figures=bool(content["figures"]) or not about,
        opening=opening,
        others=others.collect(results, origin.runs),
        **content,
    )
    write_text(path, page)
    sizes = {key: len(value) for key, value in content.items()}
    return Report(path, len(page.encode()), **sizes, runs=len(origin.runs), configurations=len(origin.configurations))


def _ledger_of(paper: Path | None) -> str:
    """Return the name of a paper's ledger; "" where there is no paper, or none of its sentences is a claim."""
    return papers.find(str(paper)).name if paper and load_audit(paper).setup.claims else ""


def render(folder: str, origin: provenance.Provenance, **content: Any) -> str:
    """Return the page's text. content: what :func:`write` hands over."""
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    script = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    filters = {"bytes": readable_bytes, "duration": duration, "amount": amount, "flat": provenance.flatten}
    study = next((s for s in origin.studies if s.name == MAIN), (origin.studies or [StudyFile(())])[0])
    return html.template(FOLDER, "page.html", **filters).render(
        **content,
        drawings=picture.drawings(content["opening"]),
        units=picture,
        cost_words=COSTS,
        scale=study.scale or folder,
        note=study.note,
        command=lambda target: _command(target, study, folder),
        runs=origin.runs,
        provenance=origin,
        costs=provenance.costs(origin.runs),
        cost_names=QUANTITIES,
        missing=text.MISSING,
        tally=claims.tally(content["claims"]),
        until=max((str(r.manifest.get("ended") or "") for r in origin.runs), default=""),
        sizes={key: files.total(content[key]) for key in ("tables", "figures", "sweeps")},
        data=_script_data(_payload(origin)),
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
    )


def _command(target: str, study: StudyFile, folder: str) -> str:
    config = study.config
    if config is None:
        config = () if folder == "laptop" else (f"scale={folder}",)
    return workflow_command([target], config)


def _payload(origin: provenance.Provenance) -> dict[str, Any]:
    """Return what opening a run shows; the browser builds it only when asked."""
    left_out = ("task_title", "model_title", "evaluation_seconds")
    return {
        "configurations": origin.configurations,
        "environments": origin.environments,
        "runs": [
            {k: v for k, v in asdict(run).items() if k not in left_out and v not in (None, {}, [])}
            for run in origin.runs
        ],
    }


def _script_data(content: Any) -> Markup:
    """JSON that cannot end the script element that it lies in."""
    return Markup(json.dumps(_finite(content), separators=(",", ":"), default=str).replace("<", "\\u003c"))


def _finite(value: Any) -> Any:
    """NaN and infinities as text: JSON has none."""
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _policy(style: str, script: str) -> str:
    """Return the policy: nothing is loaded, run or sent but this style, this script and the images inside the page."""
    return (
        f"default-src 'none'; img-src data:; style-src {html.source(style)}; script-src {html.source(script)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


# ------------------------------------------------------------------------------------------------ numbers


def readable_bytes(count: float) -> str:
    """1234567 -> "1.2 MB" (powers of 1000)."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def duration(seconds: float | None) -> str:
    """14.6 -> "14.6 s", 95 -> "1 min 35 s", 7500 -> "2 h 05 min"."""
    if seconds is None or not math.isfinite(seconds):
        return text.MISSING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return text.minutes(round(seconds))


def amount(value: float | None) -> str:
    """42240 -> "42,240", 2600000 -> "2.60M", 2.62e11 -> "2.62e11"; missing -> an en dash."""
    if value is None or not math.isfinite(value):
        return text.MISSING
    if value >= 999.5e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value / 1e6:#.3g}".rstrip(".") + "M" if value >= 1e6 else f"{value:,.0f}"
