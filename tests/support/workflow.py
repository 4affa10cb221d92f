"""Snakemake as a user starts it, in a folder of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

#: seconds for anything to happen; only a machine that does much else comes near
PATIENCE = 3600


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
