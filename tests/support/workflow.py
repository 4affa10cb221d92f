"""Snakemake as a user starts it, in a folder of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

#: sizes of all three tasks with which a run takes seconds
SMALL = ["data.split_sizes.base=1000", "data.split_sizes.train=48", "data.split_sizes.probe=8", "probe.prompts=8"]
SMALL += ["train.batch_size=8", "train.mini_batch_size=4", "checkpoint.every=2"]
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
