"""Claims as a logbook of trackio, which trackio itself reads back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.runs import write_results
from support.trackio import needs_trackio

from analysis.__main__ import main
from analysis.claims.ledger import by_claim
from bapo.store.files import read_json


@needs_trackio
def test_trackio_reads_a_page_a_claim_and_the_sums_of_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also beside a logbook of the reader's own, which stays as it is."""
    from trackio import logbook

    own = tmp_path / logbook.PROJECT_DIR_NAME / logbook.LOGBOOK_SUBDIR / "pages" / "index.md"
    own.parent.mkdir(parents=True)
    own.write_text("# Mine\n")
    home, out = write_results(tmp_path / "results" / "laptop"), tmp_path / "new" / "book"
    assert main(["export", str(home), "--out", str(out), "--trackio"]) == 0
    claims = by_claim(read_json(out / "claims.json")["claims"])
    assert f"wrote {out}: a logbook of {len(claims)} claims" in capsys.readouterr().out and len(claims) > 50
    assert own.read_text() == "# Mine\n" and [path.name for path in own.parent.iterdir()] == ["index.md"]

    index, *parts = logbook.read_logbook(logbook.require_project_dir(out)).split("\n## ")
    pages = {part.split(" · ")[0]: part for part in parts if " · `" in part.partition("\n")[0]}
    assert index.startswith("# Claim check at laptop scale") and list(pages) == list(claims)
    assert {*re.findall(r"\(#/([\w-]+)\)", index + "".join(parts))} == {name.replace("_", "-") for name in claims}
    for name, lines in claims.items():
        assert f"> {lines[0]['quote']}" in pages[name]
        assert re.findall(r"^\|[^*\n]*\*\*([^*]+)\*\*", pages[name], re.MULTILINE) == [x["verdict"] for x in lines]
        assert all(line["reason"] in pages[name] for line in lines)
        runs = {run for line in lines for run in line["runs"]}
        sums = "".join(re.findall(r"^[0-9a-f]{64}  .+\n", pages[name], re.MULTILINE))
        assert {run for run in runs if f"{run}/summary.json\n" in sums} == runs and bool(sums) == bool(runs)
        done = subprocess.run(["sha256sum", "--quiet", "-c"], input=sums, text=True, capture_output=True)
        assert not runs or done.returncode == 0, done.stderr
    assert any(line["runs"] for lines in claims.values() for line in lines)
