"""What the paper prints, as data. Numbers stay text, so that 73.00 is not turned into 73.0."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

#: the paper's tables, and those of the papers that are audited as examples
FOLDER = Path(__file__).resolve().parent


def find(name: str | Path) -> Path:
    """Return a file of the user's, or one of ``analysis/paper/`` by its name without the suffix."""
    ours = FOLDER / f"{name}.yaml"
    return ours if not Path(name).exists() and ours.is_file() else Path(name)


@dataclass(frozen=True)
class PaperModel:
    """One model's block of Table 1. rows: {method key: {"title", column: printed text, "underlined": [columns]}}."""

    key: str
    title: str
    task: str
    columns: dict[str, str]  # benchmark name -> printed title, "avg" among them
    rows: dict[str, dict[str, Any]]

    def printed(self, method: str, column: str) -> str | None:
        """Return the number as printed, or None where the paper has none."""
        value = self.rows.get(method, {}).get(column)
        return None if value in (None, "-") else str(value)

    def value(self, method: str, column: str) -> float | None:
        """Return the same as a number; "677k" is 677000."""
        text = self.printed(method, column)
        if text is None:
            return None
        return float(text[:-1]) * 1000 if text.endswith("k") else float(text)


@lru_cache
def read(name: str) -> dict[str, Any]:
    """Return the content of ``analysis/paper/<name>.yaml``."""
    import yaml

    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def table1() -> dict[str, PaperModel]:
    """Return every model of Table 1 by its key, in the paper's order."""
    models = {}
    for part in read("table1")["parts"]:
        for model in part["models"]:
            rows = {row["method"]: row for row in model["rows"]}
            models[model["key"]] = PaperModel(model["key"], model["title"], part["task"], part["columns"], rows)
    return models


def match(task: str, model: str, named: str | None = None) -> PaperModel | None:
    """Return the paper's block for a task and model: the one named, else the same key, else the task's first."""
    models = table1()
    for key in (named, model):
        if key in models:
            return models[key]
    return next((m for m in models.values() if m.task == task), None)
