"""A crate holds what it says, has the same bytes every time, and every change to it is found."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from support.pages import example
from support.shared_results import CODE, USUAL, write_results

from analysis.__main__ import main
from analysis.sharing import checking, comparing, packing, places
from analysis.sharing.crate import PREVIEW, PROFILE, SPECIFICATION, SUMS
from analysis.sharing.places import METADATA
from bapo.store import provenance
from bapo.store.files import write_text

RUN = "results/laptop/countdown/tiny/bapo/seed1"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """results/laptop with two studies; a checkpoint that no summary lists, a stray file and a figure of the other."""
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


def graph(crate: Path) -> dict[str, dict]:
    return {e["@id"]: e for e in json.loads((crate / METADATA).read_text(encoding="utf-8"))["@graph"]}


def listed(value: object) -> list:
    """JSON-LD writes a list of one as its value."""
    return value if isinstance(value, list) else [value]


def test_a_crate_is_as_it_was_packed(crate: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checking.problems(crate) == []
    assert main(["verify", str(crate)]) == 0
    digest = hashlib.sha256((crate / SUMS).read_bytes()).hexdigest()
    assert digest in capsys.readouterr().out


def test_a_reviewer_without_this_suite_can_check_it(crate: Path) -> None:
    done = subprocess.run(["sha256sum", "--quiet", "-c", SUMS], cwd=crate, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_in_it(crate: Path) -> None:
    names = {p.relative_to(crate).as_posix() for p in crate.rglob("*") if p.is_file()}
    assert {f"{RUN}/{n}" for n in ("config.yaml", "manifest.json", "summary.json", "steps.parquet")} <= names
    assert {f"{RUN}/eval/cd.parquet", "results/laptop/countdown/tiny/base/eval/cd.parquet"} <= names
    assert {"results/laptop/tables/table1.csv", "results/laptop/tables/.provenance/table1.json"} <= names
    assert f"{RUN}/notes.txt" not in names  # only what a summary or a record seals


def test_the_metadata_are_an_ro_crates(crate: Path) -> None:
    found = graph(crate)
    assert found[METADATA]["conformsTo"] == {"@id": SPECIFICATION} and found["./"]["conformsTo"] == {"@id": PROFILE}
    assert found["#author"]["name"] == "A. Person" and found["./"]["datePublished"]
    table = found["results/laptop/tables/table1.csv"]
    assert table["encodingFormat"] == "text/csv" and table["contentSize"] == str((crate / table["@id"]).stat().st_size)
    (made,) = (e for e in found.values() if {"@id": table["@id"]} in listed(e.get("result")))
    assert made["@type"] == "CreateAction" and {"@id": "results/laptop/studies/table1.json"} in made["object"]
    assert found[made["instrument"]["@id"]]["@type"] == "SoftwareApplication"
    trained = found["#train-countdown-tiny-bapo-seed1"]
    assert trained["startTime"] == "2026-01-01T00:00:00Z" and {"@id": f"{RUN}/steps.parquet"} in trained["result"]
    assert found[trained["instrument"]["@id"]]["description"] == f"commit {CODE['commit'][:12]}"
    assert f'href="{RUN}/config.yaml"' in (crate / PREVIEW).read_text(encoding="utf-8")


def test_the_same_results_give_the_same_bytes(home: Path, tmp_path: Path) -> None:
    """Also where the results folder lies elsewhere, and whenever they are packed."""
    moved = shutil.copytree(home, tmp_path / "elsewhere" / "laptop")
    for place, name in ((home, "one.zip"), (moved, "two.zip")):
        assert main(["export", str(place), "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_a_zip_file_holds_what_the_folder_holds(home: Path, tmp_path: Path) -> None:
    for name in ("crate", "crate.zip"):
        assert main(["export", str(home), "--out", str(tmp_path / name)]) == 0
    with zipfile.ZipFile(tmp_path / "crate.zip") as packed:
        assert packed.namelist()[0] == METADATA
        for name in packed.namelist():
            assert packed.read(name) == (tmp_path / "crate" / name).read_bytes()
    assert main(["verify", str(tmp_path / "crate.zip")]) == 0


def test_one_study_has_its_own_products_alone(home: Path, tmp_path: Path) -> None:
    assert main(["export", str(home / "studies" / "other.json"), "--out", str(tmp_path / "c")]) == 0
    names = {p.relative_to(tmp_path / "c").as_posix() for p in (tmp_path / "c").rglob("*") if p.is_file()}
    assert "results/laptop/figures/curves.svg" in names and "results/laptop/tables/table1.csv" not in names
    assert not any("/bapo/" in n for n in names) and any("/grpo/seed1/" in n for n in names)
    assert checking.problems(tmp_path / "c") == []


def test_a_project_packs_its_own_code_and_its_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bapo import init

    folder = tmp_path / "mine"
    init.write(folder)
    home = write_results(folder / "results" / "laptop")
    (folder / "bapo.yaml").write_text("title: My study\npaper: paper.yaml\n")
    for page in ("table", "paper", "my_claims"):
        (folder / f"{page}.yaml").write_text(example("yaml", f"{page}.yaml"))
    monkeypatch.chdir(folder)
    study = ["--study", "results/laptop/studies/table1.json", "--out", "results/laptop/my_paper"]
    assert main(["audit", "paper.yaml", *study]) == main(["claims", "paper.yaml", *study]) == 0
    out = tmp_path / "crate"
    assert main(["export", str(home), "--out", str(out)]) == 0
    assert checking.problems(out) == []
    found = graph(out)
    assert found["./"]["name"] == "My study"
    own = {"project/bapo.yaml", "project/tasks/ordering.py", "project/methods/positive_only.py", "project/Snakefile"}
    own |= {"project/experiments/task/ordering.yaml", "project/experiments/study/ordering.yaml", "project/table.yaml"}
    assert own <= {e["@id"] for e in listed(found["#train-countdown-tiny-bapo-seed1"]["object"])}
    assert all(found[name]["sha256"] for name in own)
    audited = found["results/laptop/my_paper/audit.json"]
    (made,) = (e for e in found.values() if {"@id": audited["@id"]} in listed(e.get("result")))
    assert {"@id": "project/paper.yaml"} in made["object"]
    assert "results/laptop/my_paper/claims_paper.json" in found
    monkeypatch.chdir(tmp_path)  # elsewhere the results alone
    assert main(["export", str(home), "--out", str(tmp_path / "bare")]) == 0
    assert not (tmp_path / "bare" / "project").exists()


def test_a_crate_is_compared_like_results(home: Path, crate: Path, tmp_path: Path) -> None:
    other = write_results(tmp_path / "laptop", {**USUAL, "bapo": 7}, seeds=(3, 4))
    assert main(["export", str(home), "--out", str(tmp_path / "c.zip")]) == 0
    assert main(["compare", str(tmp_path / "c.zip"), str(home)]) == 0
    assert main(["compare", str(crate), str(other)]) == 1
    with places.opened(tmp_path / "c.zip") as folder:
        assert {line.state for line in comparing.compare(folder, crate).lines} == {comparing.IDENTICAL}


def test_the_tables_can_be_made_again_in_the_crate(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Study files name results/laptop/..., which is where the runs are, seen from the crate."""
    monkeypatch.chdir(copy)
    study = "results/laptop/studies/table1.json"
    assert main(["table1", "--study", study, "--out", "again"]) == 0 and (copy / "again" / "table1.csv").exists()
    assert provenance.main("results/laptop/tables/table1.csv") == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: (c / RUN / "config.yaml").write_text("seed: 9"), f"{RUN}/config.yaml was changed"),
        (lambda c: (c / RUN / "steps.parquet").unlink(), f"{RUN}/steps.parquet is missing"),
        (lambda c: (c / "extra.txt").write_text("x"), "extra.txt is not in manifest-sha256.txt: it was added"),
        (lambda c: edit(c, lambda g: g.pop("#author")), "./ refers to #author, which is not described"),
        (lambda c: edit(c, lambda g: g["./"].pop("license")), "the root has no license"),
        (lambda c: edit(c, lambda g: g.pop(f"{RUN}/steps.parquet")), f"{RUN}/steps.parquet is not described"),
        (lambda c: edit(c, lambda g: g["./"].update(hasPart=[])), "no hasPart leads from the root to"),
        (lambda c: (c / METADATA).write_text("{"), "is no JSON-LD with a @graph"),
        (lambda c: (c / METADATA).write_text('{"@graph": [5]}'), "is no JSON-LD with a @graph"),
        (lambda c: edit(c, lambda g: g.update(new={"@id": 5, "@type": "File"})), "the @id 5 is no text"),
        (lambda c: edit(c, lambda g: g["./"].update(author={"@id": 5})), "the @id 5 is no text"),
        (lambda c: edit(c, lambda g: g["./"].update(author={"@id": "\ud800"})), "./ refers to \\ud800, which"),
        (lambda c: seal(c, 5), f"{RUN}/summary.json is no summary with the files"),
        (lambda c: seal(c, {"steps.parquet": "0"}), f"{RUN}/summary.json is no summary with the files"),
        (lambda c: seal(c, {"steps.parquet": {}}), f"{RUN}/summary.json is no summary with the files"),
        (lambda c: seal(c, {"steps.parquet": {"sha256": 5}}), f"{RUN}/steps.parquet is not what"),
        (lambda c: (c / RUN / "summary.json").write_bytes(b"\xff"), f"{RUN}/summary.json is no summary"),
    ],
)
def test_every_change_is_found(copy: Path, change, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    change(copy)
    assert main(["verify", str(copy)]) == 1
    assert said in capsys.readouterr().out


def edit(crate: Path, change) -> None:
    found = graph(crate)
    change(found)
    text = json.dumps({"@context": [], "@graph": list(found.values())})
    (crate / METADATA).write_text(text, encoding="utf-8")


def seal(crate: Path, files: object) -> None:
    (crate / RUN / "summary.json").write_text(json.dumps({"files": files}))


def test_sums_that_are_no_text_are_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / SUMS).write_bytes(b"\xff")
    assert main(["verify", str(copy)]) == 2 and f"{SUMS}: is no text" in capsys.readouterr().err


def archive(path: Path, method: int = zipfile.ZIP_DEFLATED, size: int = 1000) -> bytes:
    with zipfile.ZipFile(path, "w", method) as packed:
        packed.writestr("a.txt", bytes(i * i % 251 for i in range(size)) if size < 10_000 else bytes(size))
    return path.read_bytes()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda b: b[b.index(b"PK\x05\x06") :], "cannot be unpacked"),  # nothing but the end
        (lambda b: b[:40] + bytes(20) + b[60:], "cannot be unpacked"),
        (lambda b: flagged(b, 6, 8, 1), "password"),
        (lambda b: flagged(b, 8, 10, 97), "cannot be unpacked"),  # a method of compression that does not exist
    ],
)
def test_damaged_archives_are_named(tmp_path: Path, damage, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.zip"
    path.write_bytes(damage(archive(path)))
    assert main(["verify", str(path)]) == 2
    message = capsys.readouterr().err
    assert said in message and "c.zip: cannot be unpacked" in message


def flagged(archive: bytes, local: int, central: int, value: int) -> bytes:
    """Return an archive of one entry with another number in a field of both of its headers."""
    changed = bytearray(archive)
    for start in (local, archive.index(b"PK\x01\x02") + central):
        changed[start : start + 2] = value.to_bytes(2, "little")
    return bytes(changed)


def test_an_archive_far_smaller_than_its_files_is_not_unpacked(tmp_path: Path, capsys) -> None:
    archive(tmp_path / "c.zip", size=10_000_000)
    assert main(["verify", str(tmp_path / "c.zip")]) == 2
    assert "0.0 MB would unpack to 10.0 MB; if you trust it, unpack it" in capsys.readouterr().err


def test_a_forger_who_writes_the_sums_anew_is_found_by_the_seals(copy: Path) -> None:
    """Sums and metadata can be written anew with a changed table; a run's summary still seals its tables."""
    table = copy / RUN / "eval" / "cd.parquet"
    table.write_bytes((copy / RUN.replace("bapo", "grpo") / "eval" / "cd.parquet").read_bytes())
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    edit(copy, lambda g: g[f"{RUN}/eval/cd.parquet"].update(sha256=digest))
    names = [line.split("  ")[1] for line in (copy / SUMS).read_text().splitlines()]
    (copy / SUMS).write_text("".join(f"{hashlib.sha256((copy / n).read_bytes()).hexdigest()}  {n}\n" for n in names))
    assert checking.problems(copy) == [f"{RUN}/eval/cd.parquet is not what {RUN}/eval/summary.json sealed"]


def test_checkpoints_are_packed_where_asked(tmp_path: Path) -> None:
    home = write_results(tmp_path / "results" / "laptop")
    run = home / "countdown/tiny/bapo/seed1"
    (run / "checkpoints" / "step_3").mkdir(parents=True)
    (run / "checkpoints" / "step_3" / "model.safetensors").write_bytes(b"weights")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "checkpoint": "checkpoints/step_3"}))
    name = f"{RUN}/checkpoints/step_3/model.safetensors"
    assert name not in packing.collect(home).files and name in packing.collect(home, checkpoints=True).files


def test_unfinished_runs_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = write_results(tmp_path / "results" / "laptop")
    (home / "countdown/tiny/bapo/seed2/summary.json").unlink()
    content = json.loads((home / "studies" / "table1.json").read_text())
    (home / "studies" / "again.json").write_text(json.dumps({**content, "name": "again"}))  # shares the run
    assert main(["export", str(home), "--out", str(tmp_path / "c")]) == 0
    assert "1 unfinished run left out" in capsys.readouterr().out
    assert "bapo/seed2" in graph(tmp_path / "c")["./"]["description"] and checking.problems(tmp_path / "c") == []


def test_errors_name_the_file_and_the_cure(home: Path, crate: Path, tmp_path: Path, capsys) -> None:
    damaged = shutil.copytree(home, tmp_path / "laptop")
    (damaged / "countdown/tiny/bapo/seed1/steps.parquet").write_bytes(b"x")
    for words, said in (
        (["export", str(home), "--out", str(crate)], "exists; choose another name"),
        (["export", str(damaged), "--out", str(tmp_path / "c")], "steps.parquet has 1 bytes instead"),
        (["export", str(tmp_path / "x.json"), "--out", str(tmp_path / "c")], "must lie in the studies/"),
        (["verify", str(home)], f"{SUMS} is missing"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
