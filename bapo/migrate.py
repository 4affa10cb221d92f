"""``python -m bapo migrate``: give results of before 2026-11-25 the identities that the same runs have now.

Options that only some methods have left the others' configurations, so a run's identity is another digest of the same
meaning; its numbers are the same by tests/golden.json. ``identities_of_november.json`` holds the old digests. A run
that it does not hold is left as it is, with a sentence: training moves it aside. This module and the file go with the
next release.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bapo.errors import UserError
from bapo.experiments import identity
from bapo.experiments.compose import run_config
from bapo.experiments.places import options
from bapo.store.files import MANIFEST, SUMMARY, read_json, write_json

OLD = Path(__file__).with_name("identities_of_november.json")


def migrate(results: Path) -> tuple[int, list[str]]:
    """Rewrite the identities in a folder of results; return how many folders have new ones, and what is not known.

    Raises UserError where ``results`` holds no scale.
    """
    before: dict[str, dict[str, Any]] = json.loads(OLD.read_text(encoding="utf-8"))
    scales = [scale for scale in before if (results / scale).is_dir()]
    if not scales:
        raise UserError(f"{results}: holds no results of a scale ({', '.join(before)}); name the folder that does")
    rewritten, unknown = 0, []
    for scale in scales:
        for folder, old, new in _folders(results / scale, scale, before[scale]):
            found = read_json(folder / SUMMARY).get("identity")
            if found in old and new:
                _rewrite(folder, new)
                rewritten += found != new["identity"]
            elif found != new.get("identity"):
                unknown.append(f"{folder}: its identity {found} is none of the suite's; its job makes it again")
    return rewritten, unknown


def _folders(home: Path, scale: str, cells: dict[str, Any]) -> Iterator[tuple[Path, set[str], dict[str, str]]]:
    """Yield (folder, its old identities, its new ones by key) for every finished folder of a scale."""
    for path in sorted(home.glob(f"*/*/*/seed*/{SUMMARY}")):
        folder = path.parent
        task, model, method, seed = (*folder.relative_to(home).parts[:3], folder.name.removeprefix("seed"))
        cell = cells.get(f"{task}/{model}/{method}")
        known = cell is not None and method.partition("+")[0] in options("method") and seed.isdigit()
        if not known or not set(method.split("+")[1:]) <= set(options("variant")):
            yield folder, set(), {}
            continue
        config = run_config(scale, task, model, method, int(seed))
        data, base = identity.data_identity(config), identity.base_identity(config)
        run = {"identity": identity.train_identity(config), "data_identity": data, "base_identity": base}
        yield folder, {cell["train"].get(seed, "")}, run
        yield from _evaluations(folder, config, cell)
        for shared, names in ((home / task / "data", {"identity": data}), (home / task / model / "base", run)):
            if (shared / SUMMARY).exists():
                kind = "data" if shared.name == "data" else "base"
                yield shared, {cell[kind]}, {**names, "identity": data if kind == "data" else base}
                yield from _evaluations(shared, config, cell)


def _evaluations(folder: Path, config: Any, cell: dict[str, Any]) -> Iterator[tuple[Path, set[str], dict[str, str]]]:
    """Yield the same for the evaluations of a run or of a base model."""
    content: dict[str, Any]
    for name in ("eval", "curve"):
        if not (folder / name / SUMMARY).exists():
            continue
        summary = read_json(folder / name / SUMMARY)
        if name == "eval":
            content = {"evaluation": cell["evaluation"], "checkpoint": _checkpoint(summary), "version": 1}
            content |= identity.files_of(config, config.evaluation.benchmarks)
            new = identity.identity_of_evaluation(config, _checkpoint(summary))
        else:
            steps = {int(step): digest for step, digest in summary["checkpoints"].items()}
            content = {"curve": cell["curve"], "checkpoints": steps, "version": 1}
            content |= identity.files_of(config, summary["benchmarks"])
            new = identity.identity_of_curve(config, steps, summary["benchmarks"])
        yield folder / name, {identity.digest(content)}, {"identity": new}


def _checkpoint(summary: dict[str, Any]) -> str:
    """Return the fingerprint of an evaluation's checkpoint: of its files, or its name and commit on the hub."""
    return str(summary["checkpoint_sha256"] or summary["checkpoint"])


def _rewrite(folder: Path, new: dict[str, str]) -> None:
    """Write new identities into a folder's manifest, then into its summary, which seals it."""
    for name in (MANIFEST, SUMMARY):
        if (folder / name).exists():
            content = read_json(folder / name)
            write_json(folder / name, {key: new.get(key, value) for key, value in content.items()})


def main(folder: str) -> int:
    """Run the command and return its exit status."""
    rewritten, unknown = migrate(Path(folder))
    for line in unknown:
        print(line, file=sys.stderr)
    print(f"{rewritten} folders have new identities, {len(unknown)} are left as they are", file=sys.stderr)
    return 0
