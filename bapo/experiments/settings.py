"""What ``snakemake --config KEY=VALUE`` and ``bapo plan --config`` ask for: keys, types, defaults and checks."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from bapo.errors import UserError, unknown
from bapo.experiments import compose, places
from bapo.experiments.cells import Cell, unknown_name
from bapo.experiments.places import options
from bapo.experiments.schema import Config
from bapo.project import ABOUT
from bapo.validate import NOT_EMPTY, ONE, Rule, hints_of, one_of, parse_yaml, read, setting


def _key(default: Any, meaning: str, *rules: Rule) -> Any:
    """Define a key of ``--config``. meaning: completes "KEY: must be ..."."""
    field = setting(default, *rules)
    return dataclasses.field(default=field.default, metadata={**field.metadata, "meaning": meaning})


#: keys that only say how the work is done
_HOW = ("device", "tracking", "storage", "warm", "progress", "gpus", "gpu_python")


def _words(text: str) -> list[str]:
    """Split a command as a shell does; nothing for one whose quotes do not end."""
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _each(holds: Any) -> Rule:
    return Rule(lambda values: all(map(holds, values)), "")


@dataclass(frozen=True)
class Settings:
    """The keys of ``--config``. Everything else is set in ``experiments/`` or with ``set``."""

    scale: str = _key("laptop", "the name of a file in experiments/scale/, for example laptop, smoke or paper")
    engine: str | None = _key(None, "torch or verl (default the scale's usual one)", one_of("torch", "verl"))
    device: str | None = _key(None, "auto, cpu or cuda", one_of("auto", "cpu", "cuda"))
    results: str = _key("results", "a folder", NOT_EMPTY)
    data_folder: str | None = _key(None, "a folder with local copies of the hub's data sets", NOT_EMPTY)
    tracking: str | None = _key(None, "wandb or none", one_of("wandb", "none"))
    methods: tuple[str, ...] = _key(
        (), "a list of files in experiments/method/, for example methods=[grpo,bapo] (default the study's)"
    )
    seeds: tuple[int, ...] = _key(
        (),
        "a list of integers of 0 or more, for example seeds=[1,2,3] (default the study's)",
        _each(lambda seed: seed >= 0),
    )
    trials: int | None = _key(None, "an integer of 1 or more, the trials of a free sweep (default the sweep's)", ONE)
    storage: str | None = _key(
        None, "the URL of an Optuna storage for the sweeps' studies (default a journal file)", NOT_EMPTY
    )
    warm: bool = _key(True, "true or false")  # whether jobs start as children of one process (bapo/warm)
    progress: str = _key("line", "line or plain (all that the jobs print)", one_of("line", "plain"))
    gpus: tuple[str, ...] = _key(
        (),
        "a list of this machine's GPUs by nvidia-smi's numbers, for example gpus=[0,1] (default all visible ones)",
        _each(lambda name: re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", name)),
    )
    gpu_python: str | None = _key(
        None,
        "a command that runs Python where jobs on GPUs can: the interpreter of another environment, or for example "
        "'apptainer exec --nv bapo.sif python' (default the interpreter of all jobs)",
        Rule(_words, ""),
    )
    set: tuple[str, ...] = _key(
        (),
        "a list of overrides, for example 'set=[\"train.steps=50\"]'",
        _each(lambda word: re.match(r"[A-Za-z_][\w.-]*=", word)),
    )

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the overrides of every job, the names of its cell excepted."""
        named = {
            "engine": self.engine,
            "device": self.device,
            "tracking": self.tracking,
            "paths.results": None if self.results == "results" else self.results,
            "paths.data_folder": self.data_folder,
        }
        return (*(f"{key}={compose.quoted(value)}" for key, value in named.items() if value is not None), *self.set)

    def overrides_of(self, method: str) -> tuple[str, ...]:
        """Return the overrides of a job of ``method``; "" stands for problems and base models, which have no method."""
        return self.overrides if method else tuple(o for o in self.overrides if not compose.METHODS_OWN.match(o))

    def folder(self) -> str:
        """Name the folder of the scale's results."""
        return places.scale_folder(self.scale, self.usual_engine, self.engine or self.usual_engine)

    @property
    def usual_engine(self) -> str:
        """Return the engine of the scale where none is named."""
        scale = parse_yaml(places.file_of("scale", self.scale))
        return scale.get("engine", "torch")

    @property
    def home(self) -> Path:
        """Return the folder of the scale's results."""
        return Path(self.results, self.folder())

    def run(self, cell: Cell) -> Config:
        """Compose the configuration of a run."""
        return compose.run_config(self.scale, cell.task, cell.model, cell.method, cell.seed, self.overrides)

    def changed(self) -> dict[str, Any]:
        """Collect what differs from the defaults."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}

    def as_json(self) -> str:
        """Write what differs from the defaults for a command line."""
        return json.dumps(self.changed(), sort_keys=True)

    def as_words(self) -> list[str]:
        """Write what differs as ``snakemake --config`` takes it, less what only says how the work is done."""
        shown = {key: value for key, value in self.changed().items() if key not in _HOW}
        return [
            f"{key}={json.dumps(value, separators=(',', ':')) if isinstance(value, tuple) else value}"
            for key, value in shown.items()
        ]


def read_settings(keywords: Mapping[str, Any]) -> Settings:
    """Check ``--config`` against the keys of Settings and the names in ``experiments/``.

    Raises UserError: one sentence with the key and the allowed values.
    """
    keys = {field.name: field for field in dataclasses.fields(Settings)}
    values: dict[str, Any] = {}
    for key, value in keywords.items():
        if key in ABOUT:
            continue  # of bapo.yaml, which Snakemake passes on whole
        if key not in keys:
            raise UserError(unknown(f"--config {key}", "no such key", key, sorted(keys)))
        if value is None:
            continue
        try:
            values[key] = _converted(key, value)
            read(Settings, {key: values[key]}, None)
        except (UserError, ValueError, TypeError):
            raise UserError(f"--config {key}={value}: must be {keys[key].metadata['meaning']}") from None
    settings = read(Settings, values, None)
    for key, group, names in (("scale", "scale", [settings.scale]), ("methods", "method", settings.methods)):
        for name in names:
            if wrong := unknown_name(group, name):
                what = f"unknown {wrong[0]} '{wrong[1]}'" if wrong[0] == "variant" else f"unknown {wrong[0]}"
                raise UserError(unknown(f"--config {key}={name}", what, wrong[1], options(wrong[0])))
    return settings


def _converted(key: str, value: Any) -> Any:
    """Read what Snakemake leaves as text, and a single value for a list: ``seeds=1``, ``methods=grpo,bapo``."""
    kind = hints_of(Settings)[key]
    if kind is bool:  # Snakemake reads True only
        return {"true": True, "false": False}.get(str(value).lower(), value)
    if get_origin(kind) is not tuple:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return str(value) if number and int not in get_args(kind) else value
    if isinstance(value, str):
        value = shlex.split(value) if key == "set" else re.split(r"[\s,]+", value.strip())
    values = value if isinstance(value, list | tuple) else [value]
    if not values or "" in values:
        raise ValueError("an empty list")
    if get_args(kind)[0] is int:
        return [int(v) if isinstance(v, str) and v.isdecimal() else v for v in values]
    return [str(v) if type(v) is int else v for v in values]
