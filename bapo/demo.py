"""``bapo demo``: the first look alone, in minutes: four rows of Table 1 with one seed, and a picture of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from bapo.experiments.places import suite_folder
from bapo.experiments.products import FIRST_LOOK


def command(settings: Sequence[str]) -> list[str]:
    """Return the words that make it with Snakemake in this folder. settings: what follows ``--config``."""
    suite = suite_folder()
    words = [sys.executable, "-m", "snakemake", "--snakefile", str(suite / "Snakefile"), FIRST_LOOK.name]
    words += ["--workflow-profile", str(suite / "workflows" / "profiles" / "default")]
    return [*words, *(["--config", *settings] if settings else [])]


def main(settings: Sequence[str]) -> int:
    """Become that command, so that signals and the exit status are Snakemake's."""
    words = command(settings)
    os.execv(words[0], words)
