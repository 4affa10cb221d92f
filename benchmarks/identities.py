"""Write the identities of every run, study and sweep: ``python benchmarks/identities.py FILE.json [--check]``.

Equal files before and after a change prove that it changes no result. ``--check`` compares with FILE.json instead of
writing it and names every difference. tests/experiments/test_identities.py compares with such a file,
``tests/experiments/identities.json``, so a changed identity is always a decision.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.products import at_scale
from bapo.describe import study_content
from bapo.experiments import identity
from bapo.experiments.order import Cell
from bapo.experiments.places import options, run_directory
from bapo.experiments.settings import Settings
from bapo.experiments.studies import study_of
from bapo.sweeps import files, study


def meanings(scale: str) -> dict[str, Any]:
    """Return the identities of all {"runs", "studies", "sweeps"} of ``scale``, and the "keys" that they depend on.

    A key of a training run has the values that it has in any of them, so that a difference names the key that changed.
    The keys of problems, base models and evaluations are in their digests alone.
    """
    settings = Settings(scale=scale)
    runs: dict[str, dict[str, Any]] = {}
    contents: dict[str, dict[str, Any]] = {}  # what all seeds of a run have in common

    def note(cell: Cell) -> None:
        name = f"{cell.task}/{cell.model}/{cell.method}"
        if name not in runs:
            config = settings.run(cell)
            kinds = ("data", "base", "evaluation", "curve")
            runs[name] = {kind: getattr(identity, f"{kind}_identity")(config) for kind in kinds}
            runs[name] |= {"folder": str(run_directory(config).parent), "train": {}}
            contents[name] = identity.train_content(config)
        runs[name]["train"][str(cell.seed)] = identity.identity_of_seed(contents[name], cell.seed)

    studies = {}
    for name in at_scale(options("study"), scale):
        composed = study_of(name, settings)
        for cell in composed.cells:
            note(cell)
        # here, while the study's configurations are still kept: all studies together have more than compose keeps
        studies[name] = identity.digest(study_content(composed, settings))
    sweeps = {name: files.load(name, settings) for name in files.at_scale(scale)}
    for sweep in sweeps.values():
        for cell in sweep.reused_cells():
            note(cell)
    values: dict[str, set[str]] = {}
    for content in contents.values():
        for key, value in _leaves(content):
            values.setdefault(key, set()).add(json.dumps(value, sort_keys=True, ensure_ascii=False))
    return {
        "runs": runs,
        "keys": {key: " | ".join(sorted(found)) for key, found in values.items()},
        "studies": studies,
        "sweeps": {name: study.identity(sweep, settings) for name, sweep in sweeps.items()},
    }


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of all that a run's identity knows but the digest of its base model."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        elif key != "base":
            yield f"{prefix}{key}", value


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Yield a line for every leaf of the two trees that differs."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            yield from differences(before.get(key), after.get(key), f"{where}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and before != after:
        yield f"{where}: without {sorted({*before} - {*after})}, with {sorted({*after} - {*before})} as well"
    elif before != after:
        yield f"{where}: {before} is now {after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    identities = {scale: meanings(scale) for scale in options("scale")}
    if not arguments.check:
        arguments.file.write_text(json.dumps(identities, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    lines = list(differences(json.loads(arguments.file.read_text(encoding="utf-8")), identities))
    print("\n".join(lines) or "no identity has changed")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
