"""A crate holds what it says, every change to it is found, and it is compared like results."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.pages import example
from support.shared_results import CODE, USUAL, write_results

from analysis import sharing
from analysis.__main__ import main
from analysis.sharing import METADATA, PROFILE, SUMS
from bapo.errors import UserError
from bapo.store import provenance
from bapo.store.files import write_text

RUN = "results/laptop/countdown/tiny/bapo/seed1"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """results/laptop with two studies; a stray file, and a figure of the second study."""
    home = write_results(tmp_path_factory.mktemp("world") / "results" / "laptop")
    content = json.loads((home / "studies" / "table1.json").read_text())
    other = home / "studies" / "other.json"
    other.write_text(json.dumps({**content, "name": "other", "cells": content["cells"][:1], "bases": []}))
    write_text(home / "figures" / "curves.svg", "<svg/>")
    provenance.record([home / "figures" / "curves.svg"], ["analysis", "figures"], [other])
    (home / "countdown/tiny/bapo/seed1/notes.txt").write_text("private")
    return home


@pytest.fixture(scope="module")
def crate(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("crates") / "all"
    assert main(["export", str(home), "--out", str(out), "--author", "A. Person"]) == 0
    return out


@pytest.fixture
def copy(crate: Path, tmp_path: Path) -> Path:
    return shutil.copytree(crate, tmp_path / "crate")


def graph(crate: Path) -> dict[str, dict[str, Any]]:
    return {e["@id"]: e for e in json.loads((crate / METADATA).read_text(encoding="utf-8"))["@graph"]}


def names(crate: Path) -> set[str]:
    return {p.relative_to(crate).as_posix() for p in crate.rglob("*") if p.is_file()}


def test_a_crate_is_as_it_was_packed(
    home: Path, crate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(crate)]) == 0
    assert hashlib.sha256((crate / SUMS).read_bytes()).hexdigest() in capsys.readouterr().out
    done = subprocess.run(["sha256sum", "--quiet", "-c", SUMS], cwd=crate, capture_output=True, check=False)
    assert done.returncode == 0  # without this suite
    moved = shutil.copytree(home, tmp_path / "elsewhere" / "laptop")
    sums = [sharing.write(sharing.collect(place), tmp_path / name) for place, name in ((home, "a"), (moved, "b.zip"))]
    assert sums[0] == sums[1]
    with sharing.opened(tmp_path / "b.zip") as folder:
        assert names(folder) == names(tmp_path / "a") and sharing.problems(folder) == []


def test_what_is_in_it_and_who_made_what(crate: Path) -> None:
    assert {f"{RUN}/{n}" for n in ("config.yaml", "manifest.json", "summary.json", "steps.parquet")} <= names(crate)
    assert {f"{RUN}/eval/cd.parquet", "results/laptop/countdown/tiny/base/eval/cd.parquet"} <= names(crate)
    assert {"results/laptop/tables/table1.csv", "results/laptop/tables/.provenance/table1.json"} <= names(crate)
    assert f"{RUN}/notes.txt" not in names(crate)  # only what a summary or a record seals
    found = graph(crate)
    assert found["./"]["conformsTo"] == {"@id": PROFILE} and found["./"]["author"] == {"@id": "#author"}
    assert found["#author"]["name"] == "A. Person" and found["./"]["license"].endswith("Apache-2.0")
    actions = [e for e in found.values() if e["@type"] == "CreateAction"]
    (trained,) = (a for a in actions if a["name"] == f"Training: {RUN}")
    assert trained["startTime"] == "2026-01-01T00:00:00Z" and {"@id": f"{RUN}/steps.parquet"} in trained["result"]
    assert found[trained["instrument"]["@id"]]["version"] == CODE["commit"]
    (made,) = (a for a in actions if {"@id": "results/laptop/tables/table1.csv"} in a["result"])
    assert {"@id": "results/laptop/studies/table1.json"} in made["object"]


def test_one_study_has_its_own_products_alone(home: Path, tmp_path: Path) -> None:
    assert main(["export", str(home / "studies" / "other.json"), "--out", str(tmp_path / "c")]) == 0
    found = names(tmp_path / "c")
    assert "results/laptop/figures/curves.svg" in found and "results/laptop/tables/table1.csv" not in found
    assert not any("/bapo/" in n for n in found) and any("/grpo/seed1/" in n for n in found)


def test_a_project_packs_its_own_code_and_its_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bapo import init

    folder = tmp_path / "mine"
    init.write(folder)
    home = write_results(folder / "results" / "laptop")
    (folder / "bapo.yaml").write_text("title: My study\npaper: paper.yaml\n")
    for page in ("table", "paper", "my_claims"):
        (folder / f"{page}.yaml").write_text(example("yaml", f"{page}.yaml"))
    monkeypatch.chdir(folder)
    packed = sharing.collect(home)
    assert {"project/bapo.yaml", "project/tasks/ordering.py", "project/Snakefile", "project/table.yaml"} <= {
        *packed.files
    }
    monkeypatch.chdir(tmp_path)  # elsewhere the results alone
    assert not any(name.startswith("project/") for name in sharing.collect(home).files)


def test_the_tables_can_be_made_again_in_the_crate(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Study files name results/laptop/..., which is where the runs are, seen from the crate."""
    monkeypatch.chdir(copy)
    study = "results/laptop/studies/table1.json"
    assert main(["table1", "--study", study, "--out", "again"]) == 0 and (copy / "again" / "table1.csv").exists()
    provenance.main("results/laptop/tables/table1.csv")


def test_unfinished_runs_are_left_out_and_named(tmp_path: Path) -> None:
    home = write_results(tmp_path / "results" / "laptop")
    (home / "countdown/tiny/bapo/seed2/summary.json").unlink()
    assert sharing.collect(home).left_out == [RUN.replace("seed1", "seed2")]
    for summary in home.rglob("summary.json"):
        summary.unlink()
    with pytest.raises(UserError, match="none of its"):
        sharing.collect(home)


# ------------------------------------------------------------------------------------------------ changes


def edit(crate: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    found = graph(crate)
    change(found)
    text = json.dumps({"@context": [], "@graph": list(found.values())})
    (crate / METADATA).write_text(text, encoding="utf-8")


def seal(crate: Path, files: object) -> None:
    (crate / RUN / "summary.json").write_text(json.dumps({"files": files}))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: (c / RUN / "config.yaml").write_text("seed: 9"), f"{RUN}/config.yaml was changed"),
        (lambda c: (c / RUN / "steps.parquet").unlink(), f"{RUN}/steps.parquet is missing"),
        (lambda c: (c / "extra.txt").write_text("x"), "extra.txt was added"),
        (lambda c: edit(c, lambda g: g["./"].pop("license")), "license"),
        (lambda c: edit(c, lambda g: g.pop(f"{RUN}/steps.parquet")), f"{METADATA}: {RUN}/steps.parquet"),
        (lambda c: (c / METADATA).write_text("{"), f"{METADATA}: cannot be read"),
        (lambda c: (c / METADATA).unlink(), f"{METADATA} is missing"),
        (lambda c: seal(c, 5), f"{RUN}/summary.json is no summary"),
        (lambda c: seal(c, {"steps.parquet": {"sha256": 5}}), f"{RUN}/steps.parquet is not what"),
    ],
)
def test_every_change_is_found(copy: Path, change: Callable[[Path], Any], named: str, capsys: Any) -> None:
    change(copy)
    assert main(["verify", str(copy)]) == 1
    assert named in capsys.readouterr().out


def test_a_forger_who_writes_the_sums_anew_is_found_by_the_seals(copy: Path) -> None:
    """Sums and metadata can be written anew with a changed table; a run's summary still seals its tables."""
    table = copy / RUN / "eval" / "cd.parquet"
    table.write_bytes((copy / RUN.replace("bapo", "grpo") / "eval" / "cd.parquet").read_bytes())
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    edit(copy, lambda g: g[f"{RUN}/eval/cd.parquet"].update(sha256=digest))
    listed = [line.split("  ")[1] for line in (copy / SUMS).read_text().splitlines()]
    (copy / SUMS).write_text("".join(f"{hashlib.sha256((copy / n).read_bytes()).hexdigest()}  {n}\n" for n in listed))
    assert sharing.problems(copy) == [f"{RUN}/eval/cd.parquet is not what {RUN}/eval/summary.json sealed"]


def test_what_is_damaged_far_larger_inside_or_leads_out_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "c.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.txt", bytes(10_000_000))
    with pytest.raises(UserError, match="10 MB"), sharing.opened(path):
        pass
    for content in (b"", path.read_bytes()[:40], path.read_bytes()[-22:][::-1]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"c\.zip"), sharing.opened(path):
            pass
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
        packed.writestr("../../evil", "x")
    with sharing.opened(tmp_path / "bad.zip") as folder:
        assert names(folder) == {"evil"}


def test_errors_name_the_file(home: Path, crate: Path, tmp_path: Path, capsys: Any) -> None:
    damaged = shutil.copytree(home, tmp_path / "laptop")
    (damaged / "countdown/tiny/bapo/seed1/steps.parquet").write_bytes(b"x")
    for words, named in (
        (["export", str(home), "--out", str(crate)], str(crate)),
        (["export", str(damaged), "--out", str(tmp_path / "c")], "steps.parquet"),
        (["export", str(tmp_path / "x.json"), "--out", str(tmp_path / "c")], "studies/"),
        (["verify", str(home)], SUMS),
    ):
        assert main(words) == 2
        assert named in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_a_crate_is_compared_like_results(home: Path, crate: Path, tmp_path: Path) -> None:
    other = write_results(tmp_path / "laptop", {**USUAL, "bapo": 7}, seeds=(3, 4))
    assert main(["compare", str(crate), str(home)]) == 0 and main(["compare", str(crate), str(other)]) == 1
