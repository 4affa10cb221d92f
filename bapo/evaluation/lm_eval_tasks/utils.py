"""Shared by the YAML files beside this one: a task class that loads the public sets."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from lm_eval.api.instance import Instance
from lm_eval.models.api_models import TemplateAPI

from bapo import tasks
from bapo.errors import UserError
from bapo.evaluation.tasks import Sampled, to_dataset
from bapo.store.files import Json
from bapo.tasks.base import Problem
from bapo.tasks.files import check_images, read_problems
from bapo.tasks.job import check_golds

#: Environment variable: a folder with copies of the sets, instead of the hub.
DATA_FOLDER = "BAPO_DATA_FOLDER"


class PaperBenchmark(Sampled):
    """One benchmark of the paper's Table 4, as its YAML file configures it.

    ``dataset_kwargs`` of the file: task (a name of :func:`bapo.tasks.table`), split, prompt (the template), sizes (the
    problems of the split, and of others that it must not share any with) and hub (the source of each: repository,
    revision and so on). The problems come from the hub, or from the folder named by ``dataset_kwargs.data_folder``,
    ``TaskManager(metadata={"data_folder": ...})`` or the environment's
    BAPO_DATA_FOLDER: ``<split>.parquet`` as ``python -m bapo data`` writes it, which says itself how it is graded, or a
    copy of the public set. Raises UserError where the problems cannot be had, or where the grader refuses one of their
    golds.
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

    def build_all_requests(self, chat_template: object = None, **options: object) -> None:
        """Refuse, before a model has sampled anything, arguments that would give one answer 32 times."""
        arguments, model = self.config.generation_kwargs, getattr(chat_template, "__self__", None)
        if arguments.get("seed") is not None or ("seed" not in arguments and isinstance(model, TemplateAPI)):
            raise UserError(
                f"{self.task_name}: lm-eval would send the same seed with every request, and a server that honours it "
                'answers all repeats alike; give simple_evaluate gen_kwargs={"seed": None}'
            )
        super().build_all_requests(chat_template=chat_template, **options)

    def apply_filters(self) -> list[Instance] | None:
        """Refuse samples that are all equal within every problem."""
        repeats = [instance.resps for instance in self.instances]
        if self.samples > 1 and all(len(set(responses)) == 1 for responses in repeats):
            raise UserError(
                f"{self.task_name}: the {self.samples} samples of every problem are equal; the model does not sample, "
                "or repeats its random numbers: see that no seed is in its generation arguments"
            )
        return super().apply_filters()

    def process_results(self, doc: Json, results: list[Sequence[str]]) -> Json:
        """Return the scores of :class:`Sampled` and ``bits``, 1 for each correct sample and 0 for others, in order."""
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
    """Return the problems of one split, whose golds its grader accepts: see :class:`PaperBenchmark`."""
    written = Path(data_folder or "") / f"{split}.parquet"
    if data_folder and _is_written(written):
        problems = read_problems(written)
        where = str(written)
    else:
        problems = tasks.get(task).read_set(hub, split, prompt, sizes, data_folder)
        for problem in problems:
            check_images(problem, f"{split}: problem {problem.id}")
        where = f"{split} of {data_folder or hub[split]['repository']}"
    expected = {sizes[split], hub[split].get("rows"), hub[split].get("file_rows")} - {None}
    if len(problems) not in expected:
        sides = " or ".join(map(str, sorted(expected)))
        raise UserError(f"{where}: {len(problems)} problems, but {split} has {sides}; make or get it again")
    check_golds(tasks.get(task), [(p.id, p.ground_truth) for p in problems], where)
    return problems


def _is_written(path: Path) -> bool:
    """Return whether this is a file of ``python -m bapo data``, and not a copy of a public set by the same name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return {"reward_model", "extra_info"} <= set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return False
