"""The origin of a result: ``python -m bapo provenance FILE``, and the records beside tables and figures.

A run, the problems, a base model and an evaluation carry a manifest and a summary with the SHA-256 of their files
(:mod:`bapo.store.files`). Files of ``python -m analysis`` have ``.provenance/NAME.json`` beside them: the files and
their inputs with their SHA-256, the command, the code, packages and hardware. Nothing here imports torch or pandas.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bapo import __version__
from bapo.errors import UserError
from bapo.store import manifest
from bapo.store.files import CHECKSUMS, CONFIG, MANIFEST, SUMMARY, damaged_files, read_json, sha256, write_json
from bapo.store.manifest import timestamp

FOLDER = ".provenance"
DEPTH = 6  # folders from a file of a checkpoint up to its run
#: the files of a run's folder that stand for what an analysis has read
SUMMARIES = (SUMMARY, f"eval/{SUMMARY}", f"curve/{SUMMARY}")

# ------------------------------------------------------------------------------------------------ writing


def record(files: Iterable[Path], command: Sequence[str], inputs: Iterable[Path]) -> list[Path]:
    """Write a record beside ``files``, one for all that differ only by suffix, and return the records.

    command: the words after ``python -m``. inputs: those that exist are recorded, a summary.json with its identity.
    Paths are relative to the folder of the files, so a results folder may be moved. Raises UserError if a record
    cannot be written.
    """
    groups: dict[Path, list[Path]] = {}
    for file in map(Path, files):
        if file.is_file():
            groups.setdefault(_record_of(file), []).append(file)
    read = {path: _input(path) for path in inputs if path.is_file()} if groups else {}
    made_by = {
        "command": shlex.join(["python", "-m", *command]),
        "code": {"version": __version__, **manifest.git_state()},
        "packages": manifest.package_versions(),
        "hardware": manifest.hardware(),
        "written": timestamp(),
    }
    for path, outputs in groups.items():
        folder = path.parent.parent
        content = {"files": {f.name: sha256(f) for f in outputs}, **made_by}
        write_json(path, content | {"inputs": {os.path.relpath(p, folder): entry for p, entry in read.items()}})
    return list(groups)


def _record_of(file: Path) -> Path:
    return file.parent / FOLDER / f"{file.stem}.json"


def inputs_of_studies(paths: Iterable[Path]) -> list[Path]:
    """Return the study files and the existing summaries of the runs and base models that they name."""
    inputs: dict[Path, None] = {}
    for path in paths:
        inputs[Path(path)] = None
        content = read_json(path)
        for entry in (*content.get("cells", []), *content.get("bases", [])):
            inputs |= dict.fromkeys(p for name in SUMMARIES if (p := Path(entry["run"], name)).is_file())
    return list(inputs)


def inputs_of_sweep(trials: Path) -> list[Path]:
    """Return a sweep's trials.json and the existing summaries of its runs and the reference's."""
    content = read_json(trials)
    folders = [seed["run"] for trial in content.get("trials", []) for seed in trial["seeds"].values()]
    folders += content.get("reference", {}).get("runs", {}).values()
    return [trials, *dict.fromkeys(p for run in folders if (p := Path(run, SUMMARY)).is_file())]


def robustness_reports(results: Path) -> list[list[Path]]:
    """Return .md, .svg and .csv of every sweep's finished robustness report; the .csv is written last."""
    reports = [[p.with_suffix(s) for s in (".md", ".svg", ".csv")] for p in results.glob("sweeps/*/robustness.md")]
    return sorted(files for files in reports if all(p.exists() for p in files))


def inputs_of_report(results: Path) -> list[Path]:
    """Return the files of a scale's folder that the page may show: tables, figures, sweeps, ledger, studies' runs."""
    shown = [p for part in ("tables", "figures") for p in sorted((results / part).glob("*")) if p.is_file()]
    shown += [p for files in robustness_reports(results) for p in files]
    shown += sorted(results.glob("claims*.*"))
    return [*shown, *inputs_of_studies(sorted((results / "studies").glob("*.json")))]


def _input(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = {"sha256": sha256(path)}
    if path.name == SUMMARY:
        with contextlib.suppress(UserError):  # a damaged one is an input all the same
            content["identity"] = read_json(path).get("identity")
    return content


# ------------------------------------------------------------------------------------------------ reading


def of(path: Path) -> dict[str, Any]:
    """Return the origin of ``path`` and what has changed since.

    Keys: file, kind, sha256, state, made (command, code, packages, hardware, times), inputs (a list of path, state,
    identity and code), changed (sentences). Raises UserError if the file is missing or has no record.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist; name a file of a results folder")
    origin = _recorded(path) or _in_a_folder(path)
    if origin is None:
        raise UserError(
            f"{path}: no record of it in {path.parent / FOLDER} and no manifest of a run around it; it was not made by "
            "this suite, or by a version without records: make it again"
        )
    return origin


def _recorded(path: Path) -> dict[str, Any] | None:
    """Return the origin of a file that ``python -m analysis`` wrote; None without a record of it."""
    folder = path.parent
    if not path.is_file() or not _record_of(path).is_file():
        return None
    content = read_json(_record_of(path))
    if path.name not in content["files"]:
        return None
    state = "as it was written" if sha256(path) == content["files"][path.name] else "changed since it was written"
    inputs = [_since(folder, name, entry) for name, entry in content["inputs"].items()]
    made = {k: content[k] for k in ("command", "code", "packages", "hardware", "written")}
    return _checked(path, "analysis", state, made, inputs)


def _since(folder: Path, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Compare an input's entry in a record with the file as it is now."""
    path = Path(os.path.normpath(folder / name))
    state = "missing"
    if path.is_file():
        state = "unchanged" if sha256(path) == entry["sha256"] else "changed"
    line = {"path": str(path), "state": state, "identity": entry.get("identity")}
    if path.name == SUMMARY:
        line["code"] = None
        with contextlib.suppress(UserError):  # a damaged manifest counts as none
            line["code"] = _around(path, MANIFEST)[1].get("code")
    return line


def _in_a_folder(path: Path) -> dict[str, Any] | None:
    """Return the origin of a file or folder of a run, a base model, an evaluation or problems; None outside one."""
    folder, manifest = _around(path, MANIFEST)
    home, content = _around(path, SUMMARY)
    if not manifest and "identity" not in content:
        return None
    home = folder if manifest else home
    made = {"identity": content.get("identity"), **manifest}
    if (home / CONFIG).is_file():
        made["config"] = str(home / CONFIG)
    return _checked(path, "run", _state(path), made, [_built_on(*base) for base in _foundations(home, manifest)])


def _foundations(home: Path, manifest: Mapping[str, Any]) -> list[tuple[Path, str | None]]:
    """Return (folder, identity) of each job that ``home`` builds on: problems and base model, or the evaluated run."""
    if home.name in ("eval", "curve"):
        return [(home.parent, None)]
    task, model = (home.parents[2], home.parents[1]) if home.name.startswith("seed") else (home.parents[1], home)
    folders = {"data_identity": task / "data", "base_identity": model / "base"}
    return [(folder, manifest[key]) for key, folder in folders.items() if key in manifest]


def _built_on(folder: Path, identity: str | None) -> dict[str, Any]:
    """Describe the problems or the model in ``folder`` as they are now; identity None accepts any."""
    summary = folder / SUMMARY
    state = "missing"
    if summary.is_file():
        content = read_json(summary)
        broken = damaged_files(folder, content.get("files", {}))
        identity = identity or content.get("identity")
        state = "unchanged" if content.get("identity") == identity and not broken else "changed"
    code = _around(summary, MANIFEST)[1].get("code")
    return {"path": str(summary), "state": state, "identity": identity, "code": code}


def _state(path: Path) -> str:
    """Say whether a file still has the contents recorded in its folder's summary or its checkpoint's checksums."""
    if path.is_dir() or path.name in (SUMMARY, CHECKSUMS):
        folder = path if path.is_dir() else path.parent
        if not (folder / SUMMARY).is_file():
            return "unfinished: no summary"
        broken = damaged_files(folder, read_json(folder / SUMMARY).get("files", {}))
        return f"changed since it was written: {broken[0]}" if broken else "all files as they were written"
    for folder in list(path.absolute().parents)[:DEPTH]:
        for name in (SUMMARY, CHECKSUMS):
            if not (folder / name).is_file():
                continue
            content = read_json(folder / name)
            files = content.get("files", content) if isinstance(content, dict) else {}
            entry = files.get(path.absolute().relative_to(folder).as_posix())
            if isinstance(entry, Mapping) and "sha256" in entry:
                same = sha256(path) == entry["sha256"]
                return "as it was written" if same else "changed since it was written"
    return "not fingerprinted: whether it was changed cannot be told"


def _around(path: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Return (folder, content) of the nearest JSON file of this name around ``path``; the content is {} without one."""
    path = path.absolute()
    for folder in [*([path] if path.is_dir() else []), *list(path.parents)[:DEPTH]]:
        if (folder / name).is_file():
            return folder, read_json(folder / name)
    return path.parent, {}


def _checked(
    path: Path, kind: str, state: str, made: Mapping[str, Any], inputs: list[dict[str, Any]]
) -> dict[str, Any]:
    changed = [f"{path} was {state}"] if state.startswith("changed") else []
    changed += [f"{line['path']} is {line['state']} since" for line in inputs if line["state"] != "unchanged"]
    return {
        "file": str(path),
        "kind": kind,
        "sha256": sha256(path) if path.is_file() else None,
        "state": state,
        "made": dict(made),
        "inputs": inputs,
        "changed": changed,
    }


# ------------------------------------------------------------------------------------------------ in words


def code_in_words(code: Mapping[str, Any] | None) -> str:
    """Return "commit abc + uncommitted changes", or why the commit is not known."""
    if not code:
        return "not recorded"
    if not code.get("commit"):
        return f"version {code.get('version')}, not from a git checkout: the commit is not known"
    return f"commit {code['commit'][:12]}" + (" + uncommitted changes" if code.get("dirty") else "")


def as_text(origin: Mapping[str, Any]) -> str:
    """Write the origin of a file for people, with one line per input."""
    made = origin["made"]
    lines = [origin["file"], f"  state: {origin['state']}"]
    if origin["sha256"]:
        lines.append(f"  sha256: {origin['sha256']}")
    for key in ("identity", "config", "command", "seed", "device", "threads", "parameters"):
        if made.get(key) is not None:
            lines.append(f"  {'configuration hash' if key == 'identity' else key}: {made[key]}")
    lines.append(f"  code: {code_in_words(made.get('code'))}")
    for key in ("started", "ended", "written", "resumed"):
        if made.get(key) is not None:
            lines.append(f"  {key}: {made[key]}")
    if made.get("packages"):
        lines.append("  packages: " + ", ".join(f"{k} {v}" for k, v in made["packages"].items()))
    if made.get("hardware"):
        h = made["hardware"]
        memory = f", {h['memory_bytes'] / 1e9:.0f} GB" if h.get("memory_bytes") else ""
        lines.append(f"  hardware: {h.get('processor')}, {h.get('cores')} cores{memory}, {h.get('system')}")
    if origin["inputs"]:
        lines.append(f"  inputs: {len(origin['inputs'])}")
    for line in origin["inputs"]:
        facts = [line["state"], *([f"configuration {line['identity']}"] if line["identity"] else [])]
        facts += [f"code: {code_in_words(line['code'])}"] if "code" in line else []
        lines.append(f"    {line['path']}: {'; '.join(facts)}")
    dirty = [line["path"] for line in origin["inputs"] if (line.get("code") or {}).get("dirty")]
    if dirty:
        lines.append(f"  {len(dirty)} of the inputs were made by uncommitted code")
    lines.append("  changed: " + ("; ".join(origin["changed"]) or "nothing that is recorded"))
    return "\n".join(lines) + "\n"


def main(file: str, as_json: bool = False) -> int:
    """Print the origin of ``file`` and return the exit status: 1 if it or an input has changed, else 0."""
    origin = of(Path(file))
    print(json.dumps(origin, indent=2) if as_json else as_text(origin), end="\n" if as_json else "")
    return 1 if origin["changed"] else 0
