"""Every command of the pages is run, as far as its cost allows.

A block of commands is one test: its lines run in order, in a folder that looks like a reader's checkout. Dry runs of
Snakemake take seconds, so all targets that the pages ask for with the same options are asked for together. A command
that no function here knows fails its block.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from support.pages import Block, blocks, commands, example, write_rows
from support.paths import ROOT
from support.runs import place, write_run

from bapo.project import MARK
from bapo.store.files import MANIFEST, write_json

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
#: words in capitals that stand for a reader's own
PLACEHOLDERS = {"LOG": "log", "RESPONSES": "responses", "CHECKPOINT": "checkpoint", "CHECKOUT": ".", "ROOM": "store"}
#: projects whose files the pages show
PROJECTS = {
    "sums": [
        ("python", "tasks/sums.py"),
        ("yaml", "experiments/task/sums.yaml"),
        ("yaml", "experiments/setting/laptop_sums.yaml"),
    ],
    "capitals": [
        ("yaml", "experiments/task/capitals.yaml"),
        ("yaml", "experiments/setting/laptop_capitals.yaml"),
        ("python", "tasks/capitals.py"),
    ],
}
LINES = {"capitals": {"gold": "Lima", "response": "<answer>Lima</answer>"}}
BLOCKS = [b for b in blocks() if b.language == "sh"]


class Unknown(AssertionError):
    """A command that cannot be run here."""


def filled(words: Sequence[str]) -> list[str]:
    """The words with their placeholders replaced. Raises Unknown for capitals that PLACEHOLDERS lacks."""
    text = "\0".join(words)
    for name in re.findall(r"(?<![\w$])[A-Z]{2,}(?![\w=])", text):
        if name not in PLACEHOLDERS:
            raise Unknown(f"{name}: no value for this placeholder; add one to PLACEHOLDERS")
        text = re.sub(rf"\b{name}\b", PLACEHOLDERS[name], text)
    return text.split("\0")


# ------------------------------------------------------------------------------------------------ a reader's checkout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like this checkout, with the README's example method installed and a few made-up results."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in ("experiments", "results", "wandb"):
            (folder / path.name).symlink_to(path)
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    method = example("yaml", "experiments/method/positive_only.yaml")
    (folder / "experiments" / "method" / "positive_only.yaml").write_text(method, encoding="utf-8")
    information = folder / "site" / "positive_only-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: positive-only\nVersion: 1.0\n", encoding="utf-8"
    )
    points = "[bapo.methods]\npositive_only = positive_only:PositiveOnly\n"
    (information / "entry_points.txt").write_text(points, encoding="utf-8")
    for page in ("table", "paper", "my_claims"):
        (folder / f"{page}.yaml").write_text(example("yaml", f"{page}.yaml"), encoding="utf-8")
    for name, files in PROJECTS.items():
        for language, file in files:
            path = folder / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(example(language, file), encoding="utf-8")
        (folder / name / MARK).write_text("scale: laptop\n", encoding="utf-8")
        line = LINES.get(name, {})
        (folder / name / "responses.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    write_rows(folder / "capitals" / "sets")
    code = example("python", "bapo/methods/positive_only.py")
    (folder / "site" / "positive_only.py").write_text(code, encoding="utf-8")
    write_results(folder)
    return folder


def write_results(folder: Path) -> None:
    """results/laptop with two runs and their table, and the files that PLACEHOLDERS stand for."""
    cells = []
    for method in ("grpo", "bapo"):
        run = place(folder, method, 1, model="qwen2-112k")
        write_run(run, {"cd34": [[0, 1]] * 4, "cd4": [[0, int(method == "bapo")]] * 4})
        write_json(run / MANIFEST, {"identity": "synthetic", "seed": 1})
        cells.append({"task": "countdown", "model": "qwen2-112k", "method": method, "seed": 1, "run": str(run)})
    home = folder / "results" / "laptop"
    benchmarks = {"countdown": [["cd34", "CD-34"], ["cd4", "CD-4"]]}
    write_json(home / "studies" / "table1.json", {"scale": "laptop", "cells": cells, "benchmarks": benchmarks})
    run_module("analysis", "table1", "--study", str(home / "studies" / "table1.json"), "--out", str(home / "tables"))
    log = "".join(json.dumps({"id": f"p{i}", "acc_history": [i % 9 / 8, 0.5]}) + "\n" for i in range(128))
    (folder / "log.jsonl.gz").write_bytes(gzip.compress(log.encode()))
    metrics = "".join(f"step:{i} - critic/score/mean:{i / 4} - actor/lr:1e-06\n" for i in (1, 2))
    (folder / "verl.log").write_text(metrics, encoding="utf-8")
    history = [{"step": i, "reward": i / 4, "rewards/accuracy/mean": i / 4} for i in (1, 2)]
    write_json(folder / "trainer_state.json", {"log_history": history})
    write_json(folder / "results_gsm8k.json", {"results": {"gsm8k": {"exact_match,none": 0.5}}})
    response = {"numbers": [1, 2], "target": 3, "response": "<answer>1+2</answer>"}
    (folder / "responses.jsonl").write_text(json.dumps(response) + "\n", encoding="utf-8")


def run_module(name: str, *words: str) -> None:
    """``python -m name words``, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *words])
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            assert not end.code, f"exit status {end.code}"


def run(folder: Path, *words: str, **variables: str) -> str:
    """The standard output of a command in ``folder``, which must succeed."""
    path = os.pathsep.join([str(folder / "site"), str(folder)])
    known = {**os.environ, "PYTHONPATH": path, "BAPO_EXPERIMENTS": str(folder / "experiments"), **variables}
    done = subprocess.run(words, cwd=folder, env=known, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


# ------------------------------------------------------------------------------------------------ how each is run


def pip(folder: Path, command: str, *words: str) -> None:
    """Nothing is installed: the extras and files that are named must exist."""
    named = dict(pairwise(words))
    assert command == "install" and {"-e", "-r"} & set(named)
    if file := named.get("-r"):
        assert (folder / file).stat().st_size
    if project := named.get("-e"):
        extras = re.fullmatch(r"\.(?:\[([\w,]+)\])?", project)[1]
        assert extras is None or set(extras.split(",")) <= set(EXTRAS)
    known = {"-e", "-r", file, project, "--no-deps", "--no-build-isolation"}
    assert set(words) <= known


def python(folder: Path, *words: str) -> None:
    """Jobs print their configuration, benchmarks their options; every other module runs."""
    if words[0] != "-m":
        shown = run(folder, sys.executable, words[0], "--help")
        assert all(word in shown if word.startswith("-") else (ROOT / word).exists() for word in words[1:])
        return
    _, module, *rest = words
    if Path(MARK).exists():  # problems of a project take seconds
        own = {"PYTHONPATH": str(ROOT), "BAPO_EXPERIMENTS": str(ROOT / "experiments")}
        run(Path.cwd(), sys.executable, "-m", module, *rest, **own)
        return
    if module == "bapo" and rest[0] in ("data", "base", "train", "evaluate") and "--cfg" not in rest:
        rest += ["--cfg", "job"]
    if rest[:1] in (["gpu-check"], ["demo"]):  # minutes
        rest += ["--help"]
    if rest[:1] == ["watch"] and "--once" not in rest:  # it does not end by itself
        rest += ["--once"]
    if rest[:1] == ["train"] and {"scale=paper", "scale=single_gpu", "engine=verl"} & set(rest):
        pytest.importorskip("verl", reason="the configuration that is printed is verl's")
    files = {word: sorted(map(str, folder.glob(word))) for word in rest if "*" in word}
    run_module(module, *(word for pattern in rest for word in files.get(pattern, [pattern])))


def bapo(folder: Path, *words: str) -> None:
    """``bapo`` as installed; what ``bapo init`` writes goes into an empty folder."""
    if words[0] == "init":
        shutil.rmtree(folder / words[1], ignore_errors=True)
    python(folder, "-m", "bapo", *words)


def snakemake(folder: Path, *words: str) -> None:
    """Run with the other targets: test_a_dry_run_finds_the_targets. In a project a dry run here."""
    if Path(MARK).exists():
        own = {"PYTHONPATH": str(ROOT), "BAPO_EXPERIMENTS": str(ROOT / "experiments")}
        listed = run(Path.cwd(), sys.executable, "-m", "snakemake", "-n", *words, **own)
        assert "Job stats" in listed
        return
    options, targets = split(words)
    assert targets and set(targets) <= DRY_RUNS[options]


def collect(folder: Path, *words: str) -> None:
    """Tests are collected. Without a path those of this folder are: the whole takes half a minute."""
    paths = [word for word in words if (ROOT / word).exists()] or ["tests/docs"]
    if any("vllm" in path for path in paths):
        pytest.importorskip("vllm", reason="these tests need vLLM, and without it nothing is collected")
    run(ROOT, sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words, *paths)


def pipeline(folder: Path, *words: str) -> None:
    """Run by a shell; Slurm's two commands are small scripts, and only this suite's job may be cancelled."""
    assert {words[0], *(b for a, b in pairwise(words) if a == "|")} <= {"grep", "squeue", "awk", "xargs"}
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name, script in {"squeue": "echo '11 bapo_x'; echo '12 other'", "scancel": 'echo "$@" > cancelled'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    text = " ".join(word if word in ("|", ">") else shlex.quote(word) for word in words)
    run(folder, "bash", "-o", "pipefail", "-c", text, PATH=f"{programs}:{os.environ['PATH']}")
    if words[0] == "squeue":
        profile = yaml.safe_load((ROOT / "workflows/profiles/slurm/config.yaml").read_text(encoding="utf-8"))
        assert profile["slurm-jobname-prefix"] == "bapo" and (folder / "cancelled").read_text() == "11\n"


def style(program: str) -> Callable[..., None]:
    return lambda folder, *words: run(ROOT, program, *words)


RUNNERS: dict[str, Callable[..., None]] = {
    "pip": pip,
    "uv": lambda folder, tool, *words: {"pip": pip}[tool](folder, *words),
    "python": python,
    "bapo": bapo,
    "cd": lambda folder, place: os.chdir(folder / place),
    "snakemake": snakemake,
    "pytest": collect,
    "ruff": style("ruff"),
    "snakefmt": style("snakefmt"),
    "grep": pipeline,
    "squeue": pipeline,
}


def run_command(folder: Path, words: Sequence[str]) -> None:
    """Run one command as its runner does. Raises Unknown where there is none."""
    while re.match(r"[A-Z_]+=", words[0]):  # variables for the command
        words = words[1:]
    program, *rest = filled(words)
    if program not in RUNNERS:
        raise Unknown(f"no way to run {shlex.join(words)!r} is known; add one to RUNNERS")
    RUNNERS[program](folder, *rest if program not in ("grep", "squeue") else (program, *rest))


@pytest.mark.system
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_runs(block: Block, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    for words in commands(block):
        run_command(checkout, words)


@pytest.mark.parametrize("words", [["make", "all"], ["python", "-m", "bapo", "grade", "NOVEL.jsonl"], ["uv", "sync"]])
def test_what_cannot_be_run_fails(words: list[str], checkout: Path) -> None:
    with pytest.raises((Unknown, KeyError)):
        run_command(checkout, words)


# ------------------------------------------------------------------------------------------------ dry runs


def split(words: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """(options, targets) of a call of Snakemake, without the number of cores and -n."""
    options: list[str] = []
    targets: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--cores":
            rest.pop(0)
        elif word == "--workflow-profile":
            options += [word, rest.pop(0)]
        elif word == "--config":
            options += [word, *sorted(rest)]
            rest = []
        elif word != "-n":
            assert not word.startswith("-"), f"snakemake {word}: unknown here"
            targets.append(word)
    return tuple(options), targets


def dry_runs() -> dict[tuple[str, ...], set[str]]:
    """The targets of all pages by the options that they are given with."""
    found: dict[tuple[str, ...], set[str]] = {}
    here = [block for block in BLOCKS if not any(words[0] == "cd" for words in commands(block))]
    for words in (words for block in here for words in commands(block) if words[0] == "snakemake"):
        options, targets = split(words[1:])
        found.setdefault(options, set()).update(targets)
    return found


DRY_RUNS = dry_runs()


@pytest.mark.system
@pytest.mark.parametrize("options", DRY_RUNS, ids=" ".join)
def test_a_dry_run_finds_the_targets(options: tuple[str, ...], checkout: Path) -> None:
    listed = run(checkout, sys.executable, "-m", "snakemake", "-n", *sorted(DRY_RUNS[options]), *options)
    assert "Job stats" in listed and re.search(r"^total +\d+$", listed, re.MULTILINE)
