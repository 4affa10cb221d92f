"""A study's files as an RO-Crate: JSON-LD that says what each file is, what made it and from what.

RO-Crate 1.1 (w3id.org/ro/crate/1.1) with the profile Process Run Crate 0.5: every run and every call of the analysis is
a CreateAction with its inputs, outputs and the version of the code. Written here, as it is a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from analysis.sharing.places import METADATA

SPECIFICATION = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
#: the terms of the specification, and one that its version of schema.org lacks
CONTEXT = [f"{SPECIFICATION}/context", {"sha256": "https://schema.org/sha256"}]
PREVIEW, SUMS = "ro-crate-preview.html", "manifest-sha256.txt"
SUITE = "bapo-reproduction"
PAPER = "https://arxiv.org/abs/2602.20722"
TYPES = {
    ".json": "application/json",
    ".yaml": "application/yaml",
    ".csv": "text/csv",
    ".md": "text/markdown",
    ".tex": "application/x-tex",
    ".html": "text/html",
    ".txt": "text/plain",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".pdf": "application/pdf",
    ".parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True)
class File:
    """A file of the crate. sha256: "" for the list of sums and the preview, which are made from the others."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Action:
    """One thing that was done. name: in words; inputs, outputs: names of files in the crate; code: of a manifest."""

    key: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    code: Mapping[str, Any]
    command: str = ""
    started: str = ""
    ended: str = ""


@dataclass(frozen=True)
class About:
    """What a person says of the crate. date: of publication, ISO 8601; license: a URL."""

    title: str
    description: str
    date: str
    license: str
    author: str = ""


def metadata(about: About, files: Sequence[File], actions: Sequence[Action]) -> dict[str, Any]:
    """Return the content of ro-crate-metadata.json: a flat graph, in the order of the files' names."""
    folders = _folders(f.name for f in files)
    top = [_id(name) for name in (*folders, *(f.name for f in files)) if "/" not in name.rstrip("/")]
    suites = {_suite_id(a.code): a.code for a in actions}
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": about.title,
        "description": about.description,
        "datePublished": about.date,
        "license": {"@id": about.license},
        "conformsTo": {"@id": PROFILE},
        "citation": {"@id": PAPER},
        "hasPart": [{"@id": name} for name in sorted(top)],
        "mentions": [{"@id": f"#{a.key}"} for a in actions],
    }
    author = {"@id": "#author", "@type": "Person", "name": about.author}
    if about.author:
        root["author"] = {"@id": author["@id"]}
    graph = [
        {"@id": METADATA, "@type": "CreativeWork", "conformsTo": {"@id": SPECIFICATION}, "about": {"@id": "./"}},
        root,
        {"@id": PREVIEW, "@type": "CreativeWork", "about": {"@id": "./"}},
        {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
        {"@id": about.license, "@type": "CreativeWork", "name": about.license.rstrip("/").rsplit("/", 1)[-1]},
        {"@id": PAPER, "@type": "ScholarlyArticle", "name": "Buffer Matters (BAPO), arXiv 2602.20722"},
        *([author] if about.author else []),
        *({"@id": i, **_suite(code)} for i, code in sorted(suites.items())),
        *(_folder(name, inside) for name, inside in folders.items()),
        *(_file(f) for f in files),
        *(_action(a) for a in actions),
    ]
    return {"@context": CONTEXT, "@graph": [_single(entity) for entity in graph]}


def _single(entity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entity without what is empty, and with one value instead of a list of one, as is recommended."""
    plain = {k: v[0] if isinstance(v, list) and len(v) == 1 else v for k, v in entity.items()}
    return {k: v for k, v in plain.items() if v not in ("", [])}


def _folders(names: Iterable[str]) -> dict[str, list[str]]:
    """Return folder/ -> what lies in it, folders with a slash at the end; every folder on the way to a file."""
    folders: dict[str, dict[str, None]] = {}
    for name in names:
        path = PurePosixPath(name)
        inside = name
        for folder in path.parents:
            if str(folder) == ".":
                break
            folders.setdefault(f"{folder}/", {})[inside] = None
            inside = f"{folder}/"
    return {name: sorted(folders[name]) for name in sorted(folders)}


def _id(name: str) -> str:
    """Return a path as a URI: the specification wants spaces and the like encoded."""
    from urllib.parse import quote

    return quote(name, safe="/+=,@~!$&'()*;")


def _folder(name: str, inside: Sequence[str]) -> dict[str, Any]:
    parts = [{"@id": _id(part)} for part in inside]
    return {"@id": _id(name), "@type": "Dataset", "name": name.rstrip("/"), "hasPart": parts}


def _file(file: File) -> dict[str, Any]:
    path = PurePosixPath(file.name)
    kind = TYPES.get(path.suffix)
    return {
        "@id": _id(file.name),
        "@type": "File",
        "name": path.name,
        **({"encodingFormat": kind} if kind else {}),
        **({"contentSize": str(file.size), "sha256": file.sha256} if file.sha256 else {}),
    }


def _action(action: Action) -> dict[str, Any]:
    return {
        "@id": f"#{action.key}",
        "@type": "CreateAction",
        "name": action.name,
        "instrument": {"@id": _suite_id(action.code)},
        "description": action.command or action.name,
        "startTime": action.started,
        "endTime": action.ended,
        "object": [{"@id": _id(name)} for name in action.inputs],
        "result": [{"@id": _id(name)} for name in action.outputs],
    }


def _suite_id(code: Mapping[str, Any]) -> str:
    words = (code.get("commit") or code.get("version") or "unknown", "dirty" if code.get("dirty") else "")
    return f"#{SUITE}-{'-'.join(w for w in words if w)}"


def _suite(code: Mapping[str, Any]) -> dict[str, Any]:
    version = str(code.get("version") or "unknown")
    name = f"{SUITE} {version}"
    return {
        "@type": "SoftwareApplication",
        "name": name,
        "softwareVersion": version,
        "description": code_in_words(code),
    }


# ------------------------------------------------------------------------------------------------ for people


def code_in_words(code: Mapping[str, Any] | None) -> str:
    """Return "commit abc + uncommitted changes", or why the commit is not known."""
    if not code:
        return "not recorded"
    if not code.get("commit"):
        return f"version {code.get('version')}, not from a git checkout: the commit is not known"
    return f"commit {code['commit'][:12]}" + (" + uncommitted changes" if code.get("dirty") else "")


def preview(about: About, files: Sequence[File], actions: Sequence[Action]) -> str:
    """Return ro-crate-preview.html: what the crate holds, how to check it and what made each file. No script."""
    from markupsafe import escape

    commands = [f"sha256sum -c {SUMS}", "python -m bapo verify .", "python -m bapo compare . results/laptop"]
    rows = "".join(
        f'<tr><td><a href="{escape(_id(f.name))}">{escape(f.name)}</a></td><td>{f.size:,}</td>'
        f"<td><code>{f.sha256[:16]}</code></td></tr>\n"
        for f in files
    )
    done = "".join(
        f"<tr><td>{escape(a.name)}</td><td>{escape(code_in_words(a.code))}</td><td>{escape(a.ended)}</td></tr>\n"
        for a in actions
    )
    author = f"<p>{escape(about.author)}</p>" if about.author else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(about.title)}</title>
<style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color-scheme:light dark}}table{{border-collapse:collapse;display:block;overflow-x:auto}}
td{{padding:.1rem .8rem .1rem 0;vertical-align:top}}</style></head><body>
<h1>{escape(about.title)}</h1>
{author}<p>{escape(about.description)}</p>
<p>Published {escape(about.date)}, licence <a href="{escape(about.license)}">{escape(about.license)}</a>.</p>
<pre>{escape(chr(10).join(commands))}</pre>
<h2>Files</h2><table>
{rows}</table>
<h2>What made them</h2><table>
{done}</table>
</body></html>
"""
