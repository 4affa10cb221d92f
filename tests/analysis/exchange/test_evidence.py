"""What is made of evidence has the digits of what is made of the runs."""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.runs import bits, place, write_claims, write_evaluation, write_results, write_run, write_study

from analysis import claims, closing
from analysis.__main__ import main
from analysis.claims import ledger
from analysis.exchange import evidence
from analysis.exchange.compare import compare
from analysis.study import load_studies
from analysis.tables import table1
from bapo.errors import UserError
from bapo.experiments.studies import load_study
from bapo.store.files import read_json, write_json

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
    monkeypatch.setattr(table1, "_of_seed", lambda *_: None)  # how much is replayed: evidence lacks the groups
    assert main(["evidence", "--study", str(simulated[name]), "--out", str(tmp_path / "evidence")]) == 0
    file = tmp_path / "evidence" / "laptop" / f"{name}.zip"
    assert main(["unpack", str(file), "--out", str(tmp_path / "back")]) == 0
    study = tmp_path / "back" / "laptop" / "studies" / f"{name}.json"
    of_runs, of_evidence = (made(products, s, tmp_path / out) for s, out in ((simulated[name], "a"), (study, "b")))
    assert of_runs == of_evidence and len(of_runs) >= 3
    again = evidence.pack(study, tmp_path / "again")
    frames, same = evidence.read(file)[1], evidence.read(again)[1]
    assert all(frames[table].equals(same[table]) for table in frames if table != "text")


def test_a_target_ends_with_its_rows_and_what_the_published_run_has(
    simulated: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = evidence.unpack(evidence.pack(simulated["figure6"], tmp_path / "evidence"), tmp_path).parents[1]
    study = home / "studies" / "figure6.json"
    assert main(["comparison", "--study", str(study), "--out", str(home / "tables")]) == 0
    monkeypatch.setattr(closing, "suite_folder", lambda: tmp_path)
    numbers = len(compare(home, home))
    capsys.readouterr()
    assert main(["closing", str(home), "--study", "figure6", "untuned"]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert str(home / "tables" / "comparison_figure6.csv") in head and (home / "report.html").exists()
    table = pd.read_csv(home / "tables" / "comparison_figure6.csv")
    averages = table[(table["benchmark"] == "avg") & table["mean"].notna()]
    assert [float(re.split(" {2,}", row)[2].split()[0]) for row in rows] == list(averages["mean"].round(1))
    assert not any("+" in re.split(" {2,}", row)[1] for row in rows)
    assert any(" against BAPO (Ours), " in row for row in rows)
    assert last == f"Beside the published run, {numbers} of {numbers} numbers are identical."


def test_what_reads_groups_is_left_out_of_a_comparison_and_not_testable(
    simulated: dict[str, Path], tmp_path: Path
) -> None:
    study = evidence.unpack(evidence.pack(simulated["bases"], tmp_path / "evidence"), tmp_path / "back")
    assert set(made(["comparison"], study, tmp_path / "out")) == {f"comparison_bases.{s}" for s in ("md", "csv", "tex")}
    query = {"name": "bound_can_be_positive", "of": "bapo"}
    (asked,) = write_claims(tmp_path / "entries", {"query": query, "rule": {"above": 0}, "studies": ["bases"]})
    lines = ledger.ledger([asked], load_studies([study]))
    assert {line.verdict.verdict for line in lines} == {claims.NOT_TESTABLE}
    assert all("groups.parquet" in line.verdict.reason for line in lines)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return write_results(tmp_path / "results" / "laptop")


def test_the_same_command_goes_on_where_it_was_interrupted(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = evidence.pack(home / "studies" / "table1.json", tmp_path / "evidence")
    with monkeypatch.context() as patch:
        patch.setattr(evidence.files, "write_text", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            evidence.unpack(file, tmp_path / "back")
    whole, other = evidence.unpack(file, tmp_path / "back"), evidence.unpack(file, tmp_path / "other")
    of_both = [{p.relative_to(f.parents[1]): p.read_bytes() for p in f.parents[1].rglob("*.*")} for f in (whole, other)]
    assert of_both[0] == of_both[1]


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


@pytest.mark.parametrize("missing", ["grpo/seed1", "bapo/seed2/eval", "base/eval"])
def test_an_unfinished_study_has_no_evidence(missing: str, home: Path, tmp_path: Path, capsys) -> None:
    (home / "countdown/tiny" / missing / "summary.json").unlink()
    words = ["evidence", "--study", str(home / "studies" / "table1.json"), "--out", str(tmp_path / "evidence")]
    assert main(words) == 2
    assert f"countdown/tiny/{missing.removesuffix('/eval')}" in capsys.readouterr().err
    assert not (tmp_path / "evidence").exists()


@pytest.mark.parametrize(
    "own",
    [
        *(f"tiny/bapo/seed1/{name}" for name in ("summary.json", "manifest.json", "steps.parquet", "checkpoints/x")),
        *("tiny/base/manifest.json", "tiny/base/eval/summary.json", "other/grpo/seed1/manifest.json"),
    ],
)
def test_evidence_never_takes_the_place_of_a_run(own: str, home: Path, tmp_path: Path, capsys) -> None:
    file = evidence.pack(home / "studies" / "table1.json", tmp_path / "evidence")
    path = tmp_path / "back" / "laptop" / "countdown" / own
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert main(["unpack", str(file), "--out", str(tmp_path / "back")]) == 2
    assert f"{own.removesuffix('/x')}: a run that is not from evidence" in capsys.readouterr().err
    assert [p for p in (tmp_path / "back").rglob("*") if p.is_file()] == [path] and path.read_text() == "{}"


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


@pytest.fixture(scope="module")
def portions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the study "stale" with two seeds, and the evidence of each seed, by name."""
    root = tmp_path_factory.mktemp("portions")
    cells = [(cell.model, cell.method, cell.seed) for cell in load_study("stale", "smoke").cells]
    for level, (model, method, seed) in enumerate(cells):
        write_run(place(root, method, seed, model=model), {"a": bits(level % 5, seed)})
    model = cells[0][0]
    base = {"task": "countdown", "model": model, "run": str(place(root, "base", 1, model=model).parent)}
    write_evaluation(Path(base["run"]) / "eval", {"a": bits(0, 0)})
    shared = {"name": "stale", "title": "Stale responses", "scale": "smoke", "bases": [base], "benchmarks": ("a",)}
    found = {}
    for name, seeds in (("stale", (1, 2)), ("stale_1", (1,)), ("stale_2", (2,))):
        asked = [cell for cell in cells if cell[2] in seeds]
        file = write_study(root, asked, **shared)
        study = root / "results" / "laptop" / "studies" / f"{name}.json"
        of_portion = {"config": [f"seeds={seeds[0]}"]} if len(seeds) == 1 else {}
        write_json(study, {**read_json(file), **of_portion})
        found[name] = study if name == "stale" else evidence.pack(study, root / "evidence")
    return found


@pytest.mark.parametrize("order", [("stale_1", "stale_2"), ("stale_2", "stale_1"), ("stale_2", "stale_1", "stale_2")])
def test_portions_are_one_study(order: tuple[str, ...], portions: dict[str, Path], tmp_path: Path) -> None:
    for name in order:
        joined = evidence.unpack(portions[name], tmp_path / "back")
        for path in (joined.parents[1] / "portions").iterdir():
            path.rename(joined.with_name(path.name))  # where version 1.0.0 wrote them
    joined = evidence.unpack(portions[name], tmp_path / "back")
    assert [*(tmp_path / "back" / "laptop" / "studies").iterdir()] == [joined] and joined.name == "stale.json"
    products = ["gates", "comparison", "specifications"]
    of_runs, of_portions = (made(products, s, tmp_path / out) for s, out in ((portions["stale"], "a"), (joined, "b")))
    assert of_runs == of_portions and len(of_runs) == 9


def test_a_run_is_counted_beside_all_published_portions(
    portions: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = portions["stale"].parents[1]
    monkeypatch.setattr(closing, "suite_folder", lambda: portions["stale_1"].parents[2])
    numbers = len(compare(home, home))
    assert (
        closing.published(home, "stale") == f"Beside the published run, {numbers} of {numbers} numbers are identical."
    )
    assert closing.published(home, "sta") == ""


def test_portions_may_be_of_different_tasks(portions: dict[str, Path], tmp_path: Path) -> None:
    studies = evidence.unpack(portions["stale_1"], tmp_path).parents[1] / "portions"
    other = {"cells": [], "bases": [], "benchmarks": {"geometry": [["b", "B"]]}}
    write_json(studies / "stale_3.json", {**read_json(studies / "stale_1.json"), **other})
    joined = read_json(evidence.unpack(portions["stale_2"], tmp_path))
    assert joined["benchmarks"].keys() == {"countdown", "geometry"} and joined["missing"] == []


def test_a_study_whose_portions_lack_runs_has_no_verdict(
    portions: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = evidence.unpack(portions["stale_2"], tmp_path)
    assert "- 7 of 14 runs; the others are missing." in made(["comparison"], joined, tmp_path)["comparison_stale.md"]
    assert main(["gates", "--study", str(joined), "--out", str(tmp_path)]) == 2
    assert "stale: 7 of 14 runs; gates are judged by all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"title": "Another"}, "different titles"),
        ({"benchmarks": {"countdown": [["b", "B"]]}}, "different titles"),
        ({"cells": [{"task": "countdown", "model": "tiny", "method": "grpo", "seed": 1}]}, "countdown/tiny/grpo/seed1"),
    ],
)
def test_portions_that_are_not_of_one_study_are_named(
    change: dict[str, Any], said: str, portions: dict[str, Path], tmp_path: Path
) -> None:
    studies = evidence.unpack(portions["stale_1"], tmp_path).parents[1] / "portions"
    write_json(studies / "stale_3.json", {**read_json(studies / "stale_1.json"), **change})
    with pytest.raises(UserError, match=said):
        evidence.unpack(portions["stale_2"], tmp_path)


@pytest.mark.parametrize("content", [None, b"x", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_evidence_is_named(content: bytes | None, tmp_path: Path, capsys) -> None:
    file = tmp_path / "some.zip"
    if content is not None:
        file.write_bytes(content)
    assert main(["unpack", str(file), "--out", str(tmp_path / "back")]) == 2
    assert "some.zip" in capsys.readouterr().err and not (tmp_path / "back").exists()


STUDY, RUN = "studies/table1.json", "countdown/tiny/bapo/seed1"
ASKED = json.dumps({"cells": [{"task": "countdown", "model": "tiny", "method": "bapo", "seed": 1, "run": RUN}]})
WRITTEN = '{"identity": "a"}'
EVAL = {"path": f"{RUN}/eval/cd.parquet", "problem_id": "p", "samples": 2, "correct": 1, "parsed": 2}


#: fields that no manifest or summary has
WRONG = [
    *('"files": []', '"files": {"a": 5}', '"benchmarks": 5', '"benchmarks": {"a": 5}', '"totals": {"seconds": "x"}'),
    *('"more": NaN', '"more": -Infinity', '"more": 1e999', '"steps": "x"', '"ended": 5', '"budget": 5'),
    '"identity": "b"',  # given twice
]
#: fields that no study has
OTHER = (
    *('"name": 5', '"name": "x/../../escaped"', '"scale": "../x"', '"x": 1', '"missing": 5', '"bases": [5]'),
    *('"benchmarks": {"x": [["cd34"]]}', '"benchmarks": {"x": 5}', '"bases": [{"task": 1}]'),
)


def zipped(file: Path, about: object, **tables: Any) -> Path:
    """Write evidence of a study's file and these tables: rows, or the content of the file."""
    texts = {STUDY: ASKED, f"{RUN}/summary.json": WRITTEN} | tables.pop("texts", {})
    tables = {"text": [{"path": path, "text": text} for path, text in texts.items()]} | tables
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.json", json.dumps(about))
        for name, rows in tables.items():
            content = rows if isinstance(rows, bytes) else pd.DataFrame(rows).to_parquet()
            archive.writestr(f"{name}.parquet", content)
    return file


def many(rows: int, **columns: Any) -> bytes:
    """Return a small parquet file of as many equal rows."""
    zeros = np.zeros(rows, np.int8)
    table = {name: pa.DictionaryArray.from_arrays(zeros, pa.array([value])) for name, value in columns.items()}
    buffer = io.BytesIO()
    pq.write_table(pa.table(table), buffer, compression="zstd")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "tables",
    [
        *({"texts": {place: "{}"}} for place in ("../x.json", "/x.json", "studies//table1.json", "studies//x/y")),
        *({"texts": {f"studies/{name}": "{}"}} for name in ("a" * 5000, "a\x00b", "a/b/c.json", "", r"..\\x", ".x")),
        *({"texts": {f"{RUN}/{name}": "{}"}} for name in ("run.sh", "summary.json/summary.json")),
        {"texts": {"studies/other.json": ASKED}},
        {"texts": {"countdown/data/summary.json": WRITTEN}},
        *(
            {"texts": {f"{RUN}/{name}": text}}
            for name in ("summary.json", "manifest.json", "eval/summary.json")
            for text in ("no JSON", "[]", "{}", "[" * 100_000, *(f"{WRITTEN[:-1]}, {more}}}" for more in WRONG))
        ),
        *({"texts": {f"{RUN}/config.yaml": text}} for text in ("", ": : [", "[]", "5", "train: 5", "a: &a [*a")),
        *(
            {"text": rows}
            for rows in ([], [{"path": STUDY}], [{"path": STUDY, "text": 5}], [{"path": None, "text": ""}])
        ),
        {"text": [{"path": STUDY, "text": text} for text in "ab"]},
        *({"texts": {STUDY: text}} for text in ("[]", "5", "{}", ASKED.replace(', "run"', ', "walk"'))),
        *({"texts": {STUDY: text}} for text in ('{"cells": [{"task": "x"}]}', '{"cells": 5}', '{"name": "table1"}')),
        *({"texts": {STUDY: f"{ASKED[:-1]}, {more}}}"}} for more in OTHER),
        *({"eval": [EVAL | {key: n}]} for key in ("correct", "parsed") for n in (-1, 3, 2**40, "many", None)),
        *({"eval": [EVAL | {"samples": n}]} for n in (-1, 10_001, 3 * 10**9, 1.5, None, True)),
        {"eval": [EVAL | {"samples": 10_000, "problem_id": f"p{i}"} for i in range(2001)]},
        {"eval": [EVAL | {"path": f"{RUN}/steps.parquet"}]},
        {"eval": [EVAL | {"more": 1}]},
        {"eval": [{key: value for key, value in EVAL.items() if key != "parsed"}]},
        {"eval": many(1_000_001, **EVAL)},
        {"eval": many(900_000, **EVAL | {"problem_id": "p" * 10_000})},
        {"steps": [{"path": f"{RUN}/steps.parquet", "step": "one"}]},
        {"../steps": [{"path": f"{RUN}/steps.parquet", "step": 1}]},
        {"other": [{"path": "x"}]},
        {"eval": b"x"},
    ],
)
def test_a_strangers_table_is_refused_before_anything_is_written(
    tables: dict[str, Any], tmp_path: Path, capsys
) -> None:
    refused(zipped(tmp_path / "strange.zip", {"folder": "laptop", "study": "table1"}, **tables), capsys)


@pytest.mark.parametrize(
    ("about", "tables", "said"),
    [
        ({"folder": "laptop", "study": "table1"}, {"../evil": b"x"}, "../evil.parquet is no table of evidence"),
        ({"folder": "laptop", "study": "table1"}, {"eval": b"x"}, "eval.parquet is no table of evidence"),
        ({"folder": "laptop"}, {}, "about.json: study: has no value; add it"),
        ({"folder": "laptop", "study": ["table1"]}, {}, "about.json: study=['table1']: must be text"),
    ],
)
def test_what_is_wrong_with_a_strangers_file_is_said(
    about: Any, tables: Any, said: str, tmp_path: Path, capsys
) -> None:
    assert said in refused(zipped(tmp_path / "strange.zip", about, **tables), capsys)


def refused(file: Path, capsys) -> str:
    assert main(["unpack", str(file), "--out", str(file.parent / "back" / "here")]) == 2
    said = capsys.readouterr().err
    assert f"{file}: no evidence (" in said and "; name a file of evidence/, or make one with `bapo evidence`\n" in said
    assert said.count("\n") == 1 and not (file.parent / "back").exists()
    return str(said)


@pytest.mark.parametrize(
    "about",
    [
        *([], {}, 5, {"folder": 5, "study": "table1", "more": []}, {"folder": "laptop"}),
        *({"folder": name, "study": "table1"} for name in ("..", "", "/x", ".x", r"a\\b", ["laptop"], None)),
        *({"folder": "laptop", "study": name} for name in ("../../x", "table2", "")),
    ],
)
def test_what_a_stranger_says_of_evidence_is_no_place(about: object, tmp_path: Path, capsys) -> None:
    refused(zipped(tmp_path / "strange.zip", about), capsys)
    refused(tmp_path / "nowhere.zip", capsys)


def test_evidence_says_once_what_it_is(tmp_path: Path, capsys) -> None:
    file = zipped(tmp_path / "strange.zip", {"folder": "laptop", "study": "table1"}, eval=[EVAL])
    assert main(["unpack", str(file), "--out", str(tmp_path / "fine")]) == 0
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("about.json", json.dumps({"folder": "laptop", "study": "table1"}))
    capsys.readouterr()
    refused(file, capsys)


def test_a_file_that_grows_too_much_is_refused(tmp_path: Path, capsys) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.json", bytes(10 * evidence.LARGEST + 1))
    assert main(["unpack", str(tmp_path / "bomb.zip"), "--out", str(tmp_path / "back")]) == 2
    assert "bomb.zip" in capsys.readouterr().err


HEADER = "task,method,title,benchmark,low,mean,high,reference,difference,verdict\n"
REFERENCE = "countdown,grpo,'+GRPO,avg,19,20,21,grpo,,\n"
BAPO = "countdown,bapo,'+BAPO,avg,{},grpo,-0.25,below\n"


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ("countdown,grpo,GRPO,cd4,1,2,3,,,\n", []),
        (REFERENCE, ["countdown  GRPO  20.0 ± 1.0"]),
        (REFERENCE + BAPO.format("18,19.75,21"), ["countdown  GRPO  20.0 ± 1.0", BELOW := "-0.2 against GRPO, below"]),
        (REFERENCE + BAPO.format(",,"), [f"countdown  BAPO  {BELOW}"]),  # pooled over base models
        (
            REFERENCE.replace("countdown", "geometry") + REFERENCE + BAPO.format(",,"),
            ["geometry   GRPO  20.0 ± 1.0", f"countdown  BAPO              {BELOW}"],
        ),
        (REFERENCE + "all,grpo,GRPO,avg,,,,grpo,,\n", ["countdown  GRPO  20.0 ± 1.0"]),  # over tasks
    ],
)
def test_the_rows_that_a_target_ends_with(rows: str, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(HEADER + rows, encoding="utf-8")
    found = closing.rows(tmp_path / "table.csv").splitlines()[1:]
    assert len(found) == len(lines) and all(line in row for line, row in zip(lines, found, strict=True))


def test_each_of_several_models_of_a_task_has_rows_of_its_own(tmp_path: Path) -> None:
    header = "task,model,method,title,benchmark,low,mean,high,reference,difference,verdict"
    rows = [f"{{0}},{model},base,{title},avg,9,10,11,,,\n" for model, title in (("tiny", "Tiny"), ("gru", "A GRU"))]
    rows += [f"{{0}},{model},grpo,'+GRPO,avg,19,20,21,base,10,above\n" for model in ("tiny", "gru")]
    two, one = [row.format("countdown") for row in rows], [row.format("geometry") for row in rows[::2]]
    (tmp_path / "table.csv").write_text("".join([header + "\n", *two, *one]), encoding="utf-8")
    found = [line.split("  ") for line in closing.rows(tmp_path / "table.csv").splitlines()[1:]]
    ends = [("Tiny", ""), ("A GRU", ""), ("GRPO", "Tiny"), ("GRPO", "A GRU"), ("Tiny", ""), ("GRPO", "Tiny")]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in found]
    assert [line[1] for line in cells[:4]] == ["tiny", "gru"] * 2
    starts = [line[2] for line in cells[:4]] + [line[1] for line in cells[4:]]
    against = [line[-1].partition("against ")[2].partition(",")[0] for line in cells]
    assert list(zip(starts, against, strict=True)) == ends


def test_evidence_is_not_unpacked_over_other_results_nor_beside_runs_of_ones_own(
    simulated: dict[str, Path], tmp_path: Path
) -> None:
    file = evidence.pack(simulated["figure6"], tmp_path / "evidence")
    home = evidence.unpack(file, tmp_path / "out").parents[1]
    summary = next(home.glob("countdown/*/bapo/seed1/summary.json"))
    content = read_json(summary)
    sealed = dict.fromkeys(content["evidence"]["sealed"], "0")
    other = content | {"evidence": content["evidence"] | {"file": "table1.zip", "sealed": sealed}}
    write_json(summary, other)
    with pytest.raises(UserError, match=r"bapo/seed1/summary\.json: table1\.zip has other results of this run"):
        evidence.unpack(file, tmp_path / "out")
    assert read_json(summary) == other
    write_json(summary, content)
    evidence.unpack(file, tmp_path / "out")  # again is fine
    (home / "countdown" / "other" / "grpo" / "seed1").mkdir(parents=True)
    (home / "countdown" / "other" / "grpo" / "seed1" / "summary.json").write_text("{}")
    with pytest.raises(UserError, match=r"grpo/seed1/summary\.json: a run that is not from"):
        evidence.unpack(file, tmp_path / "out")
