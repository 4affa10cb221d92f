"""Check that a crate is whole and unchanged, and that its metadata are an RO-Crate's that describes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from analysis.sharing.crate import PREVIEW, SPECIFICATION, SUMS
from analysis.sharing.places import METADATA
from bapo.errors import UserError
from bapo.store.files import SUMMARY, read_json, sha256

#: what the specification asks of the root, section "Root Data Entity"
REQUIRED = ("name", "description", "datePublished", "license")


def problems(folder: Path) -> list[str]:
    """Return a sentence for everything that is wrong with an opened crate; none if it is as it was packed.

    Raises UserError where it has no list of sums or no metadata: then it is no crate of this suite.
    """
    for name in (SUMS, METADATA):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: {name} is missing; name a crate that `python -m bapo export` has written")
    found = [*_sums(folder), *_graph(folder), *_summaries(folder)]
    return [sentence.encode(errors="backslashreplace").decode() for sentence in found]  # a name may hold anything


def read_sums(folder: Path) -> dict[str, str]:
    """Return name -> SHA-256, as sha256sum writes them. Raises UserError naming a line that is none."""
    sums = {}
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{SUMS}: is no text; get the crate again") from None
    for number, line in enumerate(lines, 1):
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if not match:
            raise UserError(f"{SUMS}, line {number}: is no line of sha256sum; get the crate again")
        sums[match[2]] = match[1]
    return sums


def _names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def _sums(folder: Path) -> Iterator[str]:
    sums, names = read_sums(folder), _names(folder)
    for name, expected in sums.items():
        if name not in names:
            yield f"{name} is missing"
        elif sha256(folder / name) != expected:
            yield f"{name} was changed: its SHA-256 is not that of {SUMS}"
    yield from (f"{name} is not in {SUMS}: it was added" for name in sorted(names - {*sums, SUMS}))


def _graph(folder: Path) -> Iterator[str]:
    """Yield what the specification asks for and the metadata lack, and what they say that the files do not show."""
    try:
        graph = json.loads((folder / METADATA).read_text(encoding="utf-8"))["@graph"]
        entities: dict[str, dict[str, Any]] = {e["@id"]: e for e in graph}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"{METADATA} is no JSON-LD with a @graph of entities ({type(error).__name__}: {error})"
        return
    strange = [name for e in graph for name in (e["@id"], *_references(e)) if not isinstance(name, str)]
    if strange:
        yield f"{METADATA}: the @id {strange[0]} is no text"
        return
    if len(entities) != len(graph):
        yield f"{METADATA}: an @id is there twice"
    descriptor, root = entities.get(METADATA, {}), entities.get("./", {})
    if descriptor.get("about") != {"@id": "./"} or descriptor.get("conformsTo") != {"@id": SPECIFICATION}:
        yield f"{METADATA}: its descriptor must be about ./ and conform to {SPECIFICATION}"
    yield from (f"{METADATA}: the root has no {key}" for key in REQUIRED if not root.get(key))
    for entity in entities.values():
        for target in _references(entity):
            if target not in entities and not target.startswith(("http://", "https://")):
                yield f"{METADATA}: {entity['@id']} refers to {target}, which is not described"
    files = {unquote(i): e for i, e in entities.items() if e.get("@type") == "File"}
    names = _names(folder) - {METADATA, PREVIEW}
    yield from (f"{METADATA}: {name} is described, but not there" for name in sorted(files.keys() - names))
    yield from (f"{METADATA}: {name} is not described" for name in sorted(names - files.keys()))
    for name in sorted(files.keys() & names):
        said = files[name]
        if "sha256" in said and said["sha256"] != sha256(folder / name):
            yield f"{METADATA}: {name} has another SHA-256 than is said"
    reached, todo = set(), ["./"]
    while todo:
        for part in _references({"hasPart": entities.get(todo.pop(), {}).get("hasPart", [])}):
            if part not in reached:
                reached.add(part)
                todo.append(part)
    lost = {i for i, e in entities.items() if e.get("@type") == "File"} - reached
    yield from (f"{METADATA}: no hasPart leads from the root to {name}" for name in sorted(lost))


def _references(entity: dict[str, Any]) -> Iterator[Any]:
    for value in entity.values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict) and set(item) == {"@id"}:
                yield item["@id"]


def _summaries(folder: Path) -> Iterator[str]:
    """Yield the files of runs that are in the crate and are not what their run's summary sealed."""
    for path in sorted(folder.rglob(SUMMARY)):
        place = path.relative_to(folder)
        try:
            seals = read_json(path).get("files", {})
            sealed = {name: seal["sha256"] for name, seal in seals.items()}
        except (UserError, KeyError, TypeError, AttributeError, RecursionError):
            yield f"{place} is no summary with the files that it sealed"
            continue
        for name, digest in sealed.items():
            file = path.parent / name
            if file.is_file() and sha256(file) != digest:
                yield f"{place.parent / name} is not what {place} sealed"
