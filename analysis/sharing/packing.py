"""Pack a study as a crate, as a folder or a zip file; the same results give the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.claims.view import finished, load_studies
from analysis.sharing import crate
from analysis.sharing.crate import PREVIEW, SUMS, About, Action, File
from analysis.sharing.places import METADATA, homes, located
from analysis.study import Base, Cell, Study
from bapo import project
from bapo.errors import UserError
from bapo.store import provenance
from bapo.store.files import CONFIG, MANIFEST, SUMMARY, atomic, read_json, sha256, verify_files

#: of the suite: what its results are given out under unless another licence is named
LICENSE = "https://spdx.org/licenses/Apache-2.0"
#: what a run's folder holds beside the files that its summary fingerprints
OF_A_RUN = (CONFIG, MANIFEST, SUMMARY)
#: evaluations in a run's folder
EVALUATIONS = ("eval", "curve", "eval_shuffled_images")
#: the folder of a crate that holds a project's own code and configuration
PROJECT = "project"
#: earliest time that a zip file can hold: no entry has a time of its own
NO_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass
class Packed:
    """What goes into a crate.

    files: name in the crate -> the file; left_out: runs that are not finished; project: the title of a user's own.
    """

    files: dict[str, Path] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    project: str = ""


def collect(place: Path, checkpoints: bool = False) -> Packed:
    """Return what a study file (``results/laptop/studies/table1.json``) or all studies of a scale's folder stand for.

    A study's products are those whose record names its file as an input. Of results in a project its own code and
    configuration go along. Raises UserError where no run is finished or
    a run's file is not what was written.
    """
    if place.suffix == ".json":
        home, files = place.resolve().parent.parent, [place]
        if place.parent.name != "studies":
            raise UserError(
                f"{place}: must lie in the studies/ of a scale's folder, as results/laptop/studies/table1.json"
            )
    else:
        (home,) = homes(place)
        home, files = home.resolve(), sorted((home / "studies").glob("*.json"))
    packed = Packed()
    root = f"results/{home.name}"
    studies = {name: located(study, home) for name, study in load_studies(files).items()}
    for file in files:
        packed.files[f"{root}/studies/{file.name}"] = file
    for study in studies.values():
        packed.titles.append(study.title or study.name)
        _add_runs(packed, study, home, root, checkpoints)
    if not any(a.key.startswith("train-") for a in packed.actions):
        raise UserError(f"{place}: none of its {len(packed.left_out)} runs is finished; run them first")
    _add_project(packed, home)
    _add_products(packed, home, root, {f.name for f in files}, everything=place.suffix != ".json")
    return packed


def _add_runs(packed: Packed, study: Study, home: Path, root: str, checkpoints: bool) -> None:
    for block in study.blocks:
        for cell in (*([block.base] if block.base else []), *(c for cells in block.methods.values() for c in cells)):
            name = f"{root}/{cell.run.relative_to(home)}"
            if name in packed.left_out or any(file.startswith(f"{name}/") for file in packed.files):
                continue
            if not finished(cell, isinstance(cell, Base)):
                packed.left_out.append(name)
                continue
            _add_run(packed, cell, name, home, root, checkpoints)
        _add_data(packed, home, root, block.task)


def _add_run(packed: Packed, cell: Cell | Base, name: str, home: Path, root: str, checkpoints: bool) -> None:
    """Add the sealed files of a run or base model, and the action that made them."""
    trained = isinstance(cell, Cell)
    made = _sealed(packed, cell.run, name, checkpoints)
    if (cell.run / SUMMARY).exists():
        manifest = _json(cell.run / MANIFEST)
        below = [f"{root}/{cell.task}/data/{SUMMARY}", f"{root}/{cell.task}/{cell.model}/base/{SUMMARY}"]
        inputs = [f"{name}/{CONFIG}", *(below if trained else below[:1])]
        what = f"{cell.method}, seed {cell.seed}" if trained else "base model"
        title = f"Training: {what}, {cell.model}, {cell.task}"
        packed.actions.append(_action("train", name, title, inputs, made, manifest, root))
    for part in EVALUATIONS:
        if (cell.run / part / SUMMARY).exists():
            of = _sealed(packed, cell.run / part, f"{name}/{part}", checkpoints)
            manifest = _json(cell.run / part / MANIFEST)
            title = f"Evaluation: {cell.run.relative_to(home)}/{part}"
            inputs = [f"{name}/{SUMMARY}"]
            packed.actions.append(_action("evaluate", f"{name}/{part}", title, inputs, of, manifest, root))


def _sealed(packed: Packed, folder: Path, name: str, checkpoints: bool) -> list[str]:
    """Add a folder's summary and what it fingerprints, checked; the folder of its checkpoint where asked."""
    if not (folder / SUMMARY).exists():
        return []
    summary = verify_files(folder)
    listed = {p: folder / p for p in (*OF_A_RUN, *summary.get("files", {})) if (folder / p).is_file()}
    if checkpoints and isinstance(kept := summary.get("checkpoint", "checkpoint"), str) and (folder / kept).is_dir():
        listed |= {p.relative_to(folder).as_posix(): p for p in sorted((folder / kept).rglob("*")) if p.is_file()}
    else:
        listed = {n: p for n, p in listed.items() if not n.startswith("checkpoint")}
    packed.files |= {f"{name}/{n}": p for n, p in listed.items()}
    return [f"{name}/{n}" for n in listed if n != CONFIG]


def _add_data(packed: Packed, home: Path, root: str, task: str) -> None:
    """Add what identifies the problems; the problems themselves may not be ours to give out."""
    for file in (SUMMARY, MANIFEST):
        if (home / task / "data" / file).is_file():
            packed.files[f"{root}/{task}/data/{file}"] = home / task / "data" / file


def _add_project(packed: Packed, home: Path) -> None:
    """Add the code and configuration of the project that the results lie in, as inputs of what was trained."""
    folder, said = project.folder(), project.about()
    if folder is None or said is None or not home.is_relative_to(folder.resolve()):
        return
    own = {f"{PROJECT}/{p.relative_to(folder).as_posix()}": p for p in project.sources(folder)}
    packed.files |= own
    packed.project = said.title
    packed.actions = [replace(a, inputs=(*a.inputs, *own)) if a.key.startswith("train-") else a for a in packed.actions]


def _add_products(packed: Packed, home: Path, root: str, studies: set[str], everything: bool) -> None:
    """Add what the analysis made, with its records: tables, figures, ledgers, audits, the report.

    Of one study, what was made from its file.
    """
    own = {path.resolve(): name for name, path in packed.files.items() if name.startswith(f"{PROJECT}/")}
    for record in sorted(home.rglob(f"{provenance.FOLDER}/*.json")):
        folder = record.parent.parent
        place = folder.relative_to(home).as_posix()
        content = read_json(record)
        read = {os.path.normpath(folder / name): name for name in content["inputs"]}
        used = {Path(p).name for p in read if Path(p).parent == home / "studies"}
        if not (everything or used & studies):
            continue
        prefix = root if place == "." else f"{root}/{place}"
        made = {f"{prefix}/{name}": folder / name for name in content["files"] if (folder / name).is_file()}
        packed.files |= made | {f"{prefix}/{provenance.FOLDER}/{record.name}": record}
        inputs = [f"{root}/{Path(p).relative_to(home)}" for p in read if Path(p).is_relative_to(home)]
        inputs += [own[Path(p)] for p in read if Path(p) in own]
        manifest = {"code": content["code"], "ended": content["written"]}
        title = f"Analysis: {', '.join(content['files'])}"
        key = f"{prefix}/{record.stem}"
        action = _action("analysis", key, title, inputs, list(made), manifest, root)
        packed.actions.append(replace(action, command=content["command"]))


def _action(
    kind: str,
    name: str,
    title: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    manifest: Mapping[str, Any],
    root: str,
) -> Action:
    times = [str(manifest.get(key) or "") for key in ("started", "ended")]
    key = f"{kind}-{name.removeprefix(f'{root}/').replace('/', '-')}"
    return Action(key, title, tuple(inputs), tuple(outputs), manifest.get("code") or {}, "", *times)


def _json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


# ------------------------------------------------------------------------------------------------ writing


@dataclass(frozen=True)
class Written:
    """path: the crate; sums: SHA-256 of its list of sums, which stands for all of it; size: in bytes."""

    path: Path
    files: int
    size: int
    sums: str


def write(packed: Packed, out: Path, about: About) -> Written:
    """Write a crate to ``out``, packed where it ends in .zip. Raises UserError where ``out`` exists."""
    if out.exists():
        raise UserError(f"{out} exists; choose another name, or remove it")
    kept = set(packed.files)
    actions = [_only(a, kept) for a in sorted(packed.actions, key=lambda a: a.key)]
    files = [File(name, packed.files[name].stat().st_size, sha256(packed.files[name])) for name in sorted(kept)]
    listed = sorted([*files, File(SUMS, 0, "")], key=lambda f: f.name)
    texts = {
        METADATA: json.dumps(crate.metadata(about, listed, actions), indent=1, ensure_ascii=False) + "\n",
        PREVIEW: crate.preview(about, files, actions),
    }
    sums = {f.name: f.sha256 for f in files} | {name: _digest(text.encode()) for name, text in texts.items()}
    texts[SUMS] = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    entries: dict[str, Path | bytes] = {**packed.files, **{name: text.encode() for name, text in texts.items()}}
    (_write_zip if out.suffix == ".zip" else _write_folder)(out, entries)
    size = sum(f.size for f in files) + sum(len(t.encode()) for t in texts.values())
    return Written(out, len(entries), size, _digest(texts[SUMS].encode()))


def _only(action: Action, kept: set[str]) -> Action:
    """Return an action with the inputs and outputs that are in the crate."""
    inputs, outputs = (tuple(n for n in names if n in kept) for names in (action.inputs, action.outputs))
    return replace(action, inputs=inputs, outputs=outputs)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_zip(out: Path, entries: Mapping[str, Path | bytes]) -> None:
    """Without compression and times: the bytes depend on the contents alone, not on a version of zlib."""
    with atomic(out) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as packed:
        for name, content in _sorted(entries):
            entry = zipfile.ZipInfo(name, NO_TIME)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            with packed.open(entry, "w") as target:
                if isinstance(content, bytes):
                    target.write(content)
                else:
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, target)


def _write_folder(out: Path, entries: Mapping[str, Path | bytes]) -> None:
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        for name, content in _sorted(entries):
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                target.write_bytes(content)
            else:
                shutil.copyfile(content, target)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sorted(entries: Mapping[str, Path | bytes]) -> Iterator[tuple[str, Path | bytes]]:
    """Yield the metadata first, as a reader of a long archive wants it, then by name."""
    yield from sorted(entries.items(), key=lambda item: (item[0] != METADATA, item[0]))


def about(packed: Packed, title: str = "", license: str = LICENSE, author: str = "", date: str = "") -> About:
    """Return what the crate says of itself; the date is by default that of its newest file's record."""
    times = [t for a in packed.actions for t in (a.started, a.ended) if t]
    what = ", ".join(dict.fromkeys(packed.titles))
    count = sum(a.key.startswith("train-") for a in packed.actions)
    source = f"{packed.project}, made with" if packed.project else "Results of"
    words = f"{source} the reproduction suite for Buffer Matters (BAPO): {what}. {count} trained models and bases, "
    words += "with the project's own code, " if packed.project else ""
    words += "with configurations, tables of training and evaluation, manifests, and the products of the analysis."
    if packed.left_out:
        words += f" Not finished and left out: {_some(packed.left_out)}."
    return About(
        title or packed.project or f"BAPO reproduction: {what}",
        words,
        date or max(times, default="1980-01-01"),
        license,
        author,
    )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
