"""Through a real Slurm on the loopback: the table is right although jobs fail, are cancelled, and a node drains.

Needs root and Debian's slurm-wlm and munge (tests/support/slurm/install); skips elsewhere, with a reason. Mostly
waiting.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest
from support.paths import ROOT
from support.workflow import PATIENCE, environment
from support.world import TINY

SLURM = Path("/etc/slurm/slurm.conf")
HELPERS = ROOT / "tests/support/slurm"
T = TypeVar("T")
#: why a job waits for a node that drains, in Slurm's words
DRAINED = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")

#: Table 1 made small: one task, two methods, one figure
STUDY = """
name: table1
title: Table 1
tables: [table1]
figures: [figure9_cumulative_rollouts]
scales:
  smoke:
    - {task: countdown, models: [qwen2-112k], methods: [grpo, bapo], seeds: [1]}
"""
WAITING = "{algorithm: waiting.py:Waiting, name: grpo, title: +GRPO}"


def small(*changes: str) -> list[str]:
    """Return the overrides of the tiny world that may be set for single jobs, with these for those of the same keys."""
    other = tuple(f"{change.partition('=')[0]}=" for change in changes)
    return [*(o for o in TINY if not o.startswith(("scale=", "tracking=", *other))), *changes]


TABLE1 = ("table1", "--config", "scale=smoke", f"set={small('evaluation.samples=4', 'train.steps=12')}")


def reason() -> str:
    """Why there is no Slurm to be had here; "" where there is."""
    if os.geteuid() != 0:
        return "needs root, to start Slurm's daemons"
    missing = [name for name in ("slurmctld", "slurmd", "munged", "runuser") if not shutil.which(name)]
    if missing:
        return f"needs {', '.join(missing)} (tests/support/slurm/install)"
    return "this machine has its own Slurm" if SLURM.exists() and not SLURM.is_symlink() else ""


pytestmark = [pytest.mark.system, pytest.mark.skipif(bool(reason()), reason=reason() or "-")]


def call(*words: object) -> str:
    """The output of one of Slurm's commands."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def until(condition: Callable[[], T], process: subprocess.Popen | None = None) -> T:
    """What ``condition`` says as soon as it says anything; fails when ``process`` ends before."""
    for _ in range(PATIENCE * 4):
        if found := condition():
            return found
        assert process is None or process.poll() is None, "Snakemake ended early"
        time.sleep(0.25)
    pytest.fail("nothing happened")


def jobs(*states: str, kind: str = "") -> list[SimpleNamespace]:
    """Slurm's jobs in these states (default all) whose name in Snakemake begins with ``kind``, oldest first."""
    lines = call("squeue", "--states=all", "--sort=i", "-h", "-o", "%i|%T|%k|%r").splitlines()
    keys = ("id", "state", "kind", "why")
    found = [SimpleNamespace(**dict(zip(keys, line.split("|"), strict=True))) for line in lines]
    for job in found:
        job.kind = job.kind.removeprefix("rule_")
    return [job for job in found if job.kind.startswith(kind) and (not states or job.state in states)]


def facts(job: SimpleNamespace) -> dict[str, str]:
    """What Slurm knows of a job."""
    return dict(word.split("=", 1) for word in call("scontrol", "-o", "show", "job", job.id).split() if "=" in word)


def output_of(job: SimpleNamespace) -> str:
    path = Path(facts(job)["StdOut"])
    return path.read_text(encoding="utf-8") if path.exists() else ""


def snakemake(folder: Path, *words: str, file: Path = ROOT / "Snakefile", **variables: str) -> subprocess.Popen:
    """Snakemake in ``folder``, its output in run.log there."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "experiments", folder / "experiments", dirs_exist_ok=True)
    (folder / "experiments" / "study" / "table1.yaml").write_text(STUDY, encoding="utf-8")
    shutil.copy(HELPERS / "waiting.py", folder)
    (folder / "experiments" / "method").mkdir(exist_ok=True)
    (folder / "experiments" / "method" / "grpo.yaml").write_text(WAITING, encoding="utf-8")
    known = environment(BAPO_EXPERIMENTS=str(folder / "experiments"), **variables)
    with open(folder / "run.log", "a", encoding="utf-8") as log:
        command = [sys.executable, str(HELPERS / "often.py"), "-s", str(file), *words]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=known)
    STARTED.append(process)
    return process


#: every Snakemake of these tests: none outlives them
STARTED: list[subprocess.Popen] = []

#: the profile as users have it, but for one task, with a Slurm job for every run
PROFILE = (
    *("--workflow-profile", str(ROOT / "workflows/profiles/slurm"), "--retries", "1", "--latency-wait", "10"),
    *("--group-components", "start=1", "runs=1", "analysis=100"),
)

#: what the profile says of a rule where Slurm knows --gres alone
ONLY_GRES = ("only_gres:gpu=0", "only_gres:gres='gpu:1'")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running Slurm of one node with two GPUs, and a folder to work in; both daemons end with the tests."""
    folder = tmp_path_factory.mktemp("slurm")
    alone = open("/run/lock/bapo-slurm-tests", "w")  # noqa: SIM115 (until the daemons are down)
    fcntl.flock(alone, fcntl.LOCK_EX)  # a machine has one /etc/slurm: two checkouts' tests come one after the other
    try:
        up = subprocess.run([HELPERS / "up", folder / "daemons"], capture_output=True, text=True, timeout=900)
        assert up.returncode == 0, up.stderr
        yield folder
    finally:
        for process in STARTED:
            process.terminate()
        subprocess.run([HELPERS / "down", folder / "daemons"], timeout=900)
        for process in STARTED:
            process.kill()
        alone.close()


@pytest.fixture(scope="module")
def promises(slurm: Path) -> Iterator[Path]:
    """The jobs of tests/support/slurm/Snakefile under way, and the folder of their results."""
    folder = slurm / "promises"
    process = snakemake(folder, *PROFILE, "--set-resources", *ONLY_GRES, file=HELPERS / "Snakefile")
    yield folder
    end(process, folder)


def end(process: subprocess.Popen, folder: Path) -> int:
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"Snakemake did not end: {(folder / 'run.log').read_text(encoding='utf-8')[-3000:]}")


def content(path: Path) -> list[dict[str, str]] | str:
    """What a table says; of the rows of a CSV file all but how long the training took."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".csv":
        return text
    return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(text.splitlines())]


def test_a_preempted_job_waits_again(promises: Path) -> None:
    """Snakemake goes on waiting for the same job, which starts a second time. First, as the job waits ten minutes."""
    until((promises / "begun").exists)
    (job,) = jobs("RUNNING", kind="preempted")
    call("scontrol", "requeue", job.id)
    said = promises / "preempted.txt"
    until(said.exists)
    assert said.read_text(encoding="utf-8").strip() == "again"
    assert [one.id for one in jobs(kind="preempted")] == [job.id] and facts(job)["Restarts"] == "1"


def test_the_table_survives_the_cluster(slurm: Path, promises: Path) -> None:
    alone, folder = slurm / "alone", slurm / "table1"
    undisturbed = snakemake(alone, "--cores", "1", *TABLE1)
    runs = folder / "results/smoke/countdown/qwen2-112k"
    blocked = runs / "bapo/seed1/config.yaml"
    blocked.mkdir(parents=True)  # where a file is to be: BAPO's job fails
    (node,) = call("sinfo", "-h", "-N", "-o", "%N").split()[:1]

    go = folder / "go"
    process = snakemake(folder, *TABLE1, *PROFILE, WAIT_FOR=str(go))
    until(lambda: jobs("RUNNING", kind="start"), process)
    call("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    until(lambda: jobs("COMPLETED", kind="start"), process)  # what runs on a draining node may end
    until(lambda: [job.why.startswith(DRAINED) for job in jobs("PENDING", kind="runs")] == [True, True], process)
    assert not jobs("RUNNING", "COMPLETED", kind="runs")
    call("scontrol", "update", f"nodename={node}", "state=resume")

    def grpo() -> list[SimpleNamespace]:
        return [job for job in jobs("RUNNING", kind="runs") if "Train: grpo" in output_of(job)]

    (first,) = until(grpo, process)
    until(lambda: list(runs.glob("grpo/seed1/checkpoints/*")), process)
    call("scancel", first.id)
    (second,) = until(lambda: [job for job in grpo() if job.id != first.id], process)
    asked, more = facts(first), facts(second)
    assert asked["JobState"] == "CANCELLED"
    assert (asked["TimeLimit"], asked["MinMemoryNode"]) == ("02:00:00", "1500M")  # an hour for each of two
    assert (more["TimeLimit"], more["MinMemoryNode"]) == ("04:00:00", "3000M")
    go.touch()
    assert end(process, folder) == 1
    log = (folder / "run.log").read_text(encoding="utf-8")
    assert re.search(r"Not finished: \S+\.log says why", log)
    assert "config.yaml is a folder where a file of this job belongs" in log  # the failed job's own words
    assert not (folder / "results/smoke/tables/table1.csv").exists()

    blocked.rmdir()
    trained = (runs / "grpo/seed1/summary.json").stat().st_mtime_ns
    assert end(snakemake(folder, *TABLE1, *PROFILE), folder) == 0
    assert (runs / "grpo/seed1/summary.json").stat().st_mtime_ns == trained  # what is there is not made again
    assert end(undisturbed, alone) == 0, (alone / "run.log").read_text(encoding="utf-8")[-3000:]
    for name in ("table1.csv", "table1.md", "table1_differences.csv"):
        found, wanted = (content(place / "results/smoke/tables" / name) for place in (folder, alone))
        assert found == wanted, name


def test_jobs_that_share_nothing_and_get_more(promises: Path) -> None:
    """Two GPU jobs at once see a GPU each; out of memory and out of time, the second attempt has twice as much."""
    until(lambda: all((promises / f"{name}.txt").exists() for name in ("gpu1", "gpu2", "hungry", "slow")))
    found = {name: (promises / f"{name}.txt").read_text(encoding="utf-8").strip() for name in ("gpu1", "gpu2")}
    assert sorted(found.values()) == ["0", "1"]
    assert (promises / "hungry.txt").read_text(encoding="utf-8").strip() == "1000"
    assert (promises / "slow.txt").read_text(encoding="utf-8").strip() == "2"
    until(lambda: jobs("COMPLETED", kind="slow") and jobs("COMPLETED", kind="hungry"))  # later than their files
    assert [job.state for job in jobs(kind="slow")] == ["TIMEOUT", "COMPLETED"]
    killed, made = jobs(kind="hungry")
    assert made.state == "COMPLETED"
    assert "exceeded memory limit" in output_of(killed)
    assert {facts(job)["Partition"] for job in jobs(kind="gpu")} == {"gpu"}
    assert {facts(job)["Partition"] for job in jobs(kind="slow")} == {"cpu"}


def test_a_run_knows_when_slurm_ends_its_job(promises: Path) -> None:
    said = promises / "end.txt"
    until(lambda: said.exists() and said.read_text(encoding="utf-8").count("\n") == 2)
    end, number = said.read_text(encoding="utf-8").split()
    begun = time.mktime(time.strptime(facts(SimpleNamespace(id=number))["StartTime"], "%Y-%m-%dT%H:%M:%S"))
    assert float(end) == begun + 7 * 60


def test_gpus_by_gres_alone(promises: Path) -> None:
    said = promises / "only_gres.txt"
    until(said.exists)
    assert said.read_text(encoding="utf-8").strip() in ("0", "1")
    (job,) = jobs(kind="only_gres")
    found = facts(job)
    assert re.fullmatch("gres[:/]gpu:1", found["TresPerNode"]) and "TresPerJob" not in found
    assert found["Partition"] == "gpu"


def test_a_preempted_run_writes_its_checkpoint_in_the_time_of_grace(slurm: Path) -> None:
    """Owners of its partition take its node: every process of the job gets SIGTERM, and a minute later SIGKILL."""
    folder = slurm / "preempted"
    target = "results/smoke/countdown/qwen2-112k/grpo/seed1/summary.json"
    log = folder / "results/smoke/logs/train/countdown/qwen2-112k/grpo/seed1.log"
    where = ("--set-resources", "train:slurm_partition=scavenger")
    settings = ("--config", "scale=smoke", f"set={small('train.steps=8', 'checkpoint.every=20')}")
    process = snakemake(folder, target, *PROFILE, *where, *settings, WAIT_FOR=str(folder / "go"))
    until(lambda: log.exists() and "step 2/8" in log.read_text(encoding="utf-8"), process)
    (first,) = jobs("RUNNING", kind="runs")
    call("sbatch", "-p", "owners", "--exclusive", "-D", folder, "-o", "/dev/null", "--wrap", "sleep 1")
    until(lambda: facts(first)["PreemptTime"] != "None", process)
    (folder / "go").touch()
    assert end(process, folder) == 0, (folder / "run.log").read_text(encoding="utf-8")[-3000:]
    assert "going on after step 3" in log.read_text(encoding="utf-8")
    assert [job.state for job in jobs(kind="runs")[-2:]] == ["FAILED", "COMPLETED"]


def test_an_image_that_is_not_there_is_told_before_anything_is_submitted(slurm: Path) -> None:
    folder = slurm / "image"
    before = len(jobs())
    target = "results/smoke/countdown/data/summary.json"
    settings = ("scale=smoke", "gpu_python=apptainer exec --nv bapo.sif python")
    assert end(snakemake(folder, target, "--config", *settings, *PROFILE), folder) == 1
    log = (folder / "run.log").read_text(encoding="utf-8")
    assert f"there is no {folder}/bapo.sif; build it with apptainer build" in log and "Traceback" not in log
    assert len(jobs()) == before


def test_a_run_longer_than_its_jobs(slurm: Path) -> None:
    """Jobs on GPUs run by gpu_python on the GPU that Slurm gives them; a run goes on from job to job."""
    folder, seen = slurm / "environments", slurm / "environments" / "jobs"
    seen.mkdir(parents=True)
    few = ("train.steps=2", "base.iterations=20", "evaluation.samples=2")
    short = small(*few, "checkpoint.job_minutes=0.17")  # ten seconds are for its end
    script = folder / r"a\b c'd$(touch e)" / "gpu_python.py"  # no shell between here and the job reads it
    script.parent.mkdir()
    script.symlink_to(ROOT / "tests" / "support" / "gpu_python.py")
    gpu_python = json.dumps([sys.executable, str(script)])
    target = "results/smoke/countdown/qwen2-112k/grpo/seed1/eval/summary.json"
    settings = ("scale=smoke", "device=cuda", "tracking=none", f"gpu_python={gpu_python}", f"set={short}")
    words = (*PROFILE, "--retries", "6", target, "--config", *settings)
    assert end(snakemake(folder, *words, PRETENDED=str(seen)), folder) == 0, (folder / "run.log").read_text()[-3000:]
    jobs_seen = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(seen.glob("*.json"))]
    assert [job["command"] for job in jobs_seen[:1] + jobs_seen[-1:]] == ["base", "evaluate"]
    training = [job for job in jobs_seen if job["command"] == "train"]
    assert len(training) >= 2  # each took what steps its time allowed, and a checkpoint
    assert {job["gpus"] for job in jobs_seen} <= {"0", "1"}
    assert len({job["slurm"] for job in jobs_seen}) == len(jobs_seen)
    log = (folder / "results/smoke/logs/train/countdown/qwen2-112k/grpo/seed1.log").read_text(encoding="utf-8")
    assert "going on after step" in log
    # the problems need no GPU: made by the interpreter that submits
    assert (folder / "results/smoke/countdown/data/summary.json").exists()
