"""Where a result comes from: records of tables and figures, manifests of runs, and what has changed since."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bapo import __main__
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import data_identity
from bapo.store import manifest, provenance
from bapo.store.files import CONFIG, MANIFEST, STEPS, SUMMARY, fingerprints, write_json, write_text
from bapo.tasks import job as data

CODE = {"version": "0.1.0", "commit": "98b734390565697271f7918bb63968d308563c07", "dirty": True}


def write_run(folder: Path, identity: str, **manifest: object) -> Path:
    """A run directory as far as provenance reads it."""
    folder.mkdir(parents=True)
    write_text(folder / STEPS, "the steps")
    write_text(folder / CONFIG, "seed: 1\n")
    content = {"identity": identity, "code": CODE, "packages": {"torch": "2.13.0"}, "seed": 1, **manifest}
    write_json(folder / MANIFEST, content)
    write_json(folder / SUMMARY, {"identity": identity, "files": fingerprints(folder, [STEPS])})
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """results/smoke of one run with its problems, base model and evaluation, and a table of it."""
    home = tmp_path / "results" / "smoke"
    model = home / "countdown" / "tiny"
    run = write_run(model / "grpo" / "seed1", "aaaa", data_identity="dddd", base_identity="bbbb")
    write_run(model / "base", "bbbb", data_identity="dddd")
    (home / "countdown" / "data").mkdir()
    write_json(home / "countdown" / "data" / SUMMARY, {"identity": "dddd", "files": {}})
    write_run(run / "eval", "eeee")
    study = {"cells": [{"run": str(run)}], "bases": [{"run": str(model / "base")}]}
    write_json(home / "studies" / "table1.json", study)
    table = home / "tables" / "table1.md"
    write_text(table, "| a |\n")
    write_text(table.with_suffix(".csv"), "a\n")
    inputs = provenance.inputs_of_studies([home / "studies" / "table1.json"])
    written = provenance.record([table, table.with_suffix(".csv")], ["analysis", "table1", "--out", "a b"], inputs)
    assert written == [home / "tables" / ".provenance" / "table1.json"]
    return home


def test_the_record_of_a_table_by_hand(results: Path) -> None:
    found = provenance.of(results / "tables" / "table1.md")
    assert found["state"] == "as it was written" and found["changed"] == []
    # printf '| a |\n' | sha256sum
    assert found["sha256"] == "fc81c4611c252054102fff533947442b2074784a88dcf9d4b7b8aeae31d0ceee"
    assert found["made"]["command"] == "python -m analysis table1 --out 'a b'"
    assert found["made"]["code"] == {"version": "0.1.0", **manifest.git_state()}
    assert found["made"]["packages"] == manifest.package_versions() and found["made"]["hardware"]["cores"] >= 1
    run = results / "countdown" / "tiny"
    lines = {line["path"]: (line["state"], line["identity"]) for line in found["inputs"]}
    assert lines == {
        str(results / "studies" / "table1.json"): ("unchanged", None),
        str(run / "grpo" / "seed1" / "summary.json"): ("unchanged", "aaaa"),
        str(run / "grpo" / "seed1" / "eval" / "summary.json"): ("unchanged", "eeee"),
        str(run / "base" / "summary.json"): ("unchanged", "bbbb"),
    }


def test_a_results_folder_may_be_moved(results: Path, tmp_path: Path) -> None:
    (tmp_path / "results").rename(tmp_path / "elsewhere")
    found = provenance.of(tmp_path / "elsewhere" / "smoke" / "tables" / "table1.csv")
    assert found["changed"] == [] and len(found["inputs"]) == 4


def test_a_damaged_run_does_not_keep_a_record_from_being_written(results: Path) -> None:
    run = results / "countdown" / "tiny" / "grpo" / "seed1"
    (run / SUMMARY).write_text("{")
    (run / MANIFEST).write_text("{")
    page = results / "report.html"
    page.write_text("<p>")
    (record,) = provenance.record([page], ["analysis", "report"], provenance.inputs_of_report(results))
    assert record == results / ".provenance" / "report.json"
    lines = {line["path"]: line for line in provenance.of(page)["inputs"]}
    assert lines[str(run / SUMMARY)] == {
        "path": str(run / SUMMARY),
        "state": "unchanged",
        "identity": None,
        "code": None,
    }
    assert {str(results / "tables" / "table1.md"), str(results / "studies" / "table1.json")} <= set(lines)


def test_what_was_changed_since_is_said(results: Path) -> None:
    table = results / "tables" / "table1.md"
    run = results / "countdown" / "tiny" / "grpo" / "seed1"
    table.write_text("| b |\n")
    write_json(run / SUMMARY, {"identity": "ffff", "files": {}})
    (run / "eval" / SUMMARY).unlink()
    assert provenance.of(table)["changed"] == [
        f"{table} was changed since it was written",
        f"{run / 'summary.json'} is changed since",
        f"{run / 'eval' / 'summary.json'} is missing since",
    ]
    assert provenance.of(table.with_suffix(".csv"))["state"] == "as it was written"


def test_uncommitted_code_is_named(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["provenance", str(results / "countdown/tiny/grpo/seed1/steps.parquet")]) == 0
    text = capsys.readouterr().out
    assert "code: commit 98b734390565 + uncommitted changes" in text
    assert "configuration hash: aaaa" in text and "state: as it was written" in text
    assert f"{results / 'countdown/data/summary.json'}: unchanged; configuration dddd; code: not recorded" in text
    assert f"{results / 'countdown/tiny/base/summary.json'}: unchanged; configuration bbbb" in text
    assert __main__.main(["provenance", str(results / "tables" / "table1.md")]) == 0
    assert "3 of the inputs were made by uncommitted code" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "not recorded"),
        (
            {"version": "0.1.0", "commit": None, "dirty": None},
            "version 0.1.0, not from a git checkout: the commit is not known",
        ),
        ({"version": "0.1.0", "commit": "a" * 40, "dirty": False}, "commit aaaaaaaaaaaa"),
        ({"version": "0.1.0", "commit": "a" * 40, "dirty": True}, "commit aaaaaaaaaaaa + uncommitted changes"),
    ],
)
def test_code_in_words(code: dict | None, words: str) -> None:
    assert provenance.code_in_words(code) == words


def test_a_dirty_checkout_is_told_from_a_clean_one(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "a.py").write_text("1\n")
    subprocess.run([*git, "add", "a.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "a"], check=True)
    assert manifest.git_state(tmp_path)["dirty"] is False
    (tmp_path / "a.py").write_text("2\n")
    state = manifest.git_state(tmp_path)
    assert state["dirty"] is True and provenance.code_in_words(state).endswith("+ uncommitted changes")


def test_files_of_a_run(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = results / "countdown" / "tiny" / "grpo" / "seed1"
    evaluation = provenance.of(run / "eval" / STEPS)
    assert evaluation["made"]["identity"] == "eeee"
    assert [(line["path"], line["state"]) for line in evaluation["inputs"]] == [(str(run / SUMMARY), "unchanged")]
    checkpoint = run / "checkpoints" / "step_000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    write_json(checkpoint / "checksums.json", fingerprints(checkpoint, ["model.safetensors"]))
    assert provenance.of(checkpoint / "model.safetensors")["state"] == "as it was written"
    (checkpoint / "model.safetensors").write_bytes(b"weight")
    assert provenance.of(checkpoint / "model.safetensors")["state"] == "changed since it was written"
    assert provenance.of(run / CONFIG)["state"] == "not fingerprinted: whether it was changed cannot be told"
    assert provenance.of(run)["state"] == "all files as they were written"
    (run / STEPS).write_text("other steps")
    assert provenance.of(run)["state"].startswith("changed since it was written: ")
    assert __main__.main(["provenance", str(run / STEPS), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["changed"] == [f"{run / STEPS} was changed since it was written"]
    # a base model that was trained again under another configuration
    write_json(run.parents[1] / "base" / SUMMARY, {"identity": "cccc", "files": {}})
    assert f"{run.parents[1] / 'base' / 'summary.json'} is changed since" in provenance.of(run / CONFIG)["changed"]


def test_unknown_and_missing_files_take_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert __main__.main(["provenance", str(tmp_path / "notes.txt")]) == 2
    assert "no record of it in" in capsys.readouterr().err
    assert __main__.main(["provenance", str(tmp_path / "none.md")]) == 2
    error = capsys.readouterr().err
    assert "none.md does not exist; name a file of a results folder" in error and error.count("\n") == 1
    write_text(tmp_path / ".provenance" / "notes.json", "{")
    with pytest.raises(UserError, match=r"notes\.json is damaged"):
        provenance.of(tmp_path / "notes.txt")


def test_problems_say_what_made_them_and_keep_their_identity(tmp_path: Path) -> None:
    sizes = "data.split_sizes={base: 200, train: 20, probe: 5, cd34: 5, cd4: 5}"
    config = compose_config(["scale=smoke", "tracking=none", sizes, f"paths.results={tmp_path}"])
    summary = data.make_data(config)
    assert set(summary) == {"identity", "problems", "golds", "files"}  # what later jobs compare is what it was
    found = provenance.of(tmp_path / "smoke" / "countdown" / "data" / "train.parquet")
    assert found["made"]["identity"] == summary["identity"] == data_identity(config)
    assert found["made"]["code"]["commit"] == manifest.git_state()["commit"] and found["made"]["ended"]
    assert found["state"] == "as it was written"
    before = (tmp_path / "smoke/countdown/data/train.parquet").read_bytes()
    data.make_data(config)
    assert (tmp_path / "smoke/countdown/data/train.parquet").read_bytes() == before


def test_the_commands_of_the_analysis_leave_records(tmp_path: Path) -> None:
    """A figure through the real command; the record names the study and every summary that it read."""
    from support.run_directories import write_study

    from analysis.__main__ import main

    study = write_study(tmp_path / "runs")
    assert main(["figure", "figure7_tracking", "--study", str(study), "--out", str(tmp_path / "figures")]) == 0
    found = provenance.of(tmp_path / "figures" / "figure7_tracking.svg")
    read = {Path(line["path"]) for line in found["inputs"]}
    named = json.loads(study.read_text())
    expected = {Path(entry["run"], name) for entry in named["cells"] for name in provenance.SUMMARIES}
    assert {p for p in expected if p.is_file()} <= read and study in read and len(read) > len(named["cells"])
    assert found["changed"] == []
    content = json.loads((tmp_path / "figures" / ".provenance" / "figure7_tracking.json").read_text())
    assert set(content["files"]) == {f"figure7_tracking.{kind}" for kind in ("pdf", "png", "svg", "csv")}
