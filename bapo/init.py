"""``bapo init``: a project that runs as it is."""

from __future__ import annotations

import shutil
import sys
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
    print(f"Now: cd {folder} && bapo run scale=smoke", file=sys.stderr)
