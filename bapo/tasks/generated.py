"""The data job of a task whose problems are generated for small models or read from public sets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from bapo import seeds
from bapo.experiments.schema import Node
from bapo.store.files import Json
from bapo.tasks import files
from bapo.tasks.base import Problem, Progress, Task
from bapo.validate import plain, read, wrong

if TYPE_CHECKING:
    import numpy as np

    from bapo.experiments.schema import Config, DataConfig

Share = Annotated[float, Field(ge=0, le=1)]


class Options(Node):
    """The keys of ``data.generator``: a subclass names them with types and bounds, and draws problems by them."""

    @classmethod
    def of(cls, data: DataConfig) -> Self:
        """Read ``data.generator``. Raises UserError naming key, value and cure."""
        return read(cls, plain(data.generator), None, "data.generator")

    def check(self) -> None:
        """Call :func:`require` for what holds between several keys."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self


def require(holds: bool, key: str, cure: str) -> None:
    """Refuse a generator's options unless ``holds``."""
    if not holds:
        raise ValueError(f"{key} must {cure}")


class GeneratedTask(Task):
    """A task with a generator (``data.source=generated``) and public sets (``data.source=hub``)."""

    ability: ClassVar[str]  #: goes into the column of this name that verl reads
    prompts: ClassVar[Collection[str]]  #: values of ``data.prompt`` for generated problems
    splits: ClassVar[Collection[str]]  #: that can be generated; "base" counts documents, the others problems

    def problems(self, data: DataConfig, split: str, rng: np.random.Generator) -> tuple[list[Problem], dict[str, int]]:
        """Generate the problems of ``split``. Returns them with their counts for the summary."""
        raise self.lacks("problems")

    def write_hub(self, config: Config, folder: Path, say: Callable[[str], None]) -> Json:
        """Write the splits from public sets, as :meth:`Task.write_data` does."""
        raise self.lacks("write_hub")

    def write_data(self, config: Config, folder: Path, progress: Progress | None = None) -> Json:
        data, say = config.data, progress or (lambda text: None)
        if data.source == "hub":
            return self.write_hub(config, folder, say)
        check_data(data, self.prompts, self.splits)
        counts = {}
        for split, size in data.split_sizes.items():
            if split == "base":  # the base job draws its documents, if it trains at all
                continue
            problems, counts[split] = self.problems(data, split, seeds.generator(data.seed, self.name, split))
            files.write_problems(folder / f"{split}.parquet", problems, self.name, self.ability, split)
            say(f"{split}: {size} problems")
        return counts


def check_data(data: DataConfig, prompts: Collection[str], splits: Collection[str]) -> None:
    """Check the keys of ``config.data`` that every source has. Raises UserError naming key, value and cure."""
    if data.prompt not in prompts:
        raise wrong(None, "data.prompt", data.prompt, f"with data.source={data.source} must be {' or '.join(prompts)}")
    for split, size in data.split_sizes.items():
        if split not in splits:
            raise wrong(None, f"data.split_sizes.{split}", None, f"no such split; allowed: {', '.join(splits)}")
        if size < 1:
            raise wrong(None, f"data.split_sizes.{split}", size, "must be at least 1")


def require_worked(data: DataConfig) -> None:
    """Raise UserError where a model trained from scratch would read anything but worked steps."""
    for key, only in (("source", "generated"), ("prompt", "chain")):
        if getattr(data, key) != only:
            cure = f"a model trained from scratch reads data.{key}={only} only; choose a pretrained model"
            raise wrong(None, f"data.{key}", getattr(data, key), cure)


def owner(identity: str, shares: Mapping[str, float]) -> str:
    """Return the one split that a problem may appear in: a function of its name, not of a seed or size.

    shares: split -> share of all problems that it owns, in a fixed order; they add up to 1.
    """
    place = seeds.key64("split", identity) / 2**64
    for split, share in shares.items():
        place -= share
        if place < 0:
            return split
    return next(iter(shares))  # rounding: the shares add up to a hair less than 1
