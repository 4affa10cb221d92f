"""``python -m bapo migrate``: give results of before 2026-11-26 the identities that the same runs have now.

The keys of the configuration have changed since, not the numbers (tests/golden.json), and ten methods are variants of
BAPO. ``identities_before.json`` holds the digests of then; those of now are asked of the code. What it does not hold is
left as it is, with a sentence: its job makes it again. This module and the file go with the next release.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from bapo.errors import UserError
from bapo.experiments import identity
from bapo.experiments.compose import run_config
from bapo.experiments.schema import Config
from bapo.store.files import MANIFEST, SUMMARY, Json, read_json, write_json

OLD = Path(__file__).with_name("identities_before.json")
#: names of methods that are variants now: bapo_v10 is bapo+v10
VARIANTS = ("v10", "v20", "m1", "m10", "fixed_0_2", "fixed_3_4", "gaussian", "uniform", "mini", "corrected")
NEW_NAMES = {f"bapo_{name}": f"bapo+{name}" for name in VARIANTS}

#: a folder, the identities that it may have had, and those that it gets, by their keys in its summary and manifest
Found = tuple[Path, set[str], dict[str, str]]


def migrate(results: Path) -> tuple[int, list[str]]:
    """Rewrite the identities in a folder of results; return how many folders have new ones, and what is not known.

    Raises UserError where ``results`` holds no scale.
    """
    before: dict[str, Json] = json.loads(OLD.read_text(encoding="utf-8"))
    scales = [scale for scale in before if (results / scale).is_dir()]
    if not scales:
        raise UserError(f"{results}: holds no results of a scale ({', '.join(before)}); name the folder that does")
    rewritten, unknown = 0, []
    for scale in scales:
        unknown += _renamed(results / scale)
        for folder, old, new in _folders(results / scale, scale, **before[scale]):
            found = read_json(folder / SUMMARY).get("identity")
            if found in old and new:
                _rewrite(folder, new)
                rewritten += found != new["identity"]
            elif found != new.get("identity"):
                unknown.append(f"{folder}: its identity {found} is none of the suite's; its job makes it again")
    return rewritten, unknown


def _renamed(home: Path) -> list[str]:
    """Move the runs of methods that have new names; return a sentence for each whose new folder exists."""
    left = []
    for folder in sorted(home.glob("*/*/bapo_*")):
        new = folder.with_name(_now(folder.name))
        if new.name != folder.name and new.exists():
            left.append(f"{folder}: its method is {new.name} now, and {new} exists; keep one of them")
        elif new.name != folder.name:
            folder.rename(new)
    return left


def _folders(home: Path, scale: str, shared: Json, runs: Json) -> Iterator[Found]:
    """Yield every finished folder of a scale. shared, runs: the digests of then, by task/model[/method]."""
    of_cell = {f"{n.rpartition('/')[0]}/{_now(n.rpartition('/')[2])}": seeds for n, seeds in runs.items()}
    for path in sorted(home.glob(f"*/*/*/seed*/{SUMMARY}")):
        folder = path.parent
        task, model, method, seed = (*folder.relative_to(home).parts[:3], folder.name.removeprefix("seed"))
        old = of_cell.get(f"{task}/{model}/{method}", {}).get(seed, "").split()
        config = None
        with suppress(UserError):  # of a variant that there is no more
            config = run_config(scale, task, model, method, int(seed)) if old else None
        if config is None:
            yield folder, set(), {}
            continue
        cell = shared[f"{task}/{model}"]
        data, base = identity.data_identity(config), identity.base_identity(config)
        names = {"identity": identity.train_identity(config), "data_identity": data, "base_identity": base}
        if budget := read_json(path).get("budget"):  # part of the identity, as bapo/experiments/budgets.py has it
            spent = [budget["unit"], budget["amount"]]
            old, names["identity"] = [_digest([d, *spent]) for d in old], identity.digest([names["identity"], *spent])
        yield folder, set(old), names
        yield from _evaluations(folder, config, cell)
        for place, kind, new in ((home / task / "data", "data", data), (home / task / model / "base", "base", base)):
            if (place / SUMMARY).exists():
                yield place, set(cell[kind].split()), {**names, "identity": new}
                yield from _evaluations(place, config, cell)


def _now(method: str) -> str:
    name, *variants = method.split("+")
    return "+".join([NEW_NAMES.get(name, name), *variants])


def _evaluations(folder: Path, config: Config, cell: Mapping[str, str]) -> Iterator[Found]:
    """Yield the evaluations of a run or of a base model."""
    for name in ("eval", "curve"):
        if not (folder / name / SUMMARY).exists():
            continue
        summary = read_json(folder / name / SUMMARY)
        if name == "eval":
            checkpoint = str(summary["checkpoint_sha256"] or summary["checkpoint"])
            content: Json = {"checkpoint": checkpoint} | identity.files_of(config, config.evaluation.benchmarks)
            new = identity.identity_of_evaluation(config, checkpoint)
        else:
            steps = {int(step): digest for step, digest in summary["checkpoints"].items()}
            content = {"checkpoints": steps} | identity.files_of(config, summary["benchmarks"])
            new = identity.identity_of_curve(config, steps, summary["benchmarks"])
        kind = {"eval": "evaluation"}.get(name, name)
        old = {_digest({kind: digest, "version": 1, **content}) for digest in cell[kind].split()}
        yield folder / name, old, {"identity": new}


def _digest(content: object) -> str:
    """Return a digest as it was made then: 1.0 was another number than 1."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rewrite(folder: Path, new: Mapping[str, str]) -> None:
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
