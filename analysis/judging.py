"""``bapo audit`` and ``bapo claims``: a paper's numbers and sentences; in a project its own paper and its own runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from analysis import products
from analysis.made import Made, inputs_of_studies, listed
from bapo import project
from bapo.errors import UserError
from bapo.experiments import places


def audit(options: argparse.Namespace) -> Made:
    """Print what does not follow in a paper's numbers."""
    from analysis import audit, paper

    about = project.about()
    own = about.paper if about and options.paper is None else None
    place = own or paper.find(options.paper or audit.SETUP)
    published = audit.load(place)
    found = audit.audit(published)
    page = audit.markdown(found, published.setup.title, published.setup.source)
    written = audit.write(options.out, page, found) if options.out else []
    return Made(listed(written), written, [place, place.parent / published.setup.table], page)


def claims(options: argparse.Namespace) -> Made:
    """Write the ledger of this paper's claims, or of another's."""
    from analysis.claims import entries, ledger, view, writers

    about = project.about()
    named = options.claims or (str(about.paper) if about and about.paper else None)
    paths = options.study or (_own_studies(about) if about else [])
    out = options.out or (about.home if about else None)
    if not paths or out is None:
        where = (
            f"{about.home} has no study yet; run `snakemake --cores all`" if about else "--study and --out: name both"
        )
        raise UserError(f"{where}; the studies are results/SCALE/studies/*.json")
    studies = view.load_studies(paths)
    inputs = inputs_of_studies(paths)
    if named is None:
        files = writers.write(ledger.ledger(entries.read(), studies), studies, out)
    else:
        of = entries.find(named)
        known = entries.read(of.claims, entries.Known.of(studies))
        files = writers.write(ledger.ledger(known, studies), studies, out, of.name, of.title)
        inputs = [of.claims, *inputs]
    return Made(listed(files), files, inputs)


def _own_studies(about: project.About) -> list[Path]:
    """Return the files of a project's studies that have been written."""
    files = (about.home / products.study_file(name) for name in places.own("study"))
    return [file for file in files if file.is_file()]
