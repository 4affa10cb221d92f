"""Who made the runs behind the pages: ``python evidence/table.py`` prints the table of ``evidence/README.md``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

HERE = Path(__file__).resolve().parent
HEAD = ("study", "runs", "seeds", "hours", "commit", "processor", "torch", "begun")


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a row each study, whose evidence may be several files."""
    studies: dict[str, list[dict]] = {}
    for file in sorted(HERE.glob("*/*.zip")):
        name = f"{file.parent.name}/{re.sub(r'_[0-9]+$', '', file.stem)}"
        with ZipFile(file) as archive:
            studies.setdefault(name, []).append(json.loads(archive.read("about.json")))
    for name, parts in studies.items():
        hours = sum(part["seconds_training"] + part["seconds_evaluation"] for part in parts) / 3600
        sets = (
            {code["commit"][:8] if code["commit"] else "not recorded" for part in parts for code in part["code"]},
            {machine["processor"].replace("(R)", "") for part in parts for machine in part["hardware"]},
            {packages["torch"] for part in parts for packages in part["packages"]},
        )
        seeds = {seed for part in parts for seed in part["seeds"]}
        begun = min(part["started"] for part in parts)[:10]
        numbers = (str(sum(part["runs"] for part in parts)), str(len(seeds)), f"{hours:.1f}")
        yield (name, *numbers, *(", ".join(sorted(names)) for names in sets), begun)


def table() -> str:
    """Return the table as Markdown."""
    lines = [HEAD, ("---", "--:", "--:", "--:", "---", "---", "---", "---"), *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table())
