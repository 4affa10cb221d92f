"""An lm-eval model of known answers, and lm-eval's index of the tasks of the package."""

from __future__ import annotations

from typing import Any

from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from bapo import tasks
from bapo.evaluation.lm_eval_tasks import FOLDER


def manager(**metadata: Any) -> TaskManager:
    return TaskManager(include_path=FOLDER, include_defaults=False, metadata=metadata or None)


class Scripted(LM):
    """A model of known answers: of 8 responses to problem i, RIGHT[i % 4] are right, the others unparsed or wrong.

    All texts differ. ``asked`` holds the arguments of every problem.
    """

    tokenizer_name = "none"
    RIGHT = (0, 2, 8, 5)

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.grader = wrong, tasks.get("countdown")
        self.asked: list[tuple[Any, ...]] = []

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return f"user: {chat_history[-1]['content']} assistant:"

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        texts: list[str] = []
        seen: dict[int, list[int]] = {}  # request -> number of the problem, repeats so far
        for request in requests:
            if id(request) not in seen:
                seen[id(request)] = [len(seen), 0]
                self.asked.append(request.args)
            number, repeat = seen[id(request)]
            seen[id(request)][1] += 1
            if repeat < self.RIGHT[number % 4]:
                texts.append(f"<think>{repeat}</think>{self.grader.gold_responses(request.doc['ground_truth'])[0]}.")
            else:
                texts.append(f"<think>{repeat} {self.wrong}" + f"</think> so {self.wrong}" * (repeat % 2))
        return texts

    def loglikelihood(self, requests: list[Any]) -> list[Any]:
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood
