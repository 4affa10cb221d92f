"""Where a result comes from: records of tables and figures, manifests of runs, and what has changed since."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from analysis import __main__ as analysis
from bapo import __main__, __version__
from bapo.errors import UserError
from bapo.store import provenance
from bapo.store.files import CONFIG, MANIFEST, STEPS, SUMMARY, fingerprints, read_json, write_json, write_text

CODE = {"version": "1.0.0", "commit": "98b734390565697271f7918bb63968d308563c07", "dirty": True}


def write_run(folder: Path, identity: str) -> Path:
    """A run directory as far as provenance reads it."""
    folder.mkdir(parents=True)
    write_text(folder / STEPS, "the steps")
    write_text(folder / CONFIG, "seed: 1\n")
    write_json(folder / MANIFEST, {"identity": identity, "code": CODE})
    write_json(folder / SUMMARY, {"identity": identity, "files": fingerprints(folder, [STEPS])})
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """results/smoke of one run with its base model and evaluation, and a table of it."""
    home = tmp_path / "results" / "smoke"
    model = home / "countdown" / "tiny"
    run = write_run(model / "grpo" / "seed1", "aaaa")
    write_run(model / "base", "bbbb")
    write_run(run / "eval", "eeee")
    start, benchmarks = {"task": "countdown", "model": "tiny"}, {"countdown": [["a", "A"]]}
    cell = {**start, "method": "grpo", "seed": 1, "run": str(run)}
    study = {"cells": [cell], "bases": [{**start, "run": str(model / "base")}], "benchmarks": benchmarks}
    write_json(home / "studies" / "table1.json", study)
    table = home / "tables" / "table1.md"
    write_text(table, "| a |\n")
    write_text(table.with_suffix(".csv"), "a\n")
    inputs = analysis.inputs([home / "studies" / "table1.json"])
    provenance.record([table, table.with_suffix(".csv")], ["analysis", "table1", "--out", "a b"], inputs)
    assert [p.name for p in (home / "tables" / ".provenance").iterdir()] == ["table1.json"]
    return home


def printed(capsys: pytest.CaptureFixture[str], file: Path) -> dict:
    assert __main__.main(["provenance", str(file)]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_record_of_a_table_by_hand(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, results / "tables" / "table1.md")
    # printf '| a |\n' | sha256sum
    assert found["files"]["table1.md"] == "fc81c4611c252054102fff533947442b2074784a88dcf9d4b7b8aeae31d0ceee"
    assert found["command"] == "python -m analysis table1 --out 'a b'"
    assert found["code"] == {"version": __version__, **provenance.git_state()}
    assert found["packages"] == provenance.package_versions() and found["hardware"]["cores"] >= 1
    assert {name: entry.get("identity") for name, entry in found["inputs"].items()} == {
        "../studies/table1.json": None,
        "../countdown/tiny/grpo/seed1/summary.json": "aaaa",
        "../countdown/tiny/grpo/seed1/eval/summary.json": "eeee",
        "../countdown/tiny/base/summary.json": "bbbb",
    }
    results.parent.rename(results.parents[1] / "elsewhere")  # paths are relative
    assert len(printed(capsys, results.parents[1] / "elsewhere" / "smoke" / "tables" / "table1.csv")["inputs"]) == 4


@pytest.mark.parametrize(("given", "commit"), [("18869cd", "18869cd"), ("", None)])
def test_a_copy_without_a_git_folder_has_the_commit_that_it_is_given(
    given: str, commit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("BAPO_COMMIT", given)
    assert provenance.git_state() == {"commit": commit, "dirty": None}


def test_a_package_in_the_checkout_of_another_project_has_none_of_its_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    package = tmp_path / ".venv" / "provenance.py"
    package.parent.mkdir()
    package.touch()
    monkeypatch.setattr(provenance, "__file__", str(package))
    monkeypatch.setenv("BAPO_COMMIT", "18869cd")
    assert provenance.git_state() == {"commit": "18869cd", "dirty": None}


def test_the_manifest_of_a_run_for_its_files(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = results / "countdown" / "tiny" / "grpo" / "seed1"
    assert printed(capsys, run / "eval" / STEPS)["identity"] == "eeee"
    (run / "checkpoints" / "step_000002").mkdir(parents=True)
    found = printed(capsys, run / "checkpoints" / "step_000002")
    assert found == {"record": str(run / MANIFEST), "identity": "aaaa", "code": CODE}


def test_a_damaged_run_does_not_keep_a_record_from_being_written(results: Path) -> None:
    run = results / "countdown" / "tiny" / "grpo" / "seed1"
    (run / SUMMARY).write_text("{")
    (results / "report.html").write_text("<p>")
    read = analysis.inputs([results / "studies" / "table1.json"])
    provenance.record([results / "report.html"], ["analysis", "report"], read)
    inputs = read_json(results / provenance.FOLDER / "report.json")["inputs"]
    assert set(inputs["countdown/tiny/grpo/seed1/summary.json"]) == {"sha256"}
    assert "studies/table1.json" in inputs


@pytest.mark.parametrize("name", ["notes.txt", "none.md"])
def test_files_without_a_record_and_missing_ones_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=name):
        provenance.main(str(tmp_path / name))
