"""Makes a benchmark an lm-eval task: problems from a parquet file, with several responses each, all of them graded.

One class serves every benchmark, because the file has the prompts and the task's verifier grades::

    cd34 = Benchmark("cd34", "data/cd34.parquet", tasks.get("countdown"), max_tokens=2048)
    report = lm_eval.simple_evaluate(model="hf", model_args={...}, tasks=[cd34], apply_chat_template=True)
    report["results"]["cd34"]["acc,all"], report["results"]["cd34"]["acc_stderr,all"]  # mean of 32, clustered error

The paper's benchmarks from their public sets, by name: :mod:`bapo.evaluation.lm_eval_tasks`.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lm_eval.models  # noqa: F401 (lm-eval itself forgets its own models once another, like ours, is registered)
from lm_eval.api.filter import Filter
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_filter
from lm_eval.api.task import ConfigurableTask

from bapo.engines.shared.responses import grade
from bapo.errors import UserError
from bapo.evaluation import scores
from bapo.experiments.identity import REVISIONS
from bapo.graders.verdict import Verdict
from bapo.store.files import Json
from bapo.tasks.base import Problem, Task
from bapo.tasks.files import read_problems


@register_filter("keep_all")
class KeepAll(Filter):
    """Keeps every response. lm-eval's default filter only keeps the first repeat of a problem."""

    def apply(self, resps: list[list[str]], docs: list[dict]) -> list[list[str]]:
        return [list(r) for r in resps]


def to_dataset(problems: Sequence[Problem]) -> Any:
    """Return a datasets.Dataset in memory, whose images are decoded to RGB when a document is read."""
    import datasets

    text = datasets.Value("string")
    features: Json = {"id": text, "prompt": text, "ground_truth": text}
    with_images = any(p.images for p in problems)
    if with_images:
        features["images"] = datasets.List(datasets.Image(mode="RGB"))
    rows = []
    for p in problems:
        images = {"images": [{"bytes": image, "path": None} for image in p.images]} if with_images else {}
        rows.append({"id": p.id, "prompt": p.prompt, "ground_truth": p.ground_truth, **images})
    return datasets.Dataset.from_list(rows, features=datasets.Features(features))


class Sampled(ConfigurableTask):
    """An lm-eval task with several responses a problem, all of which ``grader`` judges.

    A subclass sets ``grader`` and ``samples``, and in ``download`` the ``dataset``: documents with id, prompt,
    ground_truth and any images. ``graded[id]`` holds each response of a problem with its verdict, in order.
    """

    grader: Task
    samples: int
    #: whether equal samples are a result, since the backend repeats no random number; else they are an error
    trusts_backend = False

    def __init__(self, config: Json) -> None:
        self.graded: dict[str, list[tuple[str, Verdict]]] = {}
        super().__init__(config=config)

    def fewshot_docs(self) -> None:
        """Return None, as no examples are shown. lm-eval would otherwise keep all documents with decoded images."""

    def build_all_requests(self, **options: object) -> None:
        with contextlib.redirect_stderr(io.StringIO()):  # hides a progress bar that no option turns off
            super().build_all_requests(**options)

    def apply_filters(self) -> list[Instance] | None:
        """Raise UserError if each problem has equal samples, as a backend that repeats random numbers gives them.

        From a backend that is trusted they are the samples of a collapsed policy, or of a low temperature: a warning.
        """
        if self.samples > 1 and all(len(set(instance.resps)) == 1 for instance in self.instances):
            finding = f"{self.task_name}: all {self.samples} samples of a problem are equal, for every problem"
            if not self.trusts_backend:
                cure = "raise the temperature, and give the backend no seed in its generation arguments"
                raise UserError(f"{finding}; {cure}")
            print(f"warning: {finding}: the policy has collapsed, or the temperature is low", file=sys.stderr)
        return super().apply_filters()

    def process_results(self, doc: Json, results: list[Sequence[str]]) -> Json:
        """Return the scores of one problem. Raises RuntimeError unless it has ``samples`` responses.

        results: a list with one element, the list of responses.
        """
        (responses,) = results
        if len(responses) != self.samples:
            raise RuntimeError(f"problem {doc['id']} has {len(responses)} responses instead of {self.samples}")
        verdicts = grade(self.grader, responses, doc["ground_truth"])
        self.graded[doc["id"]] = list(zip(responses, verdicts, strict=True))
        return scores.problem_scores([(v.correct, v.parsed) for v in verdicts])


class Benchmark(Sampled):
    """Makes the problems of a parquet file a benchmark of lm-eval.

    Every sampling key is set here, so that neither lm-eval's defaults nor a model's generation_config has an effect.

    Args:
        name: of the benchmark
        path: its parquet file
        grader: the task whose verifier judges a response
        max_tokens: of a response
        samples: responses to each problem
        temperature, top_p, top_k: the sampling; top_k is -1 for off
        generation: further arguments of a backend, or arguments in place of these

    Raises UserError where the file is missing or broken.
    """

    def __init__(
        self,
        name: str,
        path: Path | str,
        grader: Task,
        *,
        max_tokens: int,
        samples: int = 32,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        generation: Json | None = None,
    ) -> None:
        self.path, self.grader, self.samples = Path(path), grader, samples
        self.problems = read_problems(self.path)
        metrics = list(scores.problem_scores([(False, False)] * samples))
        super().__init__(
            config={
                "task": name,
                "test_split": "test",
                "doc_to_text": "prompt",
                "doc_to_target": "ground_truth",
                **({"doc_to_image": "images"} if self.images else {}),
                "output_type": "generate_until",
                "num_fewshot": 0,
                "repeats": samples,
                "filter_list": [{"name": "all", "filter": [{"function": "keep_all"}]}],
                "generation_kwargs": {
                    "until": [],
                    "do_sample": True,
                    "temperature": temperature,
                    "top_p": top_p,
                    "top_k": max(0, top_k),  # "off" is 0 for lm-eval; if it is not set, Hugging Face takes 50
                    "repetition_penalty": 1.0,
                    "max_gen_toks": max_tokens,
                    **(generation or {}),
                },
                "process_results": f"{__name__}.Benchmark.process_results",
                "metric_list": [
                    {"metric": m, "aggregation": "mean", "higher_is_better": m != "unparsed"} for m in metrics
                ],
                "metadata": {
                    "version": float(REVISIONS["scores"]),
                    "problems": self.path.name,
                    "verifier": grader.name,
                },
            }
        )

    @property
    def images(self) -> int:
        """Return the most images of a problem, 0 for a benchmark of text."""
        return max(len(p.images) for p in self.problems)

    def download(self, dataset_kwargs: Json | None = None, **kwargs: object) -> None:
        """Set the dataset. ``datasets.load_dataset`` would copy the problems into a cache in the home folder."""
        self.dataset = {"test": to_dataset(self.problems)}
