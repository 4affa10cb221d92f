"""Snakemake as a user starts it, in a folder of a test."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.paths import ROOT

#: sizes of all three tasks with which a run takes seconds
SMALL = ["data.split_sizes.base=1000", "data.split_sizes.train=48", "data.split_sizes.probe=8", "probe.prompts=8"]
SMALL += ["train.batch_size=8", "train.mini_batch_size=4", "checkpoint.every=2"]
#: ``gpu_python`` of a pretended environment; spaces are escaped, since Snakemake takes a quote off the end of a value
GPU_PYTHON = " ".join(str(word).replace(" ", r"\ ") for word in (sys.executable, ROOT / "tests/support/gpu_python.py"))
#: seconds for anything to happen; only a machine that does much else comes near
PATIENCE = 900


def command(*words: str, file: Path = ROOT / "Snakefile") -> list[str]:
    return [sys.executable, "-m", "snakemake", "-s", str(file), *words]


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}


def snakemake(
    folder: Path, *words: str, file: Path = ROOT / "Snakefile", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; what it said is in the result."""
    known, whole = environment(**variables), command(*words, file=file)
    return subprocess.run(whole, cwd=folder, env=known, capture_output=True, text=True, timeout=PATIENCE)


# ------------------------------------------------------------------------------------------------ dry runs

#: children of one clean process that has imported what a dry run takes: the imports are two thirds of its time
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["snakemake.cli", "bapo.experiments.studies", "bapo.describe", "bapo.plan.resources"])


def dry_run(
    folder: Path, *words: str, file: Path = ROOT / "Snakefile", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``snakemake -n`` in a child of a process that has imported it; what it said is in the result."""
    with tempfile.TemporaryDirectory() as said:
        streams = [Path(said, name) for name in ("stdout", "stderr")]
        given = ["-n", "-s", str(file), *words]
        child = FORKS.Process(target=_snakemake, args=(folder, given, environment(**variables), streams))
        child.start()
        child.join(PATIENCE)
        assert child.exitcode is not None, f"{given} is not done"
        return subprocess.CompletedProcess(given, child.exitcode, *(stream.read_text() for stream in streams))


def _snakemake(folder: Path, words: Sequence[str], known: Mapping[str, str], streams: Sequence[Path]) -> None:
    from snakemake.cli import main

    from bapo.experiments import places

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(known)
    sys.path[:0] = known["PYTHONPATH"].split(os.pathsep)
    places.EXPERIMENTS = Path(known.get("BAPO_EXPERIMENTS", places.suite_folder() / "experiments"))
    for descriptor, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), descriptor)
    main(list(words))
