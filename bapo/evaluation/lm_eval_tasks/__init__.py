"""The paper's eight benchmarks (Table 4), and newer ones, as lm-eval tasks: YAML files.

``TaskManager(include_path=FOLDER)`` finds them. They only need this package, for its loaders and graders:
docs/evaluation.md.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from bapo import tasks
from bapo.errors import UserError
from bapo.evaluation.tasks import Sampled, to_dataset
from bapo.store.files import Json
from bapo.tasks.base import Problem
from bapo.tasks.files import check_images, read_problems
from bapo.tasks.job import check_golds

#: the ``include_path`` for lm-eval
FOLDER = Path(__file__).parent
#: the environment variable that names a folder with copies of the sets, to use instead of the hub
DATA_FOLDER = "BAPO_DATA_FOLDER"


class PaperBenchmark(Sampled):
    """A benchmark of a public set, as its YAML file configures it.

    ``dataset_kwargs`` in the file are the arguments of :func:`load`. The problems come from the hub, or from the folder
    named by ``dataset_kwargs.data_folder``, ``TaskManager(metadata={"data_folder": ...})`` or the environment variable
    BAPO_DATA_FOLDER. Raises UserError as :func:`load` does.
    """

    def __init__(self, config: Json) -> None:
        config = {key: value for key, value in config.items() if key != "class"}
        self.source = dict(config["dataset_kwargs"])
        self.source.setdefault("data_folder", config["metadata"].get("data_folder") or os.environ.get(DATA_FOLDER))
        self.grader, self.samples = tasks.get(self.source["task"]), config["repeats"]
        super().__init__(config)

    def download(self, dataset_kwargs: Json | None = None, **kwargs: object) -> None:
        problems = load(**self.source)
        self.dataset = {self.config.test_split: to_dataset(problems)}

    def process_results(self, doc: Json, results: list[Sequence[str]]) -> Json:
        """Return the scores of :class:`Sampled` and ``bits``: for each sample in order, 1 if it is correct, else 0."""
        problem_scores = super().process_results(doc, results)
        return {**problem_scores, "bits": [int(verdict.correct) for _, verdict in self.graded[doc["id"]]]}


def mean_bit(items: Sequence[Sequence[int]]) -> float:
    """Return the share of correct samples of all problems together."""
    bits = list(itertools.chain.from_iterable(items))
    return sum(bits) / len(bits)


# ------------------------------------------------------------------------------------------------ problems


def load(
    task: str, split: str, prompt: str, sizes: Mapping[str, int], hub: Json, data_folder: str | None = None
) -> list[Problem]:
    """Return the problems of one split.

    Args:
        task: a name of :data:`bapo.tasks.TABLE`
        split: to read
        prompt: the template, as ``data.prompt``
        sizes: numbers of problems of this split, and of others with which it must not share any
        hub: the source of each split: repository, revision and so on
        data_folder: holds ``<split>.parquet``, as ``bapo data`` writes it, or copies of the sets; None: they come from
            the hub

    Raises UserError where the problems are missing, are not as many as expected, or have a gold that the grader
    refuses.
    """
    file = Path(data_folder or "") / f"{split}.parquet"
    if data_folder and file.is_file():
        problems = read_problems(file)
        where = str(file)
    else:
        problems = tasks.get(task).read_set(hub, split, prompt, sizes, data_folder)
        for problem in problems:
            check_images(problem, f"{split}: problem {problem.id}")
        where = f"{split} of {data_folder or hub[split]['repository']}"
    counts = {sizes[split], hub[split].get("rows"), hub[split].get("file_rows")} - {None}
    if len(problems) not in counts:
        alternatives = " or ".join(map(str, sorted(counts)))
        raise UserError(f"{where}: {len(problems)} problems, but {split} has {alternatives}; make or get it again")
    check_golds(tasks.get(task), [(p.id, p.ground_truth) for p in problems], where)
    return problems
