"""What a task is: problems, a verifier and, for models trained from scratch, a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bapo.errors import UserError
from bapo.store.files import Json

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerFast

    from bapo.experiments.schema import Config, DataConfig
    from bapo.graders.verdict import Verdict


@dataclass(frozen=True)
class Problem:
    """Holds one problem.

    Args:
        id: the same problem has the same in every split, epoch and run
        prompt: the content of the user's message, with one ``<image>`` for each of ``images``
        ground_truth: JSON text that only the task's verifier reads
        images: the bytes of PNG or JPEG files
        form: what problems that differ in their looks alone have in common; "" where no two are that close
    """

    id: str
    prompt: str
    ground_truth: str
    images: tuple[bytes, ...] = ()
    form: str = ""


@dataclass(frozen=True)
class Document:
    """Holds one text of supervised training: a response to the prompt of the problem called ``id``."""

    id: str
    prompt: str
    response: str
    images: tuple[bytes, ...] = ()


class Task:
    """A task's data and verifier. The engines, the evaluation and the command line know nothing else of it."""

    name: ClassVar[str]  #: names its folder of results
    benchmarks: ClassVar[Mapping[str, str]]  #: test split -> title in tables
    roles: ClassVar[Mapping[str, str]] = {}  #: stand-in's test split -> the paper's, whose column of Table 1 it takes
    images: ClassVar[bool] = False  #: whether its problems show images

    def verify(self, response: str, ground_truth: str) -> Verdict:
        """Grade one response. Never raises because of it.

        Args:
            response: its text, whatever a model wrote
            ground_truth: of the problem
        """
        raise NotImplementedError

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        """Return responses that the verifier must accept, made of the ground truth alone.

        Args:
            ground_truth: of a problem

        Raises:
            UserError: no response can be right.
        """
        return ()

    def demonstration(self, problem_id: str, prompt: str, ground_truth: str) -> str | None:
        """Return an expert's worked solution; None where the task knows none.

        Args:
            problem_id: of a training problem
            prompt: its text, in which white space may be missing
            ground_truth: of the problem
        """
        return None

    def difficulty(self, ground_truth: str) -> int:
        """Return a problem's difficulty, for ``train.blocks``.

        Args:
            ground_truth: of the problem

        Raises:
            UserError: the task has no difficulties.
        """
        raise UserError(f"train.blocks: the problems of {self.name} have no difficulty; leave it out")

    def write_data(self, config: Config, folder: Path) -> Json:
        """Write ``<split>.parquet`` for every split of problems.

        Each file appears whole or not at all, with the same bytes for the same ``config.data``.

        Args:
            config: of a job
            folder: where to write

        Returns:
            Counts by split.

        Raises:
            UserError: a wrong value; it names the key and the cure.
        """
        raise NotImplementedError

    def read_set(
        self, hub: Json, split: str, prompt: str, sizes: Mapping[str, int], data_folder: str | None
    ) -> list[Problem]:
        """Read the first ``sizes[split]`` problems of one public set, without those of the other splits of ``sizes``.

        Args:
            hub: entries as :mod:`bapo.tasks.sources` reads them
            split: that is read
            prompt: the template, as ``data.prompt``
            sizes: problems of this split, and of those that it must not share any with
            data_folder: has local copies of the sets; None: they come from the hub

        Raises:
            UserError: a wrong value or file; it names the key or file and the cure.
        """
        raise NotImplementedError

    def documents(self, data: DataConfig, rng: np.random.Generator) -> tuple[list[Document], dict[str, int]]:
        """Generate the documents that a base model is trained on.

        Args:
            data: the options; ``data.split_sizes.base`` says how many
            rng: where random choices come from

        Returns:
            The documents, and counts for the summary.

        Raises:
            UserError: the task has no documents.
        """
        raise self._needs_pretrained()

    def build_tokenizer(self, config: Config) -> PreTrainedTokenizerFast:
        """Build the tokenizer of a model trained from scratch.

        Args:
            config: of a job

        Raises:
            UserError: the configuration has none.
        """
        raise self._needs_pretrained()

    def _needs_pretrained(self) -> UserError:
        return UserError(f"model: {self.name} cannot train a model from scratch; name one of kind pretrained")

    def image_size(self, config: Config) -> int | None:
        """Return the side, in pixels, of the square images that a model trained from scratch reads; None: text only.

        Args:
            config: of a job
        """
        return None

    def grade_line(self, line: Json) -> Verdict:
        """Grade one line of a file of responses, for ``bapo grade``.

        Args:
            line: its fields

        Raises:
            UserError: a field is wrong; it names the field.
            KeyError: a field is missing.
        """
        raise UserError(f"task {self.name}: its class has no method grade_line, which `bapo grade` needs")
