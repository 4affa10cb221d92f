"""A benchmark as an lm-eval task: problems from a parquet file, several responses a problem, every one of them graded.

One class serves every benchmark, because the file brings the prompts and the task's verifier does the grading. It needs
none of lm-eval's built-in tasks, whose index takes 12 s to build, and nothing else of this project::

    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager
    from bapo import tasks
    from bapo.evaluation.tasks import Benchmark

    cd34 = Benchmark("cd34", "data/cd34.parquet", tasks.get("countdown"), max_tokens=2048)
    cd4 = Benchmark("cd4", "data/cd4.parquet", tasks.get("countdown"), max_tokens=2048)
    found = simple_evaluate(
        model="hf", model_args={"pretrained": "my/checkpoint"}, tasks=[cd34, cd4], apply_chat_template=True,
        task_manager=TaskManager(include_defaults=False), bootstrap_iters=1,
    )
    found["results"]["cd34"]["acc,all"], found["results"]["cd34"]["acc_stderr,all"]  # mean of 32, clustered error

With lm-eval's ``vllm`` add ``generation=backends.VLLM_ARGUMENTS``, with its ``local-completions``
``generation=backends.SERVER_ARGUMENTS``, or all samples of a problem are equal: see :mod:`bapo.evaluation.backends`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
from lm_eval.api.filter import Filter
from lm_eval.api.registry import register_filter
from lm_eval.api.task import ConfigurableTask

from bapo import runs
from bapo.errors import UserError
from bapo.evaluation import scores
from bapo.tasks.base import Task, Verdict


@register_filter("keep_all")
class KeepAll(Filter):
    """Hands every response on. Without a filter of its own a task keeps the first of its repeats only."""

    def apply(self, resps: list[list[str]], docs: list[dict]) -> list[list[str]]:
        return [list(r) for r in resps]


def read_problems(path: Path) -> list[dict[str, str]]:
    """{"id", "prompt", "ground_truth"} of each problem of a parquet file in verl's schema.

    Raises UserError naming the file and the row where something is missing, empty or there twice.
    """
    table = runs.read_table(path)
    missing = {"prompt", "reward_model", "extra_info"} - set(table.columns)
    if missing:
        raise UserError(f"{path}: column {min(missing)} is missing; make the data again with `python -m bapo data`")
    problems: dict[str, dict[str, str]] = {}
    rows = zip(table["prompt"], table["reward_model"], table["extra_info"], strict=True)
    for number, (messages, reward, extra) in enumerate(rows):
        if len(messages) != 1 or messages[0]["role"] != "user":
            raise UserError(f"{path}: row {number}: prompt must be one message of the role 'user'")
        problem = {
            "id": extra.get("id"),
            "prompt": messages[0]["content"],
            "ground_truth": reward.get("ground_truth"),
        }
        for field, value in problem.items():
            if not isinstance(value, str) or not value:
                raise UserError(f"{path}: row {number}: {field} must be a non-empty text, not {value!r}")
        if problem["id"] in problems:
            raise UserError(f"{path}: row {number}: problem {problem['id']} is there twice; every id must be unique")
        problems[problem["id"]] = problem
    if not problems:
        raise UserError(f"{path}: no problems in it; make the data again with `python -m bapo data`")
    return list(problems.values())


class Benchmark(ConfigurableTask):
    """One benchmark for lm-eval.

    name: of the benchmark; path: its parquet file; grader: the task whose verifier judges a response; max_tokens,
    samples: of a response and of a problem; temperature, top_p, top_k (-1: off): the sampling; generation: arguments
    that a backend wants besides or otherwise. Every sampling key is set here, so that neither lm-eval's defaults nor a
    model's generation_config decides anything.

    After an evaluation ``instances[i].resps`` are the responses of problem i and ``verdicts[id]`` their verdicts.
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
        generation: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.grader, self.samples = Path(path), grader, samples
        self.verdicts: dict[str, list[Verdict]] = {}
        metrics = list(scores.problem_scores([(False, False)] * samples, [""] * samples))
        super().__init__(
            config={
                "task": name,
                "test_split": "test",
                "doc_to_text": "prompt",
                "doc_to_target": "ground_truth",
                "output_type": "generate_until",
                "num_fewshot": 0,
                "repeats": samples,
                "filter_list": [{"name": "all", "filter": [{"function": "keep_all"}]}],
                "generation_kwargs": {
                    "until": [],
                    "do_sample": True,
                    "temperature": temperature,
                    "top_p": top_p,
                    "top_k": max(0, top_k),  # 0 is lm-eval's "off": Hugging Face would take 50 where it is not set
                    "repetition_penalty": 1.0,
                    "max_gen_toks": max_tokens,
                    **(generation or {}),
                },
                "process_results": f"{__name__}.Benchmark.process_results",
                "metric_list": [
                    {"metric": m, "aggregation": "mean", "higher_is_better": m != "unparsed"} for m in metrics
                ],
                "metadata": {"version": float(scores.VERSION), "problems": self.path.name, "verifier": grader.name},
            }
        )

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Reads the file into memory; ``datasets.load_dataset`` would copy it into a cache in the home folder."""
        self.dataset = {"test": datasets.Dataset.from_list(read_problems(self.path))}

    def build_all_requests(self, **options: Any) -> None:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that no option turns off
            super().build_all_requests(**options)

    def process_results(self, doc: dict[str, str], results: list[list[str]]) -> dict[str, float]:
        """Scores of one problem; results: a list of the one list of its responses."""
        (responses,) = results
        if len(responses) != self.samples:
            raise RuntimeError(f"problem {doc['id']} has {len(responses)} responses instead of {self.samples}")
        known: dict[str, Verdict] = {}  # a trained model repeats itself
        for response in responses:
            if response not in known:
                known[response] = self.grader.verify(response, doc["ground_truth"])
        verdicts = self.verdicts[doc["id"]] = [known[r] for r in responses]
        answers = [self.grader.answer(r) for r in responses]
        return scores.problem_scores([(v.correct, v.parsed) for v in verdicts], answers)
