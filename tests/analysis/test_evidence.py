"""What is made of evidence has the digits of what is made of the runs."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from support.runs import write_claims, write_results

from analysis import claims, evidence
from analysis.__main__ import main
from analysis.claims import ledger, view
from analysis.tables import table1_words
from bapo.store.files import read_json

#: study -> products that read evaluations, probes, steps, configurations, curves and totals
PRODUCTS = {
    "table1": ["table1", "table2", "theory_monitor", "checkpoint_choice", "figure figure14_batch_composition"],
    "figure6": ["comparison", "figure figure6_ablations"],
    "regimes": ["regimes"],
    "tuning": ["tuning"],
}


def made(products: list[str], study: Path, out: Path) -> dict[str, str]:
    """Return the text of the tables, and of the data behind figures, that are made of a study."""
    for product in products:
        assert main([*product.split(), "--study", str(study), "--out", str(out)]) == 0
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(out.iterdir()) if p.suffix in (".md", ".csv", ".tex")}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_runs_and_of_their_evidence_are_equal(
    name: str, simulated: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = PRODUCTS[name]
    monkeypatch.setattr(table1_words, "_of_seed", lambda *_: None)  # how much is replayed: evidence lacks the groups
    assert main(["evidence", "--study", str(simulated[name]), "--out", str(tmp_path / "evidence")]) == 0
    file = tmp_path / "evidence" / "laptop" / f"{name}.zip"
    assert main(["unpack", str(file), "--out", str(tmp_path / "back")]) == 0
    study = tmp_path / "back" / "laptop" / "studies" / f"{name}.json"
    of_runs, of_evidence = (made(products, s, tmp_path / out) for s, out in ((simulated[name], "a"), (study, "b")))
    assert of_runs == of_evidence and len(of_runs) >= 3
    again = evidence.pack(study, tmp_path / "again")
    frames, same = evidence.read(file)[1], evidence.read(again)[1]
    assert all(frames[table].equals(same[table]) for table in frames if table != "text")


def test_a_comparison_of_evidence_leaves_out_the_figure_that_reads_groups(
    simulated: dict[str, Path], tmp_path: Path
) -> None:
    study = evidence.unpack(evidence.pack(simulated["bases"], tmp_path / "evidence"), tmp_path / "back")
    assert set(made(["comparison"], study, tmp_path / "out")) == {f"comparison_bases.{s}" for s in ("md", "csv", "tex")}


def test_a_claim_that_reads_groups_is_not_testable_with_evidence(simulated: dict[str, Path], tmp_path: Path) -> None:
    study = evidence.unpack(evidence.pack(simulated["bases"], tmp_path / "evidence"), tmp_path / "back")
    query = {"name": "bound_can_be_positive", "of": "bapo"}
    (asked,) = write_claims(tmp_path / "entries", {"query": query, "rule": {"above": 0}, "studies": ["bases"]})
    lines = ledger.ledger([asked], view.load_studies([study]))
    assert {line.verdict.verdict for line in lines} == {claims.NOT_TESTABLE}
    assert all("groups.parquet" in line.verdict.reason for line in lines)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return write_results(tmp_path / "results" / "laptop")


def test_evidence_says_what_its_runs_were(home: Path, tmp_path: Path) -> None:
    file = evidence.pack(home / "studies" / "table1.json", tmp_path / "evidence")
    about, tables = evidence.read(file)
    assert (about["runs"], about["seeds"], about["study"], about["folder"]) == (4, [1, 2], "table1", "laptop")
    assert (about["started"], about["ended"]) == ("2026-01-01T00:00:00Z", "2026-01-02T01:00:00Z")
    assert about["code"][0]["commit"] == "a" * 40 and len(about["asked"]) == 16
    assert set(tables) == {"text", "eval", "probe", "steps"}
    back = evidence.unpack(file, tmp_path / "back")
    assert evidence.unpack(file, tmp_path / "back") == back  # over itself
    run = "countdown/tiny/bapo/seed1"
    of_run, unpacked = (read_json(folder / run / "summary.json") for folder in (home, back.parents[1]))
    assert unpacked["evidence"]["sealed"] == of_run["files"] and unpacked["totals"] == of_run["totals"]
    shutil.copytree(home, tmp_path / "elsewhere" / "laptop")
    moved = tmp_path / "elsewhere" / "laptop" / "studies" / "table1.json"
    assert evidence.pack(moved, tmp_path / "other").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    "missing", [f"countdown/tiny/{f}/summary.json" for f in ("grpo/seed1", "bapo/seed2/eval", "base/eval")]
)
def test_an_unfinished_study_has_no_evidence(missing: str, home: Path, tmp_path: Path, capsys) -> None:
    (home / missing).unlink()
    words = ["evidence", "--study", str(home / "studies" / "table1.json"), "--out", str(tmp_path / "evidence")]
    assert main(words) == 2
    assert missing.removesuffix("/summary.json").removesuffix("/eval") in capsys.readouterr().err
    assert not (tmp_path / "evidence").exists()


def test_evidence_never_takes_the_place_of_a_run(home: Path, tmp_path: Path, capsys) -> None:
    file = evidence.pack(home / "studies" / "table1.json", tmp_path / "evidence")
    before = {p: p.read_bytes() for p in home.rglob("*") if p.is_file()}
    assert main(["unpack", str(file), "--out", str(home.parent)]) == 2
    assert "summary.json" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in home.rglob("*") if p.is_file()} == before


def test_a_file_that_is_too_large(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Columns of steps go first, the last ones of STEP_COLUMNS; with none left the command fails."""
    study = home / "studies" / "table1.json"
    whole = evidence.pack(study, tmp_path / "evidence")
    columns = [c for c in evidence.read(whole)[1]["steps"] if c != "path"]
    monkeypatch.setattr(evidence, "LARGEST", whole.stat().st_size - 1)
    kept = [c for c in evidence.read(evidence.pack(study, tmp_path / "less"))[1]["steps"] if c != "path"]
    assert kept == columns[: len(kept)] and 0 < len(kept) < len(columns)
    monkeypatch.setattr(evidence, "LARGEST", 100)
    assert main(["evidence", "--study", str(study), "--out", str(tmp_path / "none")]) == 2
    assert "table1.zip" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"x", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_evidence_is_named(content: bytes | None, tmp_path: Path, capsys) -> None:
    file = tmp_path / "some.zip"
    if content is not None:
        file.write_bytes(content)
    assert main(["unpack", str(file), "--out", str(tmp_path / "back")]) == 2
    assert "some.zip" in capsys.readouterr().err and not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("folder", "place"), [("laptop", "../outside.json"), ("laptop", "/outside.json"), ("..", "studies/a.json")]
)
def test_a_strangers_file_writes_nowhere_else(folder: str, place: str, tmp_path: Path, capsys) -> None:
    text = pd.DataFrame({"path": [place], "text": ["{}"]})
    text.to_parquet(tmp_path / "text.parquet")
    with zipfile.ZipFile(tmp_path / "strange.zip", "w") as archive:
        archive.writestr("about.json", json.dumps({"folder": folder, "study": "a"}))
        archive.write(tmp_path / "text.parquet", "text.parquet")
    assert main(["unpack", str(tmp_path / "strange.zip"), "--out", str(tmp_path / "back" / "here")]) == 2
    assert (folder if folder == ".." else place) in capsys.readouterr().err and not (tmp_path / "back").exists()


def test_a_file_that_grows_too_much_is_refused(tmp_path: Path, capsys) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.json", bytes(10 * evidence.LARGEST + 1))
    assert main(["unpack", str(tmp_path / "bomb.zip"), "--out", str(tmp_path / "back")]) == 2
    assert "bomb.zip" in capsys.readouterr().err
