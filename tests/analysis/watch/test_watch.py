"""``bapo watch``: states from what lies in the folders, time left by hand, hostile text, half-written files."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from support.browser import Browser, needed
from support.paths import ROOT
from support.table_runs import place, write_evaluation, write_run, write_study

from analysis.__main__ import main
from analysis.left import duration
from analysis.watch import folder, page, terminal
from analysis.watch.curves import Reader, mean_curve
from analysis.watch.frame import Frame, look, time_left
from bapo.errors import UserError
from bapo.store.files import MANIFEST, SUMMARY, write_json
from bapo.store.lock import locked

HOSTILE = "<script>alert(1)</script>[red]\x1b[2J"
NOW = 1_800_000_000.0
LINE = "countdown tiny grpo seed 2: step {0}/150, reward 0.{0}, batch 32+0+0, 2.60 steps/s, 00:{1:02d} left\n"


def shown(frame: Frame, rows: int | None = None) -> str:
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    console.print(terminal.view(frame, rows))
    return console.file.getvalue()


def iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def log_of(home: Path, kind: str, method: str, seed: int) -> Path:
    path = home / "logs" / kind / "countdown" / "tiny" / method / f"seed{seed}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """GRPO with one finished and evaluated seed of three, one that runs, one that waits; BAPO begun and killed."""
    home = tmp_path / "results" / "laptop"
    for method in ("grpo", "bapo"):
        (home / "logs" / "train" / "countdown" / "tiny" / method).mkdir(parents=True)
    steps = [{"reward_mean": 0.1 + i / 100} for i in range(40)]
    run = write_run(place(tmp_path, "grpo", 1), steps=steps, totals={"seconds": 90.0})
    write_json(run / MANIFEST, {"started": iso(NOW - 1000), "ended": iso(NOW - 900), "resumed": 0})
    write_evaluation(run / "eval", {"a": [[0, 1]]})
    content = json.loads((run / "eval" / SUMMARY).read_text())
    write_json(run / "eval" / SUMMARY, {**content, "seconds": 20.0, "benchmarks": {"a": {"accuracy": 0.25}}})
    begun = place(tmp_path, "grpo", 2)
    begun.mkdir()
    write_json(begun / MANIFEST, {"started": iso(NOW - 30), "ended": None, "resumed": 0})
    log = log_of(home, "train", "grpo", 2)
    log.write_text("train countdown: starting\n" + LINE.format(15, 50) + LINE.format(30, 40), encoding="utf-8")
    os.utime(log, (NOW - 10, NOW - 10))
    killed = place(tmp_path, "bapo", 1)
    killed.mkdir(parents=True)
    (killed / ".lock").write_text(f"process {2**22 + 1} on {platform.node()}")
    log_of(home, "train", "bapo", 1).write_text("error: no space left\n")
    cells = [("tiny", "grpo", 1), ("tiny", "grpo", 2), ("tiny", "grpo", 3), ("tiny", "bapo", 1)]
    study = write_study(tmp_path, cells, name="table1")
    (home / "studies").mkdir()
    study.rename(home / "studies" / "table1.json")
    return home


def test_states_counts_and_the_time_left(home: Path, tmp_path: Path) -> None:
    with locked(place(tmp_path, "grpo", 2)):
        frame = look(home, Reader(), NOW)
    assert frame.counts == {
        "train": {"done": 1, "running": 1, "stopped": 1, "waiting": 1},
        "evaluate": {"done": 1, "running": 0, "stopped": 0, "waiting": 3},
    }
    running, stopped = frame.active
    assert (running.done, running.total, running.left) == (30, 150, 30.0)  # its log said 40 s, 10 s ago
    assert running.curve == pytest.approx((0.15, 0.30))
    assert (stopped.state, stopped.said) == ("stopped", "error: no space left")
    # the rest of one run, two runs of 100 s (GRPO's own, and for want of BAPO's the task's), three evaluations of 20 s
    assert frame.left.seconds == pytest.approx(30 + 2 * 100 + 3 * 20) and frame.left.unknown == 0
    assert time_left(frame) == "about 4 min 50 s left with 1 at a time"
    unknown = replace(frame, left=replace(frame.left, unknown=1))
    assert time_left(unknown).endswith(" at a time, not counting 1 job whose kind has not finished once")
    grpo = next(g for g in frame.groups if "GRPO" in g.method)
    assert (grpo.runs, grpo.done, grpo.running, grpo.evaluated, grpo.accuracy) == (3, 1, 1, 1, 0.25)
    assert grpo.probe == (0.25, 0.25) and len(grpo.curve) == 24
    assert grpo.curve[0] < grpo.curve[-1] == pytest.approx(0.49, abs=0.02)
    said = shown(frame)
    assert "2 of 8 jobs done, 1 running, 1 stopped" in said and "30/150" in said and "1/3 +1" in said
    after = look(home, Reader(), NOW)  # the lock went with the block
    assert after.counts["train"]["running"] == 0 and "nothing runs now" in time_left(after)


def test_curves_count_once_one_has_begun(home: Path) -> None:
    file = home / "studies" / "table1.json"
    write_json(file, {**json.loads(file.read_text()), "curves": ["grpo"]})
    assert "curve" not in look(home, Reader(), NOW).counts
    log_of(home, "curve", "grpo", 1).write_text("curve grpo/seed1: sample 10/40, 3.00 samples/s, 00:10 left\n")
    frame = look(home, Reader(), NOW)
    assert frame.counts["curve"] == {"done": 0, "running": 0, "stopped": 1, "waiting": 2}
    assert any(active.kind == "curve" and active.title.endswith("seed 1") for active in frame.active)


def test_a_job_on_another_machine_runs_while_its_files_are_young(home: Path, tmp_path: Path) -> None:
    (place(tmp_path, "grpo", 2) / ".lock").write_text("process 1 on another-machine")
    assert look(home, Reader(), NOW).counts["train"]["running"] == 1
    late = NOW + folder.FRESH + max(0.0, (place(tmp_path, "grpo", 2) / MANIFEST).stat().st_mtime - NOW) + 1
    assert look(home, Reader(), late).counts["train"]["running"] == 0


@pytest.mark.parametrize("damage", ["", "{", "PAR1", "\x00\xff"])
def test_half_written_files_say_nothing_and_stop_nothing(home: Path, tmp_path: Path, damage: str) -> None:
    reader = Reader()
    look(home, reader, NOW)
    for path in [p for p in home.rglob("*") if p.is_file() and p.parent.name != "studies"]:
        path.write_text(damage, encoding="utf-8")
    frame = look(home, reader, NOW)
    assert frame.counts["train"]["done"] == 1 and frame.left.seconds is None
    assert "not known before the first job" in time_left(frame)
    assert shown(frame) and page.render(frame, 5)
    (home / "studies" / "table1.json").write_text(damage or "{}", encoding="utf-8")
    assert "table1.json" in look(home, reader, NOW).problems[0]


def test_nothing_in_the_folder_changes_and_no_lock_is_taken(home: Path, tmp_path: Path) -> None:
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in home.rglob("*") if p.is_file()}
    out = tmp_path / "page.html"
    with locked(place(tmp_path, "grpo", 3)):
        before |= {(p := place(tmp_path, "grpo", 3) / ".lock"): (p.stat().st_mtime_ns, p.read_bytes())}
        assert main(["watch", str(home), "--once", "--page", str(out)]) == 0
    after = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in home.rglob("*") if p.is_file()}
    assert after == before and out.exists()


def test_text_of_files_is_shown_as_text(home: Path) -> None:
    path = home / "studies" / "table1.json"
    content = json.loads(path.read_text())
    for cell in content["cells"]:
        cell["task_title"] = cell["method_title"] = HOSTILE
    path.write_text(json.dumps(content))
    log_of(home, "train", "bapo", 1).write_text(f"error: {HOSTILE}\n")
    frame = look(home, Reader(), NOW)
    said, html = shown(frame), page.render(frame, 5)
    assert "[red]" in said and "\x1b" not in said
    assert "<script>" not in html and "&lt;script&gt;" in html and "\x1b" not in html


def test_the_page_loads_itself_again_only_while_it_is_watched(home: Path) -> None:
    frame = look(home, Reader(), NOW)
    assert '<meta http-equiv="refresh" content="5">' in page.render(frame, 5.0)
    assert 'content="1">' in page.render(frame, 0.2)
    still = page.render(frame, None)
    assert "refresh" not in still and "nobody watches now" in still


@needed
def test_the_page_in_a_browser_on_a_phone(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    with locked(place(tmp_path, "grpo", 2)):
        page.write(look(home, Reader(), NOW), out, 3600)
    with Browser() as browser:
        browser.open(out, width=360)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.run("document.querySelectorAll('#methods polyline').length") == 1
        assert "1 running" in browser.run("document.body.textContent")
        page.write(look(home, Reader(), NOW), out, 1)
        browser.open(out, width=360)
        page.write(look(home, Reader(), NOW + 60), out, None)
        # it has loaded itself again; a page that is just being loaded has no body
        browser.until("document.body?.textContent.includes('nobody watches now')")
        assert browser.complaints == [] and browser.requests == []


def test_what_is_no_scales_results_is_said(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "none"), "--once"]) == 2
    assert "none does not exist" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"holds scales, not runs; name one of them, for example .*laptop"):
        look(home.parent, Reader(), NOW)
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="has no studies"):
        look(tmp_path / "other", Reader(), NOW)
    assert main(["watch", str(home), "--every", "0"]) == 2


def test_a_short_screen_shows_what_runs_first(home: Path, tmp_path: Path) -> None:
    path = home / "studies" / "table1.json"
    content = json.loads(path.read_text())
    cell = content["cells"][0]
    content["cells"] += [
        {**cell, "method": f"m{i}", "method_title": f"+M{i}", "run": cell["run"].replace("grpo", f"m{i}")}
        for i in range(30)
    ]
    path.write_text(json.dumps(content))
    with locked(place(tmp_path, "grpo", 2)):
        said = shown(look(home, Reader(), NOW), rows=6)
    assert "and 28 more methods" in said and "+GRPO" in said and len(said.splitlines()) < 22


def test_sweeps_are_counted(home: Path) -> None:
    for slot in ("1", "2"):
        (home / "sweeps" / "grid" / "slots" / slot).mkdir(parents=True)
    (home / "sweeps" / "grid" / "slots" / "1" / "trial.json").write_text("{}")
    frame = look(home, Reader(), NOW)
    assert frame.sweeps == ("sweep grid: 1 trial done, 1 begun",)
    assert frame.sweeps[0] in shown(frame) and frame.sweeps[0] in page.render(frame, None)


def test_curves_and_durations() -> None:
    assert mean_curve([[1.0, 3.0], [3.0, 5.0, 7.0, 9.0]], 2) == [(1 + 4) / 2, (3 + 8) / 2]
    assert mean_curve([[], [2.0]], 24) == [2.0] and mean_curve([], 24) == []
    assert terminal.spark([0.0, 0.5, 1.0, 2.0], 1.0) == "▁▅██" and terminal.spark([0.0], 0.0) == "▁"
    assert [duration(s) for s in (-1, 59.7, 95, 7500, 200_000)] == [
        "0 s",
        "1 min 00 s",
        "1 min 35 s",
        "2 h 05 min",
        "2 d 7 h",
    ]


@pytest.mark.system
def test_a_run_that_is_at_work_is_killed_and_finishes(tmp_path: Path) -> None:
    """A real one of the smoke scale, watched by the command in a process of its own until that is ended."""
    names = ["scale=smoke", "task=countdown", "base.iterations=10", "data.split_sizes.base=200"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def bapo(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bapo", *words]
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def done(*words: str) -> None:
        process = bapo(*words)
        said = process.communicate(timeout=1200)
        assert process.returncode == 0, said

    settings = json.dumps({"scale": "smoke", "methods": ["grpo"], "seeds": [1]})
    study = tmp_path / "results" / "smoke" / "studies" / "table1.json"
    command = [sys.executable, "-m", "bapo.experiments.studies", "table1", "--settings", settings, "--out", str(study)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    home, out = study.parents[1], tmp_path / "page.html"
    content = json.loads(study.read_text())
    content["cells"] = [c for c in content["cells"] if c["task"] == "countdown"]
    content["bases"] = [b for b in content["bases"] if b["task"] == "countdown"]
    study.write_text(json.dumps(content))
    run = tmp_path / content["cells"][0]["run"]
    done("data", *names)
    done("base", *names)
    train = ["train", *names, "method=grpo", "seed=1", "train.steps=4000", "checkpoint.every=20", "tracking=none"]
    log = home / "logs" / "train" / "countdown" / run.parts[-3] / "grpo" / "seed1.log"
    log.parent.mkdir(parents=True)
    training = bapo(*train)
    watching = bapo("watch", str(home), "--page", str(out), "--every", "0.5")
    try:
        end = time.monotonic() + 1200
        while not ((run / "steps.parquet").exists() and out.exists() and "1 running" in out.read_text()):
            assert training.poll() is None and watching.poll() is None and time.monotonic() < end
            time.sleep(0.2)
        at_work = look(home, Reader(), time.time())
        assert [a.state for a in at_work.active] == ["running"] and at_work.active[0].curve
        training.kill()
        training.communicate()
        assert look(home, Reader(), time.time()).counts["train"]["stopped"] == 1
        while "1 stopped" not in re.sub(r"<[^>]+>", "", out.read_text()):
            assert watching.poll() is None and time.monotonic() < end
            time.sleep(0.2)
        watching.terminate()
        said, wrong = watching.communicate(timeout=300)
        assert watching.returncode == 0 and "1 stopped" in said, wrong
        assert "nobody watches now" in out.read_text()
    finally:
        for process in (training, watching):
            process.kill()
            process.communicate()
    shutil.rmtree(run)
    done(*(word for word in train if word != "train.steps=4000"))
    frame = look(home, Reader(), time.time())
    assert frame.counts["train"]["done"] == 1 and frame.groups[0].curve and not frame.active
