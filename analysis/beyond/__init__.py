"""What goes beyond the paper: tables and figures of its runs and of more. Their sentences are in a template."""

from __future__ import annotations

from pathlib import Path

from bapo.validate import parse_yaml

WORDS = Path(__file__).resolve().parents[1] / "templates" / "beyond.yaml"


def words(module: str, **fields: object) -> list[str]:
    """Return the sentences of a page's notes or of a figure's caption, with their fields filled in."""
    return [sentence.format(**fields) for sentence in parse_yaml(WORDS, resolve=False)[module]]
