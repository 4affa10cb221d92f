"""Every number of a page's table comes from evidence: made again by the analysis, and compared cell by cell."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from support.evidence import FILES, OF_STUDY, Table, differences, made_of, registered_late, tables
from support.pages import PAGES
from support.paths import ROOT

from analysis.__main__ import main
from analysis.exchange import evidence
from bapo.experiments import places
from bapo.store.files import read_json
from bapo.validate import parse_yaml

EVIDENCE = ROOT / "evidence"
TABLES = [t for page in PAGES for t in tables(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))]
WITHOUT = ROOT / "tests" / "docs" / "tables_without_evidence.txt"
#: tables that WITHOUT may list at most; lower it when there are fewer
MOST = 8
RUNS = {name: sum(json.loads(ZipFile(f).read(evidence.ABOUT))["runs"] for f in of) for name, of in OF_STUDY.items()}
#: evidence of 180 runs and more: its tables take longer than ten seconds
LARGE = {name for name, runs in RUNS.items() if runs >= 180}
MARKED = [
    pytest.param(t, marks=[pytest.mark.slow] * (t.place in LARGE), id=f"{t.place}, {t}") for t in TABLES if t.place
]


@pytest.mark.parametrize("table", MARKED)
def test_a_table_is_what_its_evidence_gives(table: Table, tmp_path_factory: pytest.TempPathFactory) -> None:
    plain = EVIDENCE / f"{table.place}.csv"  # what was measured on a machine, rather than made of runs
    if plain.exists():
        header, *rows = csv.reader(plain.read_text(encoding="utf-8").splitlines())
        made = [Table(plain.name, tuple(header), tuple(map(tuple, rows)))]
    else:
        (page,) = made_of(tmp_path_factory, table.place, table.product).glob("*.md")
        made = list(tables(page.read_text(encoding="utf-8"), page.name))
    assert differences(table, made) == []


@pytest.mark.slow
def test_the_count_of_verdicts_is_the_ledgers(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    names = re.findall("<!-- ledger: (.+) -->", page)[0].split()
    studies = [str(evidence.unpack(EVIDENCE / "laptop" / f"{name}.zip", tmp_path / name)) for name in names]
    assert main(["claims", "--study", *studies, "--out", str(tmp_path)]) == 0
    counts = read_json(tmp_path / "claims.json")["counts"]
    (table,) = (t for t in TABLES if t.page == "docs/results.md" and t.header[0] == "verdict")
    given = {verdict: count + counts["by_definition"][verdict] for verdict, count in counts["overall"].items()}
    assert {verdict: int(count) for verdict, count, _ in table.rows} == given


def test_the_table_of_who_made_the_runs_is_made_of_the_files() -> None:
    made = subprocess.run([sys.executable, EVIDENCE / "table.py"], capture_output=True, text=True, check=True)
    assert made.stdout in (EVIDENCE / "README.md").read_text(encoding="utf-8")


def test_tables_without_evidence_become_fewer() -> None:
    without = Counter(str(table) for table in TABLES if table.measured and not table.place)
    listed = Counter(WITHOUT.read_text(encoding="utf-8").splitlines())
    assert sorted(without - listed) == [], "name their evidence in a comment above: docs/sharing.md"
    assert sorted(listed - without) == [], f"take them off {WITHOUT.name}"
    assert listed.total() <= MOST


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_file_of_evidence_is_small_and_of_this_study(file: Path) -> None:
    about, _ = evidence.read(file)
    assert file.stat().st_size <= evidence.LARGEST
    assert (about["folder"], about["study"]) == (file.parent.name, file.stem)


def gated() -> list[Any]:
    """Return the evidence of the studies whose file has gates, each beside that file."""
    of = {file: places.file_of("study", Path(name).name) for name, files in OF_STUDY.items() for file in files}
    asked = {file: path for file, path in of.items() if path.exists() and "gates" in parse_yaml(path)}
    return [pytest.param(file, path, id=file.stem) for file, path in asked.items()]


#: studies that put new rows beside runs of earlier studies, which had been seen, as their files and pages say
FOLLOW_UPS = {
    "prompts_loss": ["laptop/prompts"],
    "rates_geometry": ["laptop/prompts"],
    "rates_mathematics": ["laptop/prompts"],
    "replay_geometry": ["laptop/prompts"],
}


@cache
def texts(file: Path) -> dict[str, str]:
    """Return what evidence holds as text by its path: summaries, manifests and others."""
    return dict(evidence.read(file)[1]["text"][["path", "text"]].itertuples(index=False))


def first_new_run(file: Path, path: Path) -> str:
    """Return when the first run of a follow-up started that no earlier study has; each question must be about one.

    A run is an earlier study's where both have the same summary, with its identity and the digests of its tables.
    """
    seen = [texts(other) for place in FOLLOW_UPS[path.stem] for other in OF_STUDY[place]]
    runs = [Path(place) for place in texts(file) if place.count("/") == 4 and place.endswith("/summary.json")]
    new = [run for run in runs if all(other.get(str(run)) != texts(file)[str(run)] for other in seen)]
    methods, content = {run.parts[2] for run in new}, parse_yaml(path)
    assert new and len(new) < len(runs)
    assert all({q["of"], q.get("minus")} & methods for q in [*content["gates"], *content["decisions"]])
    return min(json.loads(texts(file)[str(run.with_name("manifest.json"))])["started"] for run in new)


@pytest.mark.parametrize(("file", "path"), gated())
def test_gates_and_decisions_were_written_down_before_the_runs(file: Path, path: Path) -> None:
    words = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    done = subprocess.run(words, capture_output=True, text=True) if shutil.which("git") else None
    if done is None or done.stdout.strip() != "false":
        assert not os.environ.get("CI"), "a shallow clone cannot show when a gate was written: fetch the whole history"
        pytest.skip("the history of the study's file is not here")
    about = evidence.read(file)[0]
    if path.stem in FOLLOW_UPS:
        about["started"] = first_new_run(file, path)
    assert registered_late(about, path) == []


STUDY = "{claim: c, gates: [{must: [%s]}], title: %s, scales: {laptop: [1], smoke: [2]}}"


@pytest.mark.parametrize(
    ("started", "packed", "now", "said"),
    [
        ("2026-01-02T00:00:00Z", ("low > 0", "a"), ("low > 0", "b"), []),
        ("2025-12-31T23:00:00Z", ("low > 0", "a"), ("low > 0", "a"), ["committed after"]),
        ("2026-01-02T00:00:00Z", ("low > 0", "a"), ("low > 1", "a"), ["than when its runs were packed"]),
        ("2026-01-02T00:00:00Z", ("low > 1", "a"), ("low > 1", "a"), ["when the first run started"]),
    ],
)
def test_a_gate_that_changes_after_the_runs_is_found(
    started: str, packed: tuple, now: tuple, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is committed on 1 January with the gate "low > 0". packed, now: its gate and title at these times."""
    file = tmp_path / "asked.yaml"
    file.write_text(STUDY % ("low > 0", "a"))
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_DATE", "2026-01-01T00:00:00Z")
        monkeypatch.setenv(f"GIT_{name}_NAME", "A")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@b.c")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "gates"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    file.write_text(STUDY % now)
    asked = evidence.question_digest(parse_yaml(file, STUDY % packed), "laptop")
    found = registered_late({"scale": "laptop", "started": started, "asked": asked}, file)
    assert len(found) == len(said) and all(words in one for words, one in zip(said, found, strict=True))


PRODUCT = """## Countdown
| Method | CD | Avg | Verdict |
| :-- | --: | --: | :-- |
| **Base** | 14.2 ± 1.6 | 11.1 ± 0.9 | |
| +GRPO | 25.9 ± 2.9 (sd 1.4) | **21.4 ± 1.8** (sd 0.4) | not significant |
"""
PAGE = """
<!-- evidence: laptop/table1 table1 -->
| method | Avg | Verdict |
|---|---|---|
| GRPO | 21.4 ± 1.8 | not significant |
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", []),
        ("21.4 ± 1.8", "21.4", []),
        ("21.4 ± 1.8", "21.5 ± 1.8", ["GRPO, Avg: 21.5 ± 1.8, but the evidence gives 21.4 ± 1.8 (sd 0.4)"]),
        ("21.4 ± 1.8", "2", ["GRPO, Avg: 2, but"]),
        ("not significant", "", ["GRPO, Verdict: , but"]),
        ("| GRPO", "| DAPO", ["no row DAPO"]),
        ("| Avg", "| Mean", ["no column Mean"]),
    ],
)
def test_a_digit_that_differs_is_found(old: str, new: str, said: list[str]) -> None:
    (shown,) = tables(PAGE.replace(old, new) if old else PAGE, "page")
    assert (shown.place, shown.product) == ("laptop/table1", "table1")
    found = differences(shown, list(tables(PRODUCT, "made")))
    assert len(found) == len(said) and all(one.startswith(words) for words, one in zip(said, found, strict=True))


def test_a_mark_belongs_to_the_table_below_it_alone() -> None:
    marked, unmarked = tables(f"{PAGE}\n{PRODUCT}", "page")
    assert (marked.place, unmarked.place) == ("laptop/table1", "")
    assert unmarked.measured and not replace(unmarked, rows=(("+GRPO", "a", "b", "v1.2.3"),)).measured
