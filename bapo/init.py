"""What a user begins with: ``bapo demo``, a first look at Table 1, and ``bapo init``, a project that runs as it is."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bapo.errors import UserError
from bapo.experiments.places import suite_folder

TEMPLATE = Path(__file__).parent / "templates" / "project"


def write(folder: Path) -> list[str]:
    """Write the project into a new or empty folder. Returns its files. Raises UserError where something lies there."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: is not empty; name a new folder")
    shutil.copytree(TEMPLATE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(suite_folder() / "workflows" / "profiles", folder / "profiles")
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def main(folder: Path) -> None:
    """Write the project and say what to do next."""
    for file in write(folder):
        print(f"  {file}")
    print(f"Now: cd {folder} && snakemake --cores all --config scale=smoke", file=sys.stderr)


def demo(config: Sequence[str]) -> None:
    """Become Snakemake, so that signals and the exit status are its own. config: words of its ``--config``."""
    suite = suite_folder()
    words = [sys.executable, "-m", "snakemake", "--snakefile", str(suite / "Snakefile"), "first_look"]
    words += ["--workflow-profile", str(suite / "workflows" / "profiles" / "default")]
    os.execv(words[0], [*words, *(["--config", *config] if config else [])])
