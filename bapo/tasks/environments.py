"""A task whose problems are the seeds of a single-turn environment of the user's: ``environment: FILE.py:CLASS``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo import seeds
from bapo.errors import UserError
from bapo.graders import environment
from bapo.graders.verdict import NO_ANSWER, Verdict
from bapo.project import code_digest, file_and_name
from bapo.tasks import files
from bapo.tasks.base import Problem, Progress, Task
from bapo.tasks.generated import check_data
from bapo.tasks.rows import PLACES, place_name, prompts_of, wrapped

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from transformers import PreTrainedTokenizerFast

    from bapo.experiments.schema import TaskConfig

#: seeds that are tried for each problem before its split is said to be too large
TRIES = 20


class EnvironmentTask(Task):
    """Each problem is a seed: the prompt shows the observation of ``reset``, the reward of ``step`` grades the answer.

    The action is the part of a response that ``answer_in`` names.
    """

    fields = ("seed", "response")

    def __init__(self, content: TaskConfig, path: Path) -> None:
        if not content.benchmarks:
            raise UserError(f"{path}: benchmarks is empty; map at least one test split to its title in tables")
        self.name, self.path = content.name, path  # type: ignore[misc]
        self.benchmarks = dict(content.benchmarks)  # type: ignore[misc]
        self.find_answer = PLACES[content.answer_in]
        self.file, self.cls = file_and_name(content.environment or "", f"{path}: environment")
        self.right_from = content.right_from

    def content(self) -> dict[str, Any]:
        """Return what decides the problems and the grades."""
        return {
            "environment": [code_digest(self.file), self.cls],
            "place": place_name(self.find_answer),
            "right_from": self.right_from,
        }

    # ------------------------------------------------------------------ grading
    def verify(self, response: str, ground_truth: str) -> Verdict:
        truth = json.loads(ground_truth)
        return self._grade(response, truth["seed"], truth["observation"])

    def _grade(self, response: str, seed: int, digest: str) -> Verdict:
        action = self.find_answer(response)
        if action is None:
            return Verdict(False, False, NO_ANSWER)
        return environment.judge(self.file, self.cls, seed, digest, action, self.right_from)

    def answer(self, response: str) -> str | None:
        found = self.find_answer(response)
        return " ".join(found.split()) if found else None

    def gold_responses(self, ground_truth: str) -> tuple[str, ...]:
        """Return the action that ``info["answer"]`` named, as a response; () where the environment names none."""
        answer = json.loads(ground_truth).get("answer")
        return () if answer is None else (wrapped(self.find_answer, answer),)

    def grade_line(self, line: Mapping[str, Any]) -> Verdict:
        for field, kind in (("seed", int), ("response", str)):
            if not isinstance(line.get(field), kind):
                raise UserError(f"field '{field}' must be {'a number' if kind is int else 'text'}; a line needs both")
        return self._grade(line["response"], line["seed"], environment.start(self.file, self.cls, line["seed"]).digest)

    # ------------------------------------------------------------------ data
    def write_data(self, config: DictConfig, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
        """Write the splits: no two problems of any split show the same observation. Benchmarks are drawn first."""
        data = config.data
        if data.source != "generated":
            raise UserError(
                f"data.source={data.source}: the problems of task {self.name} are seeds: set data.source: generated"
            )
        prompts = prompts_of(data.prompt)
        check_data(data, "generated", prompts, ("train", "probe", *self.benchmarks))
        seen: set[str] = set()
        counts = {}
        for split in sorted(data.split_sizes, key=lambda name: name not in self.benchmarks):
            problems, passed = self._problems(data, split, prompts[data.prompt], seen)
            files.write_problems(folder / f"{split}.parquet", problems, self.name, self.name, split)
            counts[split] = {"problems": len(problems), "same_observation": passed}
            if progress:
                progress(f"{split}: {len(problems)} problems; {passed} seeds passed over, whose observation was there")
        return {split: counts[split] for split in data.split_sizes}

    def _problems(self, data: DictConfig, split: str, prompt: str, seen: set[str]) -> tuple[list[Problem], int]:
        size = data.split_sizes[split]
        problems: list[Problem] = []
        for i in range(TRIES * size):
            seed = seeds.key64("environment", self.name, data.seed, split, i) % 2**31
            begun = environment.start(self.file, self.cls, seed)
            if begun.observation in seen:
                continue
            seen.add(begun.observation)
            truth = {"seed": seed, "observation": begun.digest}
            truth |= {} if begun.answer is None else {"answer": begun.answer}
            shown = prompt.format(problem=begun.observation, images="")
            problems.append(Problem(f"{self.name}:{seed}", shown, json.dumps(truth)))
            if len(problems) == size:
                return problems, i + 1 - size
        raise UserError(
            f"data.split_sizes.{split}={size}: {TRIES * size} seeds gave {len(problems)} observations that no other "
            "problem shows; ask for fewer problems, or let reset draw from more"
        )

    def build_tokenizer(self, config: DictConfig) -> PreTrainedTokenizerFast:
        raise UserError(
            f"model={config.model.name}: a model trained from scratch has no words for the observations of task "
            f"{self.name}; choose a pretrained model"
        )
