"""The first hour of a reader: the demo, Table 1 through Ctrl-C and kill -9 to its end, and then nothing to be done.

Its numbers are those of a world that nothing disturbed, which was made in another environment.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from support.paths import ROOT
from support.workflow import PATIENCE, command, environment
from support.world import SMOKE

from analysis.exchange.compare import IDENTICAL, compare
from analysis.products import FIGURES
from bapo.experiments.compose import run_config
from bapo.experiments.studies import load_study
from bapo.plan import resources
from bapo.store import files
from bapo.store.files import read_json, verify_files

pytestmark = pytest.mark.system

CHECKOUT = ("bapo", "analysis", "experiments", "workflows", "Snakefile", "profiles")
#: names of the checkout's folder and, in it, of the results' that a shell must not read
FOLDER, RESULTS = "a b'cé $(touch run)", "my results/it's $(touch run)"
TASKS = {"mathematics": "nested_3", "countdown": "cd34", "geometry": "diagrams_val"}  # a benchmark of each
METHODS = {"grpo", "dapo", "bapo"}
#: what a terminal would obey
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in a folder whose name has spaces, a quote, an accent and a command in it."""
    folder = tmp_path / FOLDER
    for name in CHECKOUT:
        place, of = folder / name, ROOT / name
        if of.is_dir() and not of.is_symlink():
            shutil.copytree(of, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(of, place, follow_symlinks=False)
    return folder


def into_a_file(folder: Path, words: list[str], stop_at: str = "", kill: bool = False) -> tuple[int, str]:
    """(exit status, output) of a command that is started as by a shell, stopped as soon as a pattern finds a result.

    kill: by kill -9 of this process alone, whose jobs go on without it; else by Ctrl-C, which reaches all of it.
    """
    log = folder.with_name("run.log")
    with open(log, "wb") as output:
        process = subprocess.Popen(
            words,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(PYTHONPATH=str(folder)),
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # where this runs in the background
        )
        deadline = time.monotonic() + PATIENCE
        while stop_at and not list((folder / RESULTS / "smoke").glob(stop_at)):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        if kill:
            process.kill()
        elif stop_at:
            os.killpg(process.pid, signal.SIGINT)
        status = process.wait(PATIENCE)
    text = log.read_text()
    assert not CONTROL.search(text), CONTROL.search(text)
    return status, text


def runs_in(process: Path, folder: Path) -> bool:
    """Return whether a process of /proc works in a folder."""
    try:
        return (process / "cwd").readlink() == folder
    except OSError:  # it has ended, or is another user's
        return False


def test_from_nothing_to_the_table_through_ctrl_c_and_kill(checkout: Path, smoke_world: Path) -> None:
    home = Path(RESULTS, "smoke")
    there, settings = checkout / home, [*SMOKE, f"results={RESULTS}"]
    table1 = command("--cores", "2", "table1", *settings, file=checkout / "Snakefile")
    status, text = into_a_file(checkout, [sys.executable, "-m", "bapo", "demo", *settings[1:]])
    assert status == 0, text[-3000:]
    assert {p.name for p in (there / "countdown" / "qwen2-112k").iterdir()} == {"base", *METHODS}
    assert not (there / "mathematics").exists()  # nothing but the first look
    assert "of 11 jobs done" in text and "step 4/4" not in text
    assert "step 4/4" in (there / "logs/train/countdown/qwen2-112k/grpo/seed1.log").read_text()
    assert f"First look: {home}/first_look.md" in text and f"Picture: {home}/first_look.png" in text
    assert (there / "report.html").exists()  # every target makes it
    looked = (there / "first_look.md").read_text()

    status, text = into_a_file(checkout, table1, "mathematics/*/*/seed1/manifest.json")
    assert status not in (0, -signal.SIGKILL) and "Error in rule" not in text  # Ctrl-C is no error of a job
    assert f"First look: {home}/first_look.md" not in text  # it is older
    status, _ = into_a_file(checkout, table1, "geometry/*/*/seed1/manifest.json", kill=True)
    assert status == -signal.SIGKILL and not (there / "tables" / "table1.md").exists()

    status, text = into_a_file(checkout, table1)
    assert status == 0, text[-3000:]
    assert (there / "first_look.md").read_text() == looked  # made once
    assert "starts its own Python" not in text  # every job is a child of the warm process
    assert "step 4/4" not in text and "jobs done, " in text
    assert "Accuracy in percent" in text and "published" not in text  # nothing is published of this scale
    assert text.index(f"Table 1: {home}/tables/table1.md") < text.index(f"Figures: {home}/figures")
    began = {str(m.relative_to(there)): read_json(m)["started"] for m in there.rglob("seed*/manifest.json")}
    first, *rest = sorted(began, key=began.__getitem__)  # Countdown, which the demo shows, comes first
    assert first.startswith("countdown/") and any(name.startswith("mathematics/") for name in rest)

    status, text = into_a_file(checkout, table1)
    assert status == 0 and "Nothing to be done" in text
    assert [p for p in Path("/proc").glob("[0-9]*") if runs_in(p, checkout)] == []  # nor a warm process is left

    page = Path(RESULTS, "snakemake.html")
    status, text = into_a_file(checkout, [*table1, "--report", str(page)])
    assert status == 0 and "Snakemake Report" in (checkout / page).read_text(), text[-3000:]

    assert {path.name for path in checkout.iterdir()} <= {*CHECKOUT, ".snakemake", Path(RESULTS).parts[0]}

    undisturbed = smoke_world / "results" / "smoke"
    assert {*compare(undisturbed, there)["state"]} == {IDENTICAL}
    tables = [pd.read_csv(place / "tables" / "table1.csv").drop(columns="seconds") for place in (undisturbed, there)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    summaries = sorted(p.relative_to(there) for p in there.glob("*/*/*/seed1/summary.json"))
    assert len(summaries) == len(TASKS) * len(METHODS)
    for summary in summaries:
        one, two = (undisturbed / summary).parent, (there / summary).parent
        assert list(rows_of(one)) == list(rows_of(two))
        for name, table in rows_of(one).items():
            pd.testing.assert_frame_equal(table, rows_of(two)[name], check_exact=True)
        weights = Path(read_json(one / files.SUMMARY)["checkpoint"], "model.safetensors")
        assert (one / weights).read_bytes() == (two / weights).read_bytes()


def rows_of(run: Path) -> dict[str, pd.DataFrame]:
    """The tables of a run and of its evaluation, without the columns that measure time."""
    paths = [path for path in sorted(run.rglob("*.parquet")) if "checkpoints" not in path.parts]
    tables = {path.name: pd.read_parquet(path) for path in paths}
    return {name: table[[c for c in table if not c.startswith(files.TIME_COLUMNS)]] for name, table in tables.items()}


def test_what_a_workflow_leaves(smoke_world: Path) -> None:
    out = smoke_world / "results" / "smoke"
    text = (out / "tables" / "table1.md").read_text()
    assert "| +GRPO |" in text and "| +BAPO |" in text and "its numbers mean nothing" in text
    table = pd.read_csv(out / "tables" / "table1.csv")
    assert set(table["method"]) == {"base", *METHODS} and set(table["task"]) == set(TASKS)
    for figure in load_study("table1", "smoke").file.figures:
        if not FIGURES[figure].curves:  # those are of the target `figures`
            assert (out / "figures" / f"{figure}.png").read_bytes()[:4] == b"\x89PNG"
            assert (out / "figures" / f"{figure}.pdf").stat().st_size > 1000
    updates = 0
    for task, benchmark in TASKS.items():
        summaries = list(out.glob(f"{task}/*/*/seed1/summary.json"))
        assert len(summaries) == len(METHODS)
        for summary in summaries:
            verify_files(summary.parent)
            bits = pd.read_parquet(summary.parent / "eval" / f"{benchmark}.parquet")
            assert bits.groupby("problem_id")["sample"].apply(sorted).map(lambda s: s == list(range(4))).all()
            updates += read_json(summary)["totals"]["updates"]
    assert updates > 0  # else equal weights would say nothing


def test_every_job_takes_less_memory_than_it_asks_for(smoke_world: Path) -> None:
    asked = {"data": resources.problems, "base": resources.base_model}
    home, jobs = smoke_world / "results" / "smoke", set()
    for path in home.rglob("*.json"):
        if path.name not in (files.MANIFEST, files.SUMMARY) or "peak_memory_bytes" not in (content := read_json(path)):
            continue
        task, *places = path.relative_to(home).parts[:-1]
        model, method = (*places, "", "")[:2]
        config = run_config("smoke", task, "" if model == "data" else model, method if method in METHODS else "", 1)
        ask = asked.get(places[-1], resources.evaluation if places[-1] == "eval" else resources.training)
        assert content["peak_memory_bytes"] < ask(config)["mem_mb"] * 1e6, path
        jobs.add(path.parent)
    assert len(jobs) == len(TASKS) * (2 + 1 + 2 * len(METHODS))  # problems, base and its evaluation, runs and theirs
