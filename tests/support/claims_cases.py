"""An entry of the ledger of claims that tests change."""

from __future__ import annotations

from pathlib import Path

import yaml

from analysis.claims import entries

GOOD = {
    "id": "a_claim",
    "section": "5.1",
    "quote": "DAPO needs more",
    "paper": 2.5,
    "studies": ["table1"],
    "query": {"name": "cost_ratio", "of": "dapo", "over": "bapo"},
    "rule": {"near": 0.2},
}


def written(folder: Path, *given: dict) -> list[entries.Claim]:
    folder.mkdir(exist_ok=True)
    (folder / "mine.yaml").write_text(yaml.safe_dump([{**GOOD, **g} for g in given]))
    return entries.read(folder)
