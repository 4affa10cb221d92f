"""Results as an RO-Crate, written by ``rocrate``, and the check that a crate is whole and unchanged.

A crate holds a study's sealed files, what the analysis made of them, and who made what from what. ``sha256sum -c
manifest-sha256.txt`` in it needs nothing of this suite.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from analysis.claims.view import finished, load_studies
from analysis.study import Base, Cell, Study
from bapo import project
from bapo.errors import UserError
from bapo.store import provenance
from bapo.store.files import CONFIG, MANIFEST, SUMMARY, atomic, read_json, sha256, verify_files, write_text

METADATA, SUMS = "ro-crate-metadata.json", "manifest-sha256.txt"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
PAPER = "https://arxiv.org/abs/2602.20722"
LICENSE = "https://spdx.org/licenses/Apache-2.0"
#: a zip file may hold so many times its size; `bapo export` does not compress
INFLATION = 50
EVALUATIONS = ("eval", "curve")
Entry = TypeVar("Entry", Cell, Base)


# ------------------------------------------------------------------------------------------------ places


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Path]:
    """Yield the folder of results or of a crate; a zip file's is a temporary one.

    Raises UserError where there is neither, or the zip file cannot be unpacked or would unpack to far more than it is.
    """
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="crate-") as folder:
        try:
            with zipfile.ZipFile(path) as packed:
                inside = sum(entry.file_size for entry in packed.infolist())
                if inside > INFLATION * path.stat().st_size:
                    raise ValueError(f"it would unpack to {inside / 1e6:.0f} MB; if you trust it, unpack it yourself")
                packed.extractall(folder)  # keeps entries inside the folder
        except Exception as error:  # zipfile raises a dozen kinds, RuntimeError for a password among them
            raise UserError(f"{path}: cannot be unpacked ({error}); name a results folder or a crate") from None
        yield Path(folder)


def homes(folder: Path) -> list[Path]:
    """Return the scales' folders of a results folder or crate: those with studies/. Raises UserError without one."""
    found = sorted({path.parent.parent for path in folder.rglob("studies/*.json")})
    if not found:
        raise UserError(f"{folder}: holds no studies/*.json; name a scale's results, for example results/laptop")
    return found


def located(study: Study, home: Path) -> Study:
    """Return a study whose runs lie in ``home``, wherever its file says they were when it was written."""

    def at(entry: Entry) -> Entry:
        return replace(entry, run=_within(home, entry))

    blocks = [
        replace(b, base=b.base and at(b.base), methods={m: tuple(map(at, cells)) for m, cells in b.methods.items()})
        for b in study.blocks
    ]
    return replace(study, blocks=tuple(blocks))


def _within(home: Path, entry: Cell | Base) -> Path:
    """Return the longest end of a run's path that is a folder in ``home``: results/laptop/TASK/... is HOME/TASK/..."""
    parts, shortest = entry.run.parts[entry.run.is_absolute() :], 4 if isinstance(entry, Cell) else 3
    ends = [home.joinpath(*parts[-count:]) for count in range(len(parts), shortest - 1, -1)]
    return next((place for place in ends if place.is_dir()), home.joinpath(*parts[-shortest:]))


# ------------------------------------------------------------------------------------------------ packing


@dataclass
class Packed:
    """What goes into a crate. files: name in the crate -> the file; left_out: runs that have not finished.

    actions: what made files, as RO-Crate names it: name, startTime, endTime, commit, object (inputs), result.
    """

    files: dict[str, Path] = field(default_factory=dict)
    actions: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    def sealed(self, folder: Path, name: str, title: str, checkpoints: bool) -> None:
        """Add a finished folder's manifest, configuration and fingerprinted files, checked, and what made them."""
        if not (folder / SUMMARY).exists():
            return
        summary = verify_files(folder)
        names = [n for n in (SUMMARY, *summary.get("files", {})) if checkpoints or not n.startswith("checkpoint")]
        kept = folder / str(summary.get("checkpoint", "checkpoint"))
        if checkpoints and kept.is_dir():
            names += [p.relative_to(folder).as_posix() for p in sorted(kept.rglob("*")) if p.is_file()]
        made = {f"{name}/{n}": folder / n for n in (MANIFEST, *names) if (folder / n).is_file()}
        asked = {f"{name}/{CONFIG}": folder / CONFIG} if (folder / CONFIG).is_file() else {}
        self.files |= made | asked
        manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).exists() else {}
        times = {"startTime": manifest.get("started"), "endTime": manifest.get("ended")}
        commit = (manifest.get("code") or {}).get("commit")
        self.actions.append({"name": title, **times, "commit": commit, "object": [*asked], "result": [*made]})


def collect(place: Path, checkpoints: bool = False) -> Packed:
    """Return what a study file (``results/laptop/studies/table1.json``) or all studies of a scale's folder stand for.

    A study's products are those whose record names its file as an input; a project's code and configuration go along.
    Raises UserError where no run is finished or a run's file is not what was written.
    """
    if place.suffix == ".json" and place.parent.name != "studies":
        raise UserError(f"{place}: must lie in the studies/ of a scale's folder, as results/laptop/studies/table1.json")
    home = (place.parent.parent if place.suffix == ".json" else homes(place)[0]).resolve()
    studies = [place] if place.suffix == ".json" else sorted((home / "studies").glob("*.json"))
    packed, root = Packed(), f"results/{home.name}"
    packed.files |= {f"{root}/studies/{file.name}": file for file in studies}
    runs: dict[Path, Cell | Base] = {}
    for study in load_studies(studies).values():
        packed.titles.append(study.title or study.name)
        for block in located(study, home).blocks:
            runs |= {cell.run: cell for cells in block.methods.values() for cell in cells}
            runs |= {block.base.run: block.base} if block.base else {}
            data = {f"{root}/{block.task}/data/{n}": home / block.task / "data" / n for n in (SUMMARY, MANIFEST)}
            packed.files |= {name: file for name, file in data.items() if file.is_file()}
    for run, cell in runs.items():
        name = f"{root}/{run.relative_to(home)}"
        if not finished(cell, isinstance(cell, Base)):
            packed.left_out.append(name)
            continue
        packed.sealed(run, name, f"Training: {name}", checkpoints)
        for part in EVALUATIONS:
            packed.sealed(run / part, f"{name}/{part}", f"Evaluation: {name}/{part}", checkpoints)
    if len(packed.left_out) == len(runs):
        raise UserError(f"{place}: none of its {len(runs)} runs is finished; run them first")
    for record in sorted(home.rglob(f"{provenance.FOLDER}/*.json")):
        _add_products(packed, record, home, root, studies)
    own = project.folder()
    if own is not None and home.is_relative_to(own.resolve()):
        packed.files |= {f"project/{p.relative_to(own).as_posix()}": p for p in project.sources(own)}
    return packed


def _add_products(packed: Packed, record: Path, home: Path, root: str, studies: list[Path]) -> None:
    """Add the tables, figures or pages that a record seals, where they were made from one of ``studies``."""
    folder, content = record.parent.parent, read_json(record)
    read = [Path(os.path.normpath(folder / name)) for name in content["inputs"]]
    if not {path.resolve() for path in studies} & {path.resolve() for path in read}:
        return
    names = {
        f"{root}/{p.relative_to(home)}": p for p in (*(folder / n for n in content["files"]), record) if p.is_file()
    }
    packed.files |= names
    inputs = [f"{root}/{path.relative_to(home)}" for path in read if path.is_relative_to(home)]
    about = {"name": content["command"], "startTime": None, "endTime": content["written"]}
    packed.actions.append(about | {"commit": content["code"].get("commit"), "object": inputs, "result": [*names]})


def write(packed: Packed, out: Path, title: str = "", author: str = "", license: str = LICENSE) -> str:
    """Write a crate to ``out``, a folder or a .zip file, and return the SHA-256 of its list of sums.

    Raises UserError where ``out`` exists.
    """
    from rocrate.model.contextentity import ContextEntity
    from rocrate.model.person import Person
    from rocrate.rocrate import ROCrate

    if out.exists():
        raise UserError(f"{out} exists; choose another name, or remove it")
    crate = ROCrate()
    crate.name = title or f"BAPO reproduction: {', '.join(packed.titles)}"
    left = f" Not finished and left out: {', '.join(packed.left_out)}." if packed.left_out else ""
    crate.description = (
        f"Results of the reproduction suite for Buffer Matters (BAPO): {', '.join(packed.titles)}.{left}"
    )
    crate.license, crate.isBasedOn = license, PAPER
    crate.datePublished = max((a["endTime"] for a in packed.actions if a["endTime"]), default="1980-01-01")
    crate.root_dataset["conformsTo"] = crate.add(ContextEntity(crate, PROFILE, {"@type": "CreativeWork"}))
    if author:
        crate.root_dataset["author"] = crate.add(Person(crate, "#author", {"name": author}))
    files = {n: crate.add_file(p, n, properties={"sha256": sha256(p)}) for n, p in sorted(packed.files.items())}
    for action in packed.actions:
        commit = action.pop("commit") or "unknown"
        suite = crate.add(ContextEntity(crate, f"#suite-{commit}", {"@type": "SoftwareApplication", "version": commit}))
        sides = [[files[name] for name in action.pop(side) if name in files] for side in ("object", "result")]
        known = {key: value for key, value in action.items() if value}
        crate.add_action(suite, f"#{re.sub(r'[^A-Za-z0-9]+', '-', action['name'])}", *sides, properties=known)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        folder = Path(temporary, "crate")
        crate.write(folder)
        write_text(folder / SUMS, "".join(f"{sha256(folder / name)}  {name}\n" for name in sorted(_names(folder))))
        digest = sha256(folder / SUMS)
        if out.suffix == ".zip":
            with atomic(out) as packing, zipfile.ZipFile(packing, "w") as archive:
                for name in sorted(_names(folder)):
                    archive.write(folder / name, name)
        else:
            shutil.move(folder, out)
    return digest


# ------------------------------------------------------------------------------------------------ verifying


def problems(folder: Path) -> list[str]:
    """Return a sentence for everything in an opened crate that is not as it was packed.

    Hashes are compared, files counted, the metadata read by ``rocrate``, and the seals of each summary checked, which
    a forger of sums and metadata would have to forge too. Raises UserError where there is no list of sums.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{folder}: {SUMS} is missing or no text; name a crate of `python -m bapo export`") from None
    names = _names(folder) - {SUMS}
    found = [f"{name} is missing" for name in sorted(set(sums) - names)]
    found += [f"{name} was added: {SUMS} does not name it" for name in sorted(names - set(sums))]
    found += [
        f"{n} was changed: its SHA-256 is not in {SUMS}"
        for n in sorted(names & set(sums))
        if sha256(folder / n) != sums[n]
    ]
    found += [f"{METADATA}: {problem}" for problem in _metadata(folder, names - {METADATA})]
    return found + [sentence for summary in sorted(folder.rglob(SUMMARY)) for sentence in _seals(summary, folder)]


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def _metadata(folder: Path, names: set[str]) -> list[str]:
    """Return what the metadata lack: a root with its required properties, and each file with its hash."""
    from rocrate.rocrate import ROCrate

    try:
        crate = ROCrate(folder)
        root = [key for key in ("name", "description", "datePublished", "license") if not crate.root_dataset.get(key)]
        known = {entity.id: entity.get("sha256") for entity in crate.data_entities}
    except Exception as error:  # rocrate has no error class for what is no RO-Crate
        return [f"cannot be read ({type(error).__name__}: {error})"]
    wrong = [
        f"{name} is not described with its hash" for name in sorted(names) if known.get(name) != sha256(folder / name)
    ]
    return [*(f"the root has no {key}" for key in root), *wrong]


def _seals(summary: Path, folder: Path) -> list[str]:
    """Return the files in the crate that are not what their folder's summary sealed."""
    place = summary.relative_to(folder)
    try:
        seals = {name: seal["sha256"] for name, seal in read_json(summary).get("files", {}).items()}
    except (UserError, KeyError, TypeError, AttributeError, RecursionError):
        return [f"{place} is no summary with the files that it sealed"]
    there = {name: summary.parent / name for name in seals if (summary.parent / name).is_file()}
    return [f"{place.parent / n} is not what {place} sealed" for n, p in there.items() if sha256(p) != seals[n]]
