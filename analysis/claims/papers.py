"""Claims of another paper than this suite's: a file of entries, or the paper's file of the audit, which names it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from analysis import audit, paper
from bapo.errors import UserError


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
        return Paper(path, f"claims_{path.stem.removesuffix('_claims')}")
    setup = audit.load(path).setup
    if not setup.claims:
        raise UserError(f"{path}: claims is missing; name the YAML file of the paper's claims beside it")
    return Paper(path.parent / setup.claims, f"claims_{path.stem}", setup.title)
