"""Which products a target of the workflow asks for. A project with studies of its own gets those of its own studies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from bapo import project
from bapo.experiments import places, products
from bapo.experiments.products import FIRST_LOOK, LEDGER, MAIN, PAGE, PAPERS_LEDGER, TABLES, Product
from bapo.validate import parse_yaml

#: targets that are no product's own name
GENERAL = ("all", MAIN, "figures", "tables", "comparisons", "theory", "sweep")


def own_studies(scale: str) -> list[str]:
    """Return the studies at ``scale`` of the project in the working directory."""
    return products.at_scale(places.own("study"), scale)


def of_target(target: str, scale: str, sweeps: Iterable[str] = (), home: Path | None = None) -> list[Product]:
    """Return the products that a target of the workflow asks for; none for the runs of a study.

    sweeps: those with runs at the scale, for the target ``sweep``; home: the scale's folder, as in :func:`ledger`.
    """
    if target in ("all", "report", "figures", "claims", "comparisons") and own_studies(scale):
        return _of_project(target, scale)
    look = [FIRST_LOOK] if products.at_scale([MAIN], scale) else []
    if target == "all":
        return [*look, page(scale, home)]
    if target == "report":
        return [page(scale, home)]
    if target == FIRST_LOOK.name:
        return look
    if target == "claims":
        return [ledger(scale, home)]
    if target == "figures":
        return products.drawn(scale)
    if target == "tables":
        return [*look, *TABLES.values()]
    if target == "comparisons":
        return [products.comparison(study) for study in products.beyond(scale)]
    if target == "sweep":
        return [products.robustness(sweep) for sweep in sweeps]
    if target.startswith("sweep_"):
        return [products.robustness(target.removeprefix("sweep_"))]
    if target.startswith("runs_"):
        return []
    drawn = products.drawn(scale)
    if target == MAIN:  # the figures of the same runs take seconds once the runs exist
        return [*look, TABLES[MAIN], *(f for f in drawn if f.studies == (MAIN,) and not f.curves)]
    if target == "theory" or target in TABLES:
        return [TABLES["theory_monitor" if target == "theory" else target]]
    return [f for f in drawn if target in f.studies] if products.figures_of(target) else [products.comparison(target)]


def _of_project(target: str, scale: str) -> list[Product]:
    compared = [products.comparison(study) for study in own_studies(scale)]
    if target == "comparisons":
        return compared
    if target == "figures":
        return [product for product in compared if products.also(product.studies[0])]
    if target == "claims":
        return papers_ledger(scale)
    shown = page(scale)
    return [shown] if target == "report" else [*shown.shown, shown]


def every(scale: str, sweeps: Iterable[str], home: Path) -> list[Product]:
    """Return all products that have runs at ``scale``, the suite's and a project's, each once."""
    asked = [*of_target("tables", scale), *products.drawn(scale)]
    asked += [*of_target("claims", scale, home=home), page(scale, home)]
    asked += map(products.comparison, products.beyond(scale))
    return [*asked, *map(products.robustness, sweeps)]


def names(scale: str, sweeps: Iterable[str], home: Path) -> list[str]:
    """Return the targets that are no product's own name."""
    known = every(scale, sweeps, home)
    compared = [p.studies[0] for p in known if p.category == "Comparisons" and p.studies[0] != p.name]
    claims = [] if any(p.name == LEDGER.name for p in known) else [LEDGER.name]
    return [*GENERAL, *claims, *compared, *(f"sweep_{sweep}" for sweep in sweeps)]


# ------------------------------------------------------------------------------------------------ the ledger, the page


def ledger(scale: str, home: Path | None = None) -> Product:
    """Return the ledger of the studies that have runs at ``scale``; of the others it says that there are none.

    A study beyond the paper takes hours: the ledger reads it where its comparison is in ``home``, and does not ask.
    """
    further = set(products.beyond(scale))
    claimed = products.at_scale(products.claimed(), scale)
    asked = [s for s in claimed if s not in further or (home and _compared(home, s))]
    return replace(LEDGER, studies=tuple(asked))


def _compared(home: Path, study: str) -> bool:
    return (home / next(iter(products.comparison(study).files))).exists()


def papers_ledger(scale: str) -> list[Product]:
    """Return the ledger of the paper that a project's ``bapo.yaml`` names, asked of its own studies; [] without one."""
    sources = papers_files()
    if len(sources) < 3:  # the paper and its table alone
        return []
    name = PAPERS_LEDGER.format(sources[0].stem)
    files = {file.replace(LEDGER.name, name): caption for file, caption in LEDGER.files.items()}
    command = (*LEDGER.command, str(sources[0]))
    made = replace(LEDGER, name=name, command=command, files=files, sources=sources)
    return [replace(made, studies=tuple(own_studies(scale)))]


def papers_files() -> tuple[Path, ...]:
    """Return the files of the paper that a project names: itself, its table and, where it has any, its claims."""
    about = project.about()
    if about is None or about.paper is None:
        return ()
    content = parse_yaml(about.paper)
    named = [content.get(key) for key in ("table", "claims")] if isinstance(content, dict) else []
    return (about.paper, *(about.paper.parent / name for name in named if isinstance(name, str)))


def page(scale: str, home: Path | None = None) -> Product:
    """Return the page. What it shows is made first: all of the paper's, or of a project its own studies.

    Of the rest it shows what is in ``home``.
    """
    if own_studies(scale):
        shown = (*_of_project("comparisons", scale), *papers_ledger(scale))
        return replace(PAGE, shown=shown, sources=papers_files())
    return replace(PAGE, shown=(*TABLES.values(), *products.drawn(scale), ledger(scale, home)))


def unasked(home: Path, scale: str) -> list[Path]:
    """Return the files in ``home`` that the page shows where they exist, but does not ask for."""
    compared = [home / file for study in products.beyond(scale) for file in products.comparison(study).files]
    reports = [p for files in products.robustness_reports(home) for p in files]
    return [p for p in compared if p.exists()] + reports + products.imported(home)
