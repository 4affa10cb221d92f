"""The claims of a scale's results as a logbook of trackio, with a page a claim."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from analysis.claims import entries, ledger
from analysis.study import load_studies
from bapo.errors import require_extra
from bapo.store.files import SUMMARY, read_json, sha256


def write(studies: Sequence[Path], out: Path) -> int:
    """Write the files of the ledger and a logbook to the folder ``out``, which does not exist; return the claims.

    A page has the ledger's text, and the sums of the summaries of the runs that it rests on. Raises UserError for a
    broken run, or where ``trackio`` is not installed.
    """
    require_extra("trackio", "trackio")
    from trackio import logbook

    with tempfile.TemporaryDirectory() as temporary:  # trackio would go on with a logbook of the folders around
        folder, read = Path(temporary, "logbook"), load_studies(studies)
        page, _, rows = ledger.write(ledger.ledger(entries.read(), read), read, folder)
        overview, *claims = page.read_text(encoding="utf-8").split("\n### ")
        title, _, overview = overview.partition("\n")
        with contextlib.chdir(folder):
            book = logbook.create_logbook(title.removeprefix("# "))
        lines = ledger.by_claim(read_json(rows)["claims"])
        for name, _, text in (claim.partition("\n") for claim in claims):
            slug = logbook.ensure_page(book, name)
            overview = overview.replace(f"](#{name})", f"](#/{slug})")
            logbook.add_markdown_cell(book, slug, text, "Claim")
            runs = sorted({Path(run) for line in lines[name] for run in line["runs"]})
            sums = [f"{sha256(file)}  {file}" for run in runs for file in sorted(run.glob(f"**/{SUMMARY}"))]
            logbook.add_markdown_cell(book, slug, "\n".join(["```text", *(sums or ["none"]), "```"]), "Evidence")
        logbook.add_markdown_cell(book, logbook.ROOT_SLUG, overview.removesuffix("\n## Claim by claim\n"), "Claims")
        shutil.move(folder, out)
    return len(claims)
