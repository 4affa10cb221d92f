"""``bapo init``: writes a project with a task that trains and gives a table without further changes."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from string import Template

from bapo.errors import UserError, require_extra
from bapo.experiments.places import suite_folder

TEMPLATES = Path(__file__).parent / "templates"
#: kind of task -> the name of the example's task and study, and the extra and package that it needs
TASKS = {
    "generator": ("ordering", "", ""),
    "rows": ("capitals", "gguf", "gguf"),
    "reasoning-gym": ("chain_sum", "gym", "reasoning_gym"),
}


def write(folder: Path, task: str = "generator") -> list[str]:
    """Write the project into a new or empty folder and return its files. Raises UserError for another folder.

    task: a key of TASKS.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: is not empty; name a new folder")
    for template in ("project", task.replace("-", "_")):
        shutil.copytree(TEMPLATES / template, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(suite_folder() / "workflows" / "profiles", folder / "profiles")
    for file in (folder / "README.md", folder / "Snakefile"):
        text = Template(file.read_text(encoding="utf-8")).substitute(task=TASKS[task][0])
        file.write_text(text, encoding="utf-8")
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def main(folder: Path, task: str) -> None:
    """Write the project and print the next command. task: a key of TASKS.

    Raises UserError where ``folder`` is not empty or cannot be written, or the task's extra is not installed.
    """
    _, extra, package = TASKS[task]
    if extra:
        require_extra(extra, package)
    try:
        files = write(folder, task)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error}); name another folder") from None
    print(*(f"  {file}" for file in files), sep="\n")
    place = f"./{folder}" if str(folder).startswith("-") else str(folder)  # cd takes -x as an option
    print(f"Now: cd {shlex.quote(place)} && bapo run scale=smoke", file=sys.stderr)
