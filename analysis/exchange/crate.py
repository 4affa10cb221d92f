"""Results as an RO-Crate, written by ``rocrate``, and the check that a crate is whole and unchanged.

A crate holds the sealed files of a scale's runs, what the analysis made of them, and the records of how.
``sha256sum -c manifest-sha256.txt`` in it needs nothing of this suite.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from analysis.study import Base, StudyRun, finished, load_studies
from bapo import project
from bapo.errors import UserError, require_extra
from bapo.store import provenance
from bapo.store.files import CONFIG, MANIFEST, SUMMARY, read_json, sha256, verify_files, write_text

SUMS = "manifest-sha256.txt"
LICENSE = "https://spdx.org/licenses/Apache-2.0"
PAPER = "https://arxiv.org/abs/2602.20722"


def homes(folder: Path) -> list[Path]:
    """Return a scale's folder, which has studies/, or those in a results folder, a crate or a project.

    Raises UserError without one.
    """
    files = (file for place in (".", "*", "results/*") for file in folder.glob(f"{place}/studies/*.json"))
    folders = sorted({file.parent.parent for file in files})
    if not folders:
        raise UserError(f"{folder}: holds no studies/*.json; name a scale's results, for example results/laptop")
    return folders


# ------------------------------------------------------------------------------------------------ packing


@dataclass
class Packed:
    """What goes into a crate.

    files: name in the crate -> the file; left_out: unfinished runs; ended: when runs did; titles: of studies.
    """

    files: dict[str, Path] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    def add(self, folder: Path, name: str, *files: str) -> None:
        """Add those of the files that exist in a folder, whose links are resolved.

        Raises UserError for one that lies elsewhere: names come from files that others may have written.
        """
        for n in files:
            path = folder / n
            if path.is_file():
                if path.resolve() != path or not path.is_relative_to(folder):
                    raise UserError(f"{path}: is a link or lies outside {folder}; put the file itself there")
                self.files[f"{name}/{n}"] = path

    def seal_run(self, run: Path, name: str) -> None:
        """Add manifest, configuration and fingerprinted files of a finished run and of its evaluations.

        Raises UserError naming a file that is not what was written.
        """
        for part in ("", "eval", "curve"):
            folder, within = run / part, str(Path(name, part))
            if (folder / SUMMARY).exists():
                sealed = [n for n in verify_files(folder).get("files", {}) if "checkpoint" not in n]
                self.add(folder, within, CONFIG, MANIFEST, SUMMARY, *sealed)
                self.ended += [read_json(folder / MANIFEST).get("ended", "")] if (folder / MANIFEST).exists() else []


def home_of(folder: Path) -> Path:
    """Return the one scale's folder of a results folder. Raises UserError without one, or naming one of several."""
    home, *others = homes(folder)
    if others:
        raise UserError(f"{folder}: holds {len(others) + 1} scales; name one, for example {home}")
    return home


def collect(home: Path) -> Packed:
    """Return what a scale's folder holds that is finished; a project's code and configuration go along.

    Raises UserError as :func:`home_of`, and where no run is finished or a run's file is not what was written.
    """
    home = home_of(home).resolve()
    packed, root, runs, evaluated = Packed(), f"results/{home.name}", dict[Path, StudyRun | Base](), set[Path]()
    studies = sorted((home / "studies").glob("*.json"))
    packed.add(home / "studies", f"{root}/studies", *(file.name for file in studies))
    for study in load_studies(studies).values():
        packed.titles.append(study.title or study.name)
        runs |= {start.run: start for start in study.starts}
        evaluated |= {base.run for base in study.bases if study.is_evaluated}
        for block in study.blocks:
            packed.add(home / block.task / "data", f"{root}/{block.task}/data", SUMMARY, MANIFEST)
    for run, cell in runs.items():
        name = f"{root}/{run.relative_to(home)}"
        if isinstance(cell, Base):  # a model whose variant changes the problems has its own
            packed.add(run.parent / "data", Path(name).with_name("data").as_posix(), SUMMARY, MANIFEST)
        if finished(cell, run in evaluated):
            packed.seal_run(run, name)
        else:
            packed.left_out.append(name)
    if len(packed.left_out) == len(runs):
        raise UserError(f"{home}: none of its {len(runs)} runs is finished; run them first")
    for record in sorted(home.rglob(f"{provenance.FOLDER}/*.json")):
        made, folder = read_json(record).get("files"), record.parent.parent
        if not isinstance(made, dict):
            raise UserError(f"{record}: has no object `files`; delete the record")
        for name, digest in made.items():
            if name != Path(name).name or not name or ((folder / name).is_file() and sha256(folder / name) != digest):
                raise UserError(f"{folder / name}: is not what {record} says; make it again, or delete the record")
        packed.add(folder, Path(root, folder.relative_to(home)).as_posix(), *made, f"{provenance.FOLDER}/{record.name}")
    code = project.folder()
    if code is not None and home.is_relative_to(code.resolve()):
        packed.add(code, "project", *(p.relative_to(code).as_posix() for p in project.sources(code)))
    return packed


def write(packed: Packed, out: Path, license: str = LICENSE) -> str:
    """Write a crate to the folder ``out``, which does not exist, and return the SHA-256 of its list of sums.

    license: its URL. Raises UserError where ``rocrate`` is not installed.
    """
    require_extra("crates", "rocrate")
    from rocrate.rocrate import ROCrate

    crate = ROCrate()
    crate.name = f"BAPO reproduction: {', '.join(packed.titles)}"
    left = f" Not finished and left out: {', '.join(packed.left_out)}." if packed.left_out else ""
    crate.description = f"Results of the reproduction suite for Buffer Matters (BAPO).{left}"
    crate.license, crate.isBasedOn = license, PAPER
    crate.datePublished = max(filter(None, packed.ended), default="1980-01-01")
    for name, file in sorted(packed.files.items()):
        crate.add_file(file, name, properties={"sha256": sha256(file)})
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        folder = Path(temporary, "crate")
        crate.write(folder)
        write_text(folder / SUMS, "".join(f"{sha256(folder / name)}  {name}\n" for name in sorted(_names(folder))))
        folder.rename(out)
    return sha256(out / SUMS)


# ------------------------------------------------------------------------------------------------ verifying


def problems(folder: Path) -> list[str]:
    """Return a sentence for everything in a crate that is not as it was packed.

    Hashes are compared, files counted, links, pipes and empty folders named, and the seals of each summary checked,
    which a forger of sums would have to forge too. Raises UserError where there is no list of sums.
    """
    names = _names(folder)
    try:
        if SUMS not in names:
            raise FileNotFoundError
        lines = (folder / SUMS).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{folder}: {SUMS} is missing or no text; name an archive of `bapo export`") from None
    sums: dict[str, str] = {}
    sentences = []
    for number, line in enumerate(lines, 1):
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if match is None:
            sentences.append(f"line {number} of {SUMS} is no sum and name")
        elif match[2] in sums:
            sentences.append(f"line {number} of {SUMS} names {match[2]} again")
        else:
            sums[match[2]] = match[1]
    hashes = {name: sha256(folder / name) for name in sorted(names - {SUMS})}
    whole = {folder / name for name in names}
    whole |= {parent for path in whole for parent in path.parents}
    others = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path not in whole)
    sentences += [f"{name} was added: it is no file with a sum" for name in others]
    sentences += [f"{name} is missing" for name in sorted(sums.keys() - hashes)]
    sentences += [f"{name} was added: {SUMS} does not name it" for name in hashes if name not in sums]
    sentences += [f"{n} was changed: its SHA-256 is not in {SUMS}" for n, h in hashes.items() if sums.get(n, h) != h]
    for place in (Path(name) for name in hashes if Path(name).name == SUMMARY):
        try:
            seals = {
                f"{place.parent}/{n}": seal["sha256"] for n, seal in read_json(folder / place).get("files", {}).items()
            }
            sentences += [f"{n} is not what {place} sealed" for n, seal in seals.items() if hashes.get(n, seal) != seal]
        except (UserError, KeyError, TypeError, AttributeError, RecursionError):
            sentences.append(f"{place} is no summary with the files that it sealed")
    return sentences


def _names(folder: Path) -> set[str]:
    """Return the regular files below a folder; neither links nor what lies behind them."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix() for path in files}
