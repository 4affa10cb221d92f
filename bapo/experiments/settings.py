"""The settings of the workflow, of ``bapo run`` and ``snakemake --config``: keys, types, defaults and checks."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError

from bapo import project
from bapo.errors import UserError
from bapo.experiments import compose, places
from bapo.experiments.order import Cell
from bapo.experiments.schema import Config
from bapo.store.files import Json
from bapo.validate import OVERRIDE, Folder, Kind, Part, Seed, parse_yaml, refused, require_plain, wrong


def _as_list(value: object) -> object:
    """Return a list as texts; a single value or a text such as ``grpo,bapo`` becomes a list."""
    values = re.split(r"[\s,]+", value.strip()) if isinstance(value, str) else value
    return [require_plain(str(v)) for v in (values if isinstance(values, list | tuple) else [values])]


def _distinct(values: tuple[object, ...]) -> tuple[object, ...]:
    if doubles := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"names {doubles[0]} twice; leave one out")
    return values


def _as_words(value: object) -> object:
    return shlex.split(value) if isinstance(value, str) else value


def _as_yaml(value: object) -> str:
    """Return a value as YAML reads it: a text as it is, where that is read as itself."""
    with suppress(yaml.YAMLError):
        if isinstance(value, str) and yaml.safe_load(value) == value:
            return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


#: keys that ``set`` refuses, as they move a job's output or have a setting -> the setting to use, if any
_ELSEWHERE = {"seed": "seeds", "method.name": "methods", "scale.name": "scale", "tracking.kind": "tracking"}
_ELSEWHERE |= {"engine": "engine", "scale.engine": "engine", "device": "device"}
_ELSEWHERE |= {"task.name": "", "model.name": "", "models": "", "task.methods": "", "data.of_model": ""}
_ELSEWHERE |= {"paths.results": "results", "paths.data_folder": "data_folder", "setting": "scale"}


def _override_of_jobs(override: str) -> str:
    key = override.partition("=")[0]
    for refused_key, setting in _ELSEWHERE.items():
        # to set a mapping is to set its keys
        if f"{refused_key}.".startswith(f"{key}.") or f"{key}.".startswith(f"{refused_key}."):
            cure = f"write {setting}=... beside it" if setting else "a study names it"
            raise ValueError(f"{key} cannot be set for single jobs; {cure}")
    return override


Text = Annotated[str, Field(min_length=1)]
Distinct = Annotated[tuple[Kind, ...], BeforeValidator(_as_list), AfterValidator(_distinct)]
Overrides = tuple[Annotated[str, Field(pattern=OVERRIDE), AfterValidator(_override_of_jobs)], ...]
#: settings that do not change what is computed
_HOW = {"device", "tracking", "warm", "progress", "gpu_python"}


class Settings(Part):
    """Holds the keys of ``--config``. Everything else is set in ``experiments/`` or with ``set``."""

    model_config = ConfigDict(strict=False, frozen=True)

    scale: Text = "laptop"  # models, tasks and hardware: a file in experiments/scale/
    engine: Literal["torch", "verl"] | None = None  # None: the scale's usual one
    device: Literal["auto", "cpu", "cuda"] | None = None  # of runs and evaluations; None: auto
    results: Folder = "results"  # the folder of all results
    data_folder: Folder | None = None  # a folder with local copies of the hub's data sets
    tracking: Literal["wandb", "trackio", "none"] | None = None  # where trainings are logged, too
    methods: Distinct[Text] = ()  # names, in place of the study's
    seeds: Distinct[Seed] = ()  # of training, in place of the study's; where each model has one seed, a choice of these
    trials: Annotated[int, Field(ge=1, le=10**5)] | None = None  # of a free sweep, in place of the sweep's
    warm: bool = True  # whether jobs start as children of one process (bapo/warm)
    progress: Literal["line", "plain"] = "line"  # plain: all that the jobs print
    #: a command that runs Python where jobs on GPUs can: the interpreter of another environment, or for example
    #: 'apptainer exec --nv bapo.sif python'; (): the interpreter of all jobs
    gpu_python: Annotated[tuple[Text, ...], BeforeValidator(_as_words)] = ()
    #: overrides, for example 'set=["train.steps=50"]'
    set: Annotated[Overrides, BeforeValidator(_as_words), AfterValidator(compose.once)] = ()

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the overrides of every job, except the names of its cell."""
        values = {key: getattr(self, key) for key in ("engine", "device", "tracking")}
        folders = {"paths.results": self.results if self.results != "results" else None}
        folders["paths.data_folder"] = self.data_folder
        values |= {key: json.dumps(folder, ensure_ascii=False) for key, folder in folders.items() if folder}
        return (*(f"{key}={value}" for key, value in values.items() if value is not None), *self.set)

    def overrides_of(self, method: str) -> tuple[str, ...]:
        """Return the overrides of a job of ``method``, or of problems and base models for the method ""."""
        return self.overrides if method else tuple(o for o in self.overrides if not o.startswith("method"))

    @property
    def usual_engine(self) -> str:
        """Return the engine that the scale's file names. Raises UserError where that cannot be read."""
        return str(parse_yaml(places.file_of("scale", self.scale)).get("engine", "torch"))

    @property
    def home(self) -> Path:
        """Return the folder of the scale's results."""
        return places.scale_folder(self.results, self.scale, self.usual_engine, self.engine or self.usual_engine)

    def run(self, cell: Cell) -> Config:
        """Compose the configuration of a run. Raises UserError as :func:`compose.run_config` does."""
        return compose.run_config(self.scale, cell.task, cell.model, cell.method, cell.seed, self.overrides)

    def as_json(self) -> str:
        """Return the settings that differ from the defaults, as JSON for a command line."""
        return json.dumps(self.model_dump(exclude_defaults=True), sort_keys=True)

    def as_words(self) -> list[str]:
        """Return what differs from the defaults as words for ``bapo run``, without the settings in _HOW."""
        differences = self.model_dump(exclude_defaults=True, exclude=_HOW)
        return [f"{key}={_as_yaml(value)}" for key, value in differences.items()]


def settings_of_project() -> Json:
    """Return the settings of ``bapo.yaml`` in the working directory, or {} without it. Raises UserError."""
    home = project.folder()
    if home is None:
        return {}
    values = {key: value for key, value in project.content(home).items() if key != "title"}
    read_settings(values, f"{home / project.MARK}:")
    return values


def read_settings(keywords: Json, where: str = "--config") -> Settings:
    """Return the settings of ``--config`` after checking keys, names in ``experiments/`` and folders.

    Raises UserError, one sentence with the key and what is allowed. where: the beginning of that sentence.
    """
    if not isinstance(keywords, Mapping):
        raise wrong(None, where, keywords, 'must be a mapping, such as {"scale": "smoke"}')
    values = {k: v for k, v in keywords.items() if v is not None}
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where} {refused(error, None)}") from None
    places.require_name(f"{where} scale={settings.scale}", "scale", settings.scale)
    for method in settings.methods:
        places.require_name(f"{where} methods={method}", "method", method)
    if settings.data_folder and not os.path.isdir(settings.data_folder):
        raise wrong(None, f"{where} data_folder", settings.data_folder, "there is no such folder")
    for path in (Path(settings.results), *Path(settings.results).parents):
        if os.path.lexists(path) and not os.path.isdir(path):
            raise wrong(None, f"{where} results", settings.results, f"{path} is no folder; name another place")
    return settings
