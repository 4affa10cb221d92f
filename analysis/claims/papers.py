"""Claims of another paper than this suite's: a file of entries, or the paper's file of the audit, which names it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from analysis import audit, paper
from analysis.claims import entries
from analysis.products import PAPERS_LEDGER
from bapo import project
from bapo.errors import UserError
from bapo.experiments import places


@dataclass(frozen=True)
class Paper:
    """claims: the file of the entries; name: of the ledger's files, without a suffix; title: "" where none is given."""

    claims: Path
    name: str
    title: str = ""


def find(name: str) -> Paper:
    """Return the claims that ``name`` stands for: CLAIMS.yaml, PAPER.yaml, or a paper of ``analysis/paper/``.

    Raises UserError where a paper's file names no claims.
    """
    import yaml

    path = paper.find(name)
    try:
        is_paper = isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        is_paper = False  # whoever reads the entries says what is wrong
    if not is_paper:
        return Paper(path, PAPERS_LEDGER.format(path.stem.removesuffix("_claims")))
    setup = audit.load(path).setup
    if not setup.claims:
        raise UserError(f"{path}: claims is missing; name the YAML file of the paper's claims beside it")
    if not (path.parent / setup.claims).is_file():
        raise UserError(f"{path}: claims={setup.claims}: no file {path.parent / setup.claims}")
    return Paper(path.parent / setup.claims, PAPERS_LEDGER.format(path.stem), setup.title)


def check() -> None:
    """Read the entries that the workflow's ledger is made of, and its paper. Raises UserError for what is wrong."""
    about = project.about()
    if about is None or about.paper is None:
        entries.read()
    elif audit.load(about.paper).setup.claims:
        entries.read(find(str(about.paper)).claims, entries.Known(tuple(places.own("study"))))
