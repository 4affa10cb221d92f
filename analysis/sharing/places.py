"""Where results lie: a scale's folder, an RO-Crate of one or more, or a crate packed as a zip file."""

from __future__ import annotations

import contextlib
import lzma
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from analysis.claims.view import load_studies, merged
from analysis.study import Base, Cell, Study
from bapo.errors import UserError

#: of the RO-Crate specification
METADATA = "ro-crate-metadata.json"
#: a zip file may hold so many times its size; `bapo export` does not compress, and who packs anew gains less
INFLATION = 50
#: what a damaged or foreign zip file raises; RuntimeError: a password, or a method that zipfile does not know
DAMAGES = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, RuntimeError, OSError, EOFError, ValueError)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Path]:
    """Yield the folder of results or of a crate; a zip file's is a temporary one.

    Raises UserError where there is neither, or the zip file cannot be unpacked or should not be.
    """
    if path.is_dir():
        yield path
        return
    if not zipfile.is_zipfile(path):
        wanted = "a results folder such as results/laptop, or a crate (a folder or a .zip file)"
        raise UserError(f"{path}: {'is no zip file' if path.exists() else 'does not exist'}; name {wanted}")
    with tempfile.TemporaryDirectory(prefix="crate-") as folder:
        try:
            with zipfile.ZipFile(path) as packed:
                _check_entries(path, packed)
                packed.extractall(folder)
        except DAMAGES as error:
            raise UserError(f"{path}: cannot be unpacked ({error}); get the file again") from None
        yield Path(folder)


def _check_entries(path: Path, packed: zipfile.ZipFile) -> None:
    """Raise UserError where an entry leads out of the archive, or all of them are far larger than it."""
    for name in packed.namelist():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise UserError(f"{path}: the entry {name} leads out of the archive; do not trust this file")
    inside, size = sum(entry.file_size for entry in packed.infolist()), path.stat().st_size
    if inside > INFLATION * size:
        raise UserError(
            f"{path}: {size / 1e6:.1f} MB would unpack to {inside / 1e6:.1f} MB; if you trust it, unpack it and name "
            "the folder"
        )


def homes(folder: Path) -> list[Path]:
    """Return the scales' folders of a results folder or crate: those with studies/. Raises UserError without one."""
    if (folder / "studies").is_dir():
        return [folder]
    found = sorted(p.parent for p in folder.rglob("studies") if p.is_dir() and any(p.glob("*.json")))
    if not found:
        raise UserError(f"{folder}: holds no studies/*.json; name a scale's results, for example results/laptop")
    if not (folder / METADATA).exists() and len(found) > 1:
        listed = ", ".join(map(str, found))
        raise UserError(f"{folder}: holds several results ({listed}); name one of them")
    return found


def study_of(home: Path) -> Study:
    """Return all studies of a results folder laid over each other, their runs looked for in that folder alone."""
    studies = load_studies(sorted((home / "studies").glob("*.json")))
    return merged([located(study, home) for study in studies.values()])


def located(study: Study, home: Path) -> Study:
    """Return a study whose runs lie in ``home``, wherever its file says they were when it was written."""

    def at(entry: Cell | Base) -> Cell | Base:
        return replace(entry, run=within(home, entry.run))

    blocks = [
        replace(b, base=b.base and at(b.base), methods={m: tuple(map(at, cells)) for m, cells in b.methods.items()})
        for b in study.blocks
    ]
    return replace(study, blocks=tuple(blocks))


def within(home: Path, run: Path) -> Path:
    """Return the folder in ``home`` that a run's path ends with, as long as possible; TASK/MODEL/... if there is none.

    results/laptop/countdown/m/bapo/seed1 is HOME/countdown/m/bapo/seed1, whatever HOME is called now.
    """
    parts = run.parts
    for count in range(len(parts), 2, -1):
        place = home.joinpath(*parts[-count:]) if not Path(parts[-count]).is_absolute() else home
        if place != home and place.is_dir():
            return place
    return home.joinpath(*parts[-(3 if parts[-1] == "base" else 4) :])
