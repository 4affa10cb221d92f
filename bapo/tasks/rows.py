"""Rows of a file or of a set on the hub with a prompt and a gold answer: a class to derive from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bapo.graders import mathematics
from bapo.graders.extract import boxed, last_box, last_tagged, without_thinking
from bapo.graders.verdict import NO_ANSWER, RIGHT, WRONG, Verdict
from bapo.store.files import Json
from bapo.tasks.real import PROMPTS, RealTask
from bapo.validate import wrong

if TYPE_CHECKING:
    from bapo.experiments.schema import Config

_LONGEST = 2000  #: characters; longer answers are wrong

#: ``answer_in`` -> the answer of a response, None where there is none; and a response that has the answer there
PLACES: Mapping[str, tuple[Callable[[str], str | None], Callable[[str], str]]] = {
    "box": (last_box, boxed),
    "tag": (lambda response: (answer := last_tagged(response)) and answer.strip(), "<answer>{}</answer>".format),
    "all": (lambda response: without_thinking(response).strip() or None, str),
}


class RowsTask(RealTask):
    """Reads rows with the columns ``problem`` and ``answer`` (``data.hub.SPLIT.columns`` names others).

    A subclass sets ``name`` and ``benchmarks``, and may compare by ``equal`` (docs/project.md). answers: mathematics
    or exact (the same words); answer_in: a key of PLACES.
    """

    answers: Literal["mathematics", "exact"] = "exact"
    answer_in: Literal["box", "tag", "all"] = "box"

    def verify(self, response: str, ground_truth: str) -> Verdict:
        golds, answer = json.loads(ground_truth)["answers"], PLACES[self.answer_in][0](response)
        if answer is None or len(answer) > _LONGEST:
            return Verdict(False, False, NO_ANSWER)
        if self.answers == "mathematics":
            return mathematics.judge(answer, golds)
        return RIGHT if any(self.equal(answer, gold) for gold in golds) else Verdict(False, True, WRONG)

    def equal(self, answer: str, gold: str) -> bool:
        """Return whether an answer is the gold, where ``answers`` is not mathematics."""
        return answer.split() == gold.split()

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        """Return every gold where a response has its answer."""
        golds = self.check_golds(json.loads(ground_truth)["answers"], "ground truth: 'answers'")
        return [PLACES[self.answer_in][1](gold) for gold in golds]

    def grade_line(self, line: Json) -> Verdict:
        response, golds = mathematics.read_response(line), self.check_golds(line["gold"], "field 'gold'")
        return self.verify(response, json.dumps({"answers": golds}))

    def check_golds(self, golds: object, where: str) -> tuple[str, ...]:
        readable = mathematics.readable if self.answers == "mathematics" else str.strip
        return mathematics.check_golds(golds, where, readable)

    def real_prompts(self, prompt: str) -> Mapping[str, str]:
        """Return the named prompts, with ``prompt`` itself where it is a text with a place for {problem}.

        Raises UserError where it has another place.
        """
        prompts = {**PROMPTS, "plain": "{images}{problem}"}
        if "{problem}" in prompt:
            try:
                prompt.format(problem="", images="")
            except (LookupError, ValueError, AttributeError) as error:
                cure = "only {problem} and {images} can be filled in, and braces that stay are written {{ and }}"
                raise wrong(None, "data.prompt", prompt, f"{error!r}: {cure}") from None
            prompts[prompt] = prompt
        return prompts

    def write_data(self, config: Config, folder: Path) -> Json:
        """Write the splits, as ``Task`` says. Raises UserError where ``data.source`` is not hub."""
        if config.data.source != "hub":
            cure = f"the rows of task {self.name} are read, not generated; set data.source: hub"
            raise wrong(None, "data.source", config.data.source, cure)
        return self.write_hub(config, folder)
