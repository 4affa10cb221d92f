"""A crate holds what it says, every change to it is found, and it is compared like results."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.runs import write_results

from analysis.__main__ import main
from analysis.exchange.crate import SUMS, collect, problems, write
from bapo import project
from bapo.errors import UserError
from bapo.store import provenance

RUN = "results/laptop/countdown/tiny/bapo/seed1"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """results/laptop with a stray file."""
    home = write_results(tmp_path_factory.mktemp("world") / "results" / "laptop")
    (home / "countdown/tiny/bapo/seed1/notes.txt").write_text("private")
    return home


@pytest.fixture(scope="module")
def crate(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("crates") / "a" / "new folder" / "all"
    assert main(["export", str(home), "--out", str(out)]) == 0
    return out


@pytest.fixture
def copy(crate: Path, tmp_path: Path) -> Path:
    return shutil.copytree(crate, tmp_path / "crate")


def graph(crate: Path) -> dict[str, dict[str, Any]]:
    return {e["@id"]: e for e in json.loads((crate / "ro-crate-metadata.json").read_text(encoding="utf-8"))["@graph"]}


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
    sums = [write(collect(place), tmp_path / name) for place, name in ((home, "a"), (moved, "b"))]
    assert sums[0] == sums[1] and problems(tmp_path / "b") == []


def test_what_is_in_it(crate: Path) -> None:
    assert {f"{RUN}/{n}" for n in ("config.yaml", "manifest.json", "summary.json", "steps.parquet")} <= names(crate)
    assert {f"{RUN}/eval/cd.parquet", "results/laptop/countdown/tiny/base/eval/cd.parquet"} <= names(crate)
    assert {"results/laptop/tables/table1.csv", "results/laptop/tables/.provenance/table1.json"} <= names(crate)
    assert f"{RUN}/notes.txt" not in names(crate)  # only what a summary or a record seals
    about = graph(crate)["./"]
    assert about["license"].endswith("Apache-2.0") and about["datePublished"] == "2026-01-02T01:00:00Z"
    assert {"@id": f"{RUN}/steps.parquet"} in about["hasPart"]


def test_the_tables_can_be_made_again_in_the_crate(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Study files name results/laptop/..., which is where the runs are, seen from the crate."""
    monkeypatch.chdir(copy)
    study = "results/laptop/studies/table1.json"
    assert main(["table1", "--study", study, "--out", "again"]) == 0 and (copy / "again" / "table1.csv").exists()
    provenance.main("results/laptop/tables/table1.csv")


def test_unfinished_runs_are_left_out_and_named(tmp_path: Path) -> None:
    home = write_results(tmp_path / "results" / "laptop")
    (home / "countdown/tiny/bapo/seed2/summary.json").unlink()
    assert collect(home).left_out == [RUN.replace("seed1", "seed2")]
    for summary in home.rglob("summary.json"):
        summary.unlink()
    with pytest.raises(UserError, match="none of its"):
        collect(home)


def seal(crate: Path, files: object) -> None:
    (crate / RUN / "summary.json").write_text(json.dumps({"files": files}))


def linked(path: Path) -> None:
    """Put a link to an equal file or folder outside the crate in the place of ``path``."""
    outside = path.rename(path.parents[len(Path(RUN).parts)].with_name(f"outside-{path.name}"))
    path.symlink_to(outside)


def again(crate: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of the sums."""
    lines = (crate / SUMS).read_text().splitlines()
    (crate / SUMS).write_text("".join(f"{line}\n" for line in change(lines)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: (c / RUN / "config.yaml").write_text("seed: 9"), f"{RUN}/config.yaml was changed"),
        (lambda c: (c / RUN / "steps.parquet").unlink(), f"{RUN}/steps.parquet is missing"),
        (lambda c: (c / "extra.txt").write_text("x"), "extra.txt was added"),
        (lambda c: linked(c / RUN / "config.yaml"), f"{RUN}/config.yaml was added: it is no file"),
        (lambda c: linked(c / RUN / "config.yaml"), f"{RUN}/config.yaml is missing"),
        (lambda c: linked(c / RUN / "eval"), f"{RUN}/eval was added: it is no file"),
        (lambda c: (c / "elsewhere").symlink_to(c.parent), "elsewhere was added: it is no file"),
        (lambda c: (c / RUN / "empty").mkdir(), f"{RUN}/empty was added: it is no file"),
        (lambda c: os.mkfifo(c / RUN / "eval" / "curve"), f"{RUN}/eval/curve was added: it is no file"),
        (lambda c: os.mkfifo(c / "results" / "summary.json"), "results/summary.json was added: it is no file"),
        (lambda c: again(c, lambda lines: [*lines, lines[0]]), f"of {SUMS} names "),
        (lambda c: again(c, lambda lines: ["x", *lines]), f"line 1 of {SUMS} is no sum and name"),
        (lambda c: again(c, lambda lines: [*lines, ""]), f"of {SUMS} is no sum and name"),
        (lambda c: seal(c, 5), f"{RUN}/summary.json is no summary"),
        (lambda c: seal(c, {"steps.parquet": {"sha256": 5}}), f"{RUN}/steps.parquet is not what"),
    ],
)
def test_every_change_is_found(copy: Path, change: Callable[[Path], Any], named: str, capsys: Any) -> None:
    change(copy)
    assert main(["verify", str(copy)]) == 1
    assert named in capsys.readouterr().out


def test_a_forger_who_writes_the_sums_anew_is_found_by_the_seals(copy: Path) -> None:
    """Sums can be written anew with a changed table; a run's summary still seals its tables."""
    table = copy / RUN / "eval" / "cd.parquet"
    table.write_bytes((copy / RUN.replace("bapo", "grpo") / "eval" / "cd.parquet").read_bytes())
    listed = [line.split("  ")[1] for line in (copy / SUMS).read_text().splitlines()]
    (copy / SUMS).write_text("".join(f"{hashlib.sha256((copy / n).read_bytes()).hexdigest()}  {n}\n" for n in listed))
    assert problems(copy) == [f"{RUN}/eval/cd.parquet is not what {RUN}/eval/summary.json sealed"]


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"files": {"../../victim.txt": ""}}, "victim.txt"),
        ({"files": {"VICTIM": ""}}, "victim.txt"),
        ({"files": {"": ""}}, "x.json"),
        ({"files": {"link.csv": hashlib.sha256(b"secret").hexdigest()}}, "link.csv: is a link"),
        ({"files": {"table1.csv": "0" * 64}}, "table1.csv: is not what"),
        ({"files": ["table1.csv"]}, "x.json"),
        ([], "x.json"),
    ],
)
def test_a_strangers_record_packs_nothing_else(
    home: Path, tmp_path: Path, record: Any, named: str, capsys: Any
) -> None:
    """Neither does a link in the place of a configuration, which nothing seals."""
    results = shutil.copytree(home, tmp_path / "laptop")
    victim = tmp_path / "victim.txt"
    victim.write_text("secret")
    (results / "tables" / "link.csv").symlink_to(victim)
    written = json.dumps(record).replace("VICTIM", str(victim))
    (results / "tables" / provenance.FOLDER / "x.json").write_text(written)
    assert main(["export", str(results), "--out", str(tmp_path / "c")]) == 2
    assert named in capsys.readouterr().err and not (tmp_path / "c").exists()


@pytest.mark.parametrize("place", [f"countdown/tiny/bapo/seed1/{n}" for n in ("config.yaml", "eval")])
def test_a_link_is_not_packed(home: Path, tmp_path: Path, place: str, capsys: Any) -> None:
    results = shutil.copytree(home, tmp_path / "laptop")
    (results / place).rename(tmp_path / "elsewhere")
    (results / place).symlink_to(tmp_path / "elsewhere")
    assert main(["export", str(results), "--out", str(tmp_path / "c")]) == 2
    assert f"{place}" in capsys.readouterr().err and not (tmp_path / "c").exists()


def test_a_projects_secrets_stay_at_home(tmp_path: Path) -> None:
    for name in ("bapo.yaml", "Snakefile", "secrets.yaml", "experiments/study/mine.yaml", "tasks/words.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    packed = {path.relative_to(tmp_path).as_posix() for path in project.sources(tmp_path)}
    assert packed == {"bapo.yaml", "Snakefile", "experiments/study/mine.yaml", "tasks/words.py"}


def test_errors_name_the_file(home: Path, crate: Path, tmp_path: Path, capsys: Any) -> None:
    damaged = shutil.copytree(home, tmp_path / "laptop")
    (damaged / "countdown/tiny/bapo/seed1/steps.parquet").write_bytes(b"x")
    for scale in ("laptop", "smoke"):
        shutil.copytree(home, tmp_path / "scales" / scale)
    for words, named in (
        (["export", str(home), "--out", str(crate)], str(crate)),
        (["export", str(tmp_path / "scales"), "--out", str(tmp_path / "c")], "scales/laptop"),
        (["export", str(damaged), "--out", str(tmp_path / "c")], "steps.parquet"),
        (["export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "c")], "nowhere"),
        (["verify", str(home)], SUMS),
    ):
        assert main(words) == 2
        assert named in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
