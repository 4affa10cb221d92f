"""A benchmark asked in another way in Table 1: a column of its own that no average and no comparison sees."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from support.run_directories import write_study

from analysis.__main__ import main
from bapo.store.files import SUMMARY, fingerprints, read_json, read_table, write_json, write_parquet

TITLE = "CD-34, paper's prompt"


def add_column(study: Path) -> None:
    """Add evaluations in which nothing is right to every run of a study, and to the study file."""
    content = json.loads(study.read_text(encoding="utf-8"))
    for run in (*content["cells"], *content["bases"]):
        folder = Path(run["run"]) / "eval"
        frame = read_table(folder / "cd34.parquet")
        frame["correct"] = False
        write_parquet(folder / "cd34_paper.parquet", frame)
        summary = read_json(folder / SUMMARY)
        summary["files"] |= fingerprints(folder, ["cd34_paper.parquet"])
        write_json(folder / SUMMARY, summary)
    content["asked"] = {"countdown": [["cd34_paper", TITLE]]}
    study.write_text(json.dumps(content), encoding="utf-8")


def test_a_column_of_zeros_beside_an_unchanged_average(tmp_path: Path) -> None:
    study = write_study(tmp_path, methods=("grpo", "bapo"), seeds=(1, 2), steps=4, problems=12, samples=4)
    before, after = tmp_path / "before", tmp_path / "after"
    assert main(["table1", "--study", str(study), "--out", str(before)]) == 0
    add_column(study)
    assert main(["table1", "--study", str(study), "--out", str(after)]) == 0

    for name in ("table1.csv", "table1_differences.csv"):
        assert pd.read_csv(before / name).equals(pd.read_csv(after / name))
    text = (after / "table1.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    header, *cells = (row for row in rows if not row[0].startswith(":"))
    place = header.index(TITLE)
    assert header[place - 1 : place + 2] == ["SE", TITLE, "Rollouts"]
    found = {row[0]: row[place] for row in cells if not row[0].startswith("*paper")}
    assert set(found.values()) == {"0.0 ± 0.0", "0.0 ± 0.0 (sd 0.0)"} and len(found) == 3
    assert "nan" not in text.lower()
    assert f"{TITLE}: 12 problems asked in another way, 4 samples each; outside Avg" in text
    assert TITLE in (after / "table1.tex").read_text(encoding="utf-8")
