"""The page shows what lies in the folder, no text becomes markup, and a browser opens it without complaint."""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.runs import write_results

from analysis import report
from analysis.__main__ import main
from analysis.exchange import crate
from analysis.report import markdown
from analysis.results import AVERAGE
from analysis.study import load
from analysis.watch import rows_of
from bapo.errors import UserError
from bapo.store.files import write_json, write_text

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
TABLE = f"# Table 1 {HOSTILE}\n\n| Method | CD<br>*CD* |\n| :-- | --: |\n| **a** | 1 |\n| {HOSTILE} | <u>2</u> |\n"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Elements(HTMLParser):
    """Every element as (tag, attributes)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {k: v or "" for k, v in attrs}))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Results with hostile text wherever text may come from."""
    home = write_results(tmp_path / "laptop")
    file = home / "studies" / "table1.json"
    cells = [c | {"method_title": f"+{c['method']} {HOSTILE}"} for c in json.loads(file.read_text())["cells"]]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"name": "table1", "note": HOSTILE, "cells": cells}))
    write_text(home / "tables" / "table1.md", TABLE)
    columns = "task,method,method_title,benchmark,mean,low,high,difference\n"
    bases = f"countdown,base,Tiny,{AVERAGE},0.1,0.05,0.15,\ngeometry,base,Tiny VL,{AVERAGE},0.2,0.15,0.25,\n"
    write_text(home / "tables" / "table1.csv", f"{columns}{bases}geometry,grpo,{HOSTILE},{AVERAGE},0.3,0.2,0.4,\n")
    write_text(home / "tables" / "table1_forest.svg", f"<svg xmlns='http://www.w3.org/2000/svg'>{HOSTILE}</svg>")
    write_text(home / "tables" / "comparison_bases.md", "# Bases\n")
    write_text(home / "tables" / "table2.md", "# Table 2\n")
    svg = "<svg xmlns='http://www.w3.org/2000/svg'><dc:description>A curve.</dc:description></svg>"
    write_text(home / "figures" / "figure4_training_curves.svg", svg)
    write_text(home / "figures" / "figure4_training_curves.csv", "step\n1\n")
    write_text(home / "claims.md", f"# Ledger\n\n[first](#first)\n\n### first\n\n> {HOSTILE}\n")
    return home


def test_everything_is_shown_and_no_text_is_markup(home: Path) -> None:
    page = report.write(home).read_text(encoding="utf-8")
    elements = Elements(page).found
    assert not [e for e in elements if e[0] == "script" or any(name.startswith("on") for name in e[1])]
    assert {attributes["src"][:15] for tag, attributes in elements if tag == "img"} == {"data:image/svg+x"[:15]}
    named = {attributes.get("id") for _, attributes in elements}
    assert {"table1", "table2", "figure4_training_curves", "claims", "first", "audit"} <= named
    links = {attributes["href"] for tag, attributes in elements if tag == "a"}
    assert {"tables/table1.csv", "tables/table1_forest.svg", "figures/figure4_training_curves.csv", "#first"} <= links
    parts = report._parts(home / "tables", home)
    assert [part["key"] for part in parts] == ["table1", "table2", "comparison_bases"]
    assert list(parts[0]["pictures"]) == ["tables/table1_forest.svg"]
    assert parts[0]["files"] == ["tables/table1.csv"] and parts[1]["files"] == []
    assert "A curve." in page
    short = page.partition('<section id="short">')[2].partition("</section>")[0]
    for title in ("countdown  Tiny ", "geometry   Tiny VL ", f"geometry   {HOSTILE} "):
        assert title in html.unescape(short)
    assert "4 of 4 runs, 0 s of training." in short


def test_runs_of_a_study_without_evaluations_count_when_they_are_trained(tmp_path: Path) -> None:
    """The page, the table of what runs and an archive miss no evaluation that the study does not ask for."""
    home = write_results(tmp_path / "laptop")
    for evaluation in home.rglob("eval"):
        shutil.rmtree(evaluation)
    write_json(home / "countdown/tiny/base/summary.json", {"identity": "synthetic"})
    file = home / "studies" / "table1.json"
    for chosen, counted, progress, left in ((None, 0, "5 of 10", 1), ({"countdown": {}}, 4, "5 of 5", 0)):
        write_json(file, json.loads(file.read_text()) | ({} if chosen is None else {"chosen": chosen}))
        assert report._opening(load(file), home)["facts"].startswith(f"{counted} of 4 runs")
        assert len(crate.collect(home).left_out) == left
        rows = rows_of(home)
        done = rows["done"].sum() + rows["evaluated"].sum()
        assert f"{done} of {rows['runs'].sum() + rows['evaluations'].sum()}" == progress


def test_markdown_keeps_our_marks_and_nothing_else() -> None:
    assert markdown("**a** `*c*` <u>d</u><br>e").strip() == ("<p><strong>a</strong> <code>*c*</code> <u>d</u><br>e</p>")
    assert "<b" not in markdown("2 <b onclick=x>3</b>") and "href" not in markdown("[a](javascript:b)")


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_a_folder_without_results_says_what_makes_them(tmp_path: Path, folder: str) -> None:
    write_text(tmp_path / "notes.txt", "")
    with pytest.raises(UserError, match=rf"{folder}: holds no results; make them with `bapo run table1`"):
        report.write(tmp_path / folder)


@pytest.mark.system
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; tests/support/install_chromium installs Debian's")
def test_a_browser_opens_it_without_complaint(home: Path, tmp_path: Path) -> None:
    page = report.write(home).resolve().as_uri()
    root = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's own rule
    options = ["--headless=new", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'user'}"]
    command = [str(CHROMIUM), *options, *root, "--dump-dom", page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=True)
    assert "CONSOLE" not in done.stderr and done.stdout.count("<img") == 2 and "hacked = 1<" not in done.stdout


def test_a_target_of_runs_alone_ends_without_a_page(tmp_path: Path) -> None:
    (tmp_path / "countdown" / "tiny" / "grpo" / "seed1").mkdir(parents=True)
    assert main(["closing", str(tmp_path), "--study"]) == 0
    assert main(["report", str(tmp_path)]) == 2 and not (tmp_path / "report.html").exists()
