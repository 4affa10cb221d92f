"""What ``snakemake --config KEY=VALUE`` and ``bapo plan --config`` ask for: keys, types, defaults and checks."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from bapo.errors import UserError, unknown
from bapo.experiments import compose, places
from bapo.experiments.order import Cell
from bapo.experiments.schema import Config
from bapo.store.files import Json
from bapo.validate import parse_yaml


def _listed(value: object) -> object:
    """Read a single value for a list, as people write it: ``seeds=1``, ``methods=grpo,bapo``."""
    values = re.split(r"[\s,]+", value.strip()) if isinstance(value, str) else value
    return [str(v) for v in values] if isinstance(values, list | tuple) else [str(values)]


def _words(value: object) -> object:
    return shlex.split(value) if isinstance(value, str) else value


def _text(value: object) -> object:
    return str(value) if type(value) in (int, float) else value  # Snakemake reads results=2024 as a number


Text = Annotated[str, BeforeValidator(_text), Field(min_length=1)]
#: keys that only say how the work is done
_HOW = {"device", "tracking", "warm", "progress", "gpu_python"}


class Settings(BaseModel):
    """The keys of ``--config``. Everything else is set in ``experiments/`` or with ``set``.

    A description completes "KEY: must be ...".
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    scale: Text = Field("laptop", description="the name of a file in experiments/scale/, for example laptop or paper")
    engine: Literal["torch", "verl"] | None = Field(None, description="torch or verl (default the scale's usual one)")
    device: Literal["auto", "cpu", "cuda"] | None = Field(None, description="auto, cpu or cuda")
    results: Text = Field("results", description="a folder")
    data_folder: Text | None = Field(None, description="a folder with local copies of the hub's data sets")
    tracking: Literal["wandb", "none"] | None = Field(None, description="wandb or none")
    methods: Annotated[tuple[Text, ...], BeforeValidator(_listed)] = Field(
        (), description="a list of files in experiments/method/, for example methods=[grpo,bapo] (default the study's)"
    )
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_listed)] = Field(
        (), description="a list of integers of 0 or more, for example seeds=[1,2,3] (default the study's)"
    )
    trials: Annotated[int, Field(ge=1)] | None = Field(
        None, description="an integer of 1 or more, the trials of a free sweep (default the sweep's)"
    )
    #: whether jobs start as children of one process (bapo/warm)
    warm: bool = Field(True, description="true or false")
    progress: Literal["line", "plain"] = Field("line", description="line or plain (all that the jobs print)")
    gpu_python: Annotated[tuple[Text, ...], BeforeValidator(_words)] = Field(
        (),
        description="a command that runs Python where jobs on GPUs can: the interpreter of another environment, or for "
        "example 'apptainer exec --nv bapo.sif python' (default the interpreter of all jobs)",
    )
    set: Annotated[tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][\w.-]*=")], ...], BeforeValidator(_words)] = Field(
        (), description="a list of overrides, for example 'set=[\"train.steps=50\"]'"
    )

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the overrides of every job, the names of its cell excepted."""
        named = {key: getattr(self, key) for key in ("engine", "device", "tracking")}
        folders = {"paths.results": self.results if self.results != "results" else None}
        folders["paths.data_folder"] = self.data_folder
        named |= {key: json.dumps(folder, ensure_ascii=False) for key, folder in folders.items() if folder}
        return (*(f"{key}={value}" for key, value in named.items() if value is not None), *self.set)

    def overrides_of(self, method: str) -> tuple[str, ...]:
        """Return the overrides of a job of ``method``; "" stands for problems and base models, which have no method."""
        return self.overrides if method else tuple(o for o in self.overrides if not o.startswith("method"))

    @property
    def usual_engine(self) -> str:
        """Return the engine of the scale where none is named."""
        return str(parse_yaml(places.file_of("scale", self.scale)).get("engine", "torch"))

    @property
    def home(self) -> Path:
        """Return the folder of the scale's results."""
        return places.scale_folder(self.results, self.scale, self.usual_engine, self.engine or self.usual_engine)

    def run(self, cell: Cell) -> Config:
        """Compose the configuration of a run."""
        return compose.run_config(self.scale, cell.task, cell.model, cell.method, cell.seed, self.overrides)

    def as_json(self) -> str:
        """Write what differs from the defaults for a command line."""
        return json.dumps(self.model_dump(exclude_defaults=True), sort_keys=True)

    def as_words(self) -> list[str]:
        """Write what differs as ``snakemake --config`` takes it, less what only says how the work is done."""
        shown = self.model_dump(exclude_defaults=True, exclude=_HOW)
        return [
            f"{key}={json.dumps(value, separators=(',', ':')) if isinstance(value, tuple) else value}"
            for key, value in shown.items()
        ]


def read_settings(keywords: Json) -> Settings:
    """Check ``--config`` against the keys of Settings and the names in ``experiments/``.

    Raises UserError: one sentence with the key and the allowed values.
    """
    keys = Settings.model_fields
    values = {k: v for k, v in keywords.items() if v is not None and k != "title"}  # bapo.yaml is passed whole
    for key in set(values) - set(keys):
        raise UserError(unknown(f"--config {key}", "no such key", key, sorted(keys)))
    try:
        settings = Settings(**values)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        raise UserError(f"--config {key}={values[key]}: must be {keys[key].description}") from None
    places.require_name(f"--config scale={settings.scale}", "scale", settings.scale)
    for method in settings.methods:
        places.require_name(f"--config methods={method}", "method", method)
    return settings
