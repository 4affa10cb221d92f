"""What mathematics and geometry share: worked chains of steps for small models, boxed answers at paper scale."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import ClassVar

from bapo.errors import UserError
from bapo.graders import mathematics as grader
from bapo.graders.extract import boxed, last_boxed
from bapo.graders.verdict import RIGHT, Verdict
from bapo.store.files import Json
from bapo.tasks.generated import GeneratedTask
from bapo.tasks.real import RealTask, read_truth


class BoxedTask(RealTask, GeneratedTask):
    """A task of two formats: "chain", graded by its last number, and "boxed", graded as the paper's sets are."""

    prompts: ClassVar[Collection[str]] = ("chain",)
    no_number, wrong_number = "no-answer", "wrong-answer"  #: reasons of verdicts on chains
    gold_chain: ClassVar[str] = "= {}"  #: the shortest chain that ends in a number

    def is_chain(self, response: str) -> bool:
        """Return whether a response is in the format of small models."""
        raise NotImplementedError

    def final_number(self, response: str) -> int | None:
        """Return the number that a chain of steps ends in; None where there is none."""
        raise NotImplementedError

    def steps(self, problem_id: str, prompt: str) -> str:
        """Work out a generated problem, one operation each, as the base documents have them."""
        raise NotImplementedError

    def verify(self, response: str, ground_truth: str) -> Verdict:
        truth = read_truth(ground_truth)
        if truth.get("format") == "chain":
            gold, number = read_number(truth), self.final_number(response)
            if number is None:
                return Verdict(False, False, self.no_number)
            return RIGHT if number == gold else Verdict(False, True, self.wrong_number)
        if truth.get("format") == "boxed":
            return grader.grade(response, truth.get("answers", ()))
        raise UserError(f"ground truth: 'format' must be chain or boxed, got {truth.get('format')!r}")

    def answer(self, response: str) -> str | None:
        """Return the last number of a chain of steps, else the boxed answer in the grader's normal form."""
        if self.is_chain(response):
            number = self.final_number(response)
            return None if number is None else str(number)
        return grader.answer(response)

    def extract(self, response: str) -> str:
        """Return the last balanced box outside the thinking, "" where there is none; the paper's format only."""
        return last_boxed(response)

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        """Return every gold in a box of its own, or the end of a chain. Raises UserError for unusable golds."""
        truth = read_truth(ground_truth)
        if truth.get("format") == "chain":
            return [self.gold_chain.format(read_number(truth))]
        return [boxed(gold) for gold in grader.check_golds(truth.get("answers"), "ground truth: 'answers'")]

    def demonstration(self, problem_id: str, prompt: str, ground_truth: str) -> str | None:
        """Return the steps of a generated problem; None for others."""
        return self.steps(problem_id, prompt) if read_truth(ground_truth).get("format") == "chain" else None

    grade_line = staticmethod(grader.grade_line)


def chain_truth(answer: int) -> str:
    """Write the ground truth of a generated problem."""
    return json.dumps({"answer": answer, "format": "chain"})


def read_number(truth: Json) -> int:
    """Return the answer of a generated problem's ground truth. Raises UserError where it is no whole number."""
    answer = truth.get("answer")
    if type(answer) is not int or answer < 0:
        raise UserError(f"ground truth: 'answer' must be a whole number of 0 and more, got {answer!r}")
    return answer
