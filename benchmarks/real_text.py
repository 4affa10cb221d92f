"""What the graders make of a real model's text: ``python benchmarks/real_text.py sample MODEL FILE.jsonl``, then
``python benchmarks/real_text.py grade FILE.jsonl``. MODEL: a folder in Hugging Face's format, such as the one that
``python -m bapo base scale=pocket task=countdown`` writes. FILE is appended to."""

from __future__ import annotations

import argparse
import ast
import json
import operator
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bapo import seeds, tasks
from bapo.graders import geometry, pool
from bapo.graders.extract import boxed
from bapo.graders.verdict import Verdict
from bapo.tasks.base import Problem
from bapo.tasks.countdown import task as countdown
from bapo.tasks.countdown.generator import EasyGenerator
from bapo.tasks.mathematics.sums import Sum

BOX = (
    "Use each of the numbers {numbers} exactly once, with +, -, *, / and parentheses, to make {target}. "
    "Put the expression in \\boxed{{}}."
)
#: A question, its answer from two random numbers of 2..19, and whether the answer is offered among choices.
WORDS: tuple[tuple[str, Callable[[int, int], str]], ...] = (
    ("Tom has {a} apples. He buys {b} more and eats 2. How many apples does he have?", lambda a, b: str(a + b - 2)),
    ("A box holds {a} pens. How many pens are in {b} boxes?", lambda a, b: str(a * b)),
    ("A bus has {a} seats, {b} buses drive, and 3 seats are empty. How many sit?", lambda a, b: str(a * b - 3)),
    ("What is 1/{a} + 1/{b} as a fraction?", lambda a, b: rf"\frac{{{a + b}}}{{{a * b}}}"),
    ("Solve x + {a} = {b} for x.", lambda a, b: str(b - a)),
    ("What is {a}% of {b}00?", lambda a, b: str(a * b)),
    ("Simplify the square root of {a} times {b} times {b}.", lambda a, b: rf"{b}\sqrt{{{a}}}"),
    ("For which x is {a} - x < {b}? Give an interval.", lambda a, b: rf"({a - b}, \infty)"),
)
SHAPES: tuple[tuple[str, Callable[[int, int], list[str]]], ...] = (
    (
        "Two angles of a triangle are {a} and {b} degrees. What is the third?",
        lambda a, b: [str(180 - a - b), str(90 - a), str(180 - a), str(a + b)],
    ),
    (
        "The legs of a right triangle are {a} and {b}. How long is the hypotenuse?",
        lambda a, b: [rf"\sqrt{{{a * a + b * b}}}", str(a + b), rf"\sqrt{{{a + b}}}", str(a * b)],
    ),
    (
        "A circle has the radius {a}. What is its area?",
        lambda a, b: [rf"{a * a} \pi", rf"{2 * a} \pi", str(a * a), rf"{a} \pi"],
    ),
)


class Set(NamedTuple):
    """Problems, how a model is asked (plain: a text to continue) and the most tokens of a response."""

    task: str
    problems: Callable[[int], list[Problem]]
    plain: bool
    tokens: int
    line: bool = False  #: whether a response ends with its line
    bare: bool = False  #: whether it is the answer, with no box around it


def _countdown(prompt: str, split: str) -> Callable[[int], list[Problem]]:
    def make(count: int) -> list[Problem]:
        drawn = EasyGenerator().problems(np.random.default_rng(0), count, split)
        if prompt != "box":
            return [countdown.to_problem(i.numbers, i.target, prompt) for i in drawn]
        made = [countdown.to_problem(i.numbers, i.target, "think-answer") for i in drawn]
        texts = [BOX.format(numbers=", ".join(map(str, i.numbers)), target=i.target) for i in drawn]
        return [replace(problem, prompt=text) for problem, text in zip(made, texts, strict=True)]

    return make


def _addition(count: int) -> list[Problem]:
    rng = np.random.default_rng(0)
    drawn = [Sum(*(int(n) for n in rng.integers(10, 100, 2))) for _ in range(count)]
    truths = [json.dumps({"answers": [str(s.a + s.b)], "format": "boxed"}) for s in drawn]
    return [Problem(f"addition:{i}", s.prompt, truth) for i, (s, truth) in enumerate(zip(drawn, truths, strict=True))]


def _words(count: int) -> list[Problem]:
    rng, made = np.random.default_rng(0), []
    for i in range(count):
        text, answer = WORDS[i % len(WORDS)]
        a, b = (int(n) for n in rng.choice(np.arange(2, 20), 2, replace=False))
        truth = {"answers": [answer(a, b)], "format": "boxed"}
        made.append(Problem(f"words:{i}", _ask(text.format(a=a, b=b)), json.dumps(truth)))
    return made


def _shapes(count: int) -> list[Problem]:
    rng, made = np.random.default_rng(0), []
    for i in range(count):
        text, answers = SHAPES[i % len(SHAPES)]
        a, b = (int(n) for n in rng.choice(np.arange(3, 60), 2, replace=False))
        choices = answers(a, b)
        order = rng.permutation(len(choices)).tolist()
        shown = [choices[k] for k in order]
        offered = " ".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", shown, strict=True))
        truth = {"answers": [choices[0]], "choices": shown, "format": "boxed"}
        made.append(Problem(f"shapes:{i}", _ask(f"{text.format(a=a, b=b)} {offered}"), json.dumps(truth)))
    return made


#: shown before every question of words and shapes: the model then answers in a box, which it never does unasked
SHOWN = (
    ("Ann has 5 pens and gets 3. How many pens does she have?", "8"),
    ("What is 1/2 + 1/3 as a fraction?", r"\frac{5}{6}"),
    ("Simplify the square root of 8.", r"2\sqrt{2}"),
    ("For which x is 3 - x < 1? Give an interval.", r"(2, \infty)"),
    (r"The radius of a circle is 2. What is its area? A. 4 B. 4 \pi C. 2 \pi D. 16", "B"),
    (r"What is half of 90 degrees? A. 30 B. 60 C. 45 D. 180", r"45^\circ"),
)


def _ask(text: str) -> str:
    examples = [f"Question: {question}\nAnswer: \\boxed{{{answer}}}" for question, answer in SHOWN]
    return "\n\n".join([*examples, f"Question: {text}\nAnswer:"])


SETS = {
    "few-shot-2": Set("countdown", _countdown("few-shot", "cd2"), True, 16, line=True),
    "few-shot-3": Set("countdown", _countdown("few-shot", "cd3"), True, 16, line=True),
    "addition": Set("mathematics", _addition, True, 8, line=True, bare=True),
    "paper-2": Set("countdown", _countdown("think-answer", "cd2"), False, 72),
    "box-2": Set("countdown", _countdown("box", "cd2"), False, 72),
    "words": Set("mathematics", _words, True, 24, line=True),
    "shapes": Set("geometry", _shapes, True, 24, line=True),
}


def sample(folder: Path, names: list[str], count: int, group: int, rows: int) -> Iterator[dict[str, Any]]:
    """Yield a line for each of ``group`` responses to ``count`` problems of the named sets, at temperature 1."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from bapo.engines.shared import answers, models
    from bapo.engines.shared.data import tokenised
    from bapo.tasks.tokenizers import CHAT_TEMPLATE

    models.prepare_process(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for name in names:
        which = SETS[name]
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if which.plain:
            tokenizer.chat_template = CHAT_TEMPLATE
        parameters = answers.parameters_of(tokenizer, 1.0, 1.0, -1, which.tokens)
        if which.line:
            lines = [i for token, i in tokenizer.get_vocab().items() if token in ("Ċ", "ĊĊ")]
            parameters = replace(parameters, eos_ids=(*parameters.eos_ids, *lines))
        problems = which.problems(count)
        prompts = tokenised(problems, tokenizer, 1024, None, name)
        key = seeds.key64(0, "real text", name)
        for start in range(0, count, max(1, rows // group)):
            some = slice(start, start + max(1, rows // group))
            drawn = answers.answer(model, tokenizer, prompts[some], group, key, parameters, rows, lambda count: None)
            for problem, responses in zip(problems[some], drawn, strict=True):
                for i, text in enumerate(responses):
                    line = {"set": name, "id": problem.id, "sample": i, "tokens": text.tokens}
                    yield {**line, "ground_truth": problem.ground_truth, "response": str(text)}


OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def truly(response: str, numbers: list[int], target: int) -> bool:
    """Return whether some line, tag, box or side of an equation in a response solves the problem, by Python's parser.

    Looser than any verdict, and written without the grader."""

    def value(node: ast.AST) -> Fraction:
        if isinstance(node, ast.Constant):
            used.append(node.value)
            return Fraction(node.value)
        return OPERATORS[type(node.op)](value(node.left), value(node.right))  # type: ignore[attr-defined]

    signs = {"×": "*", "÷": "/", "−": "-", r"\times": "*", r"\div": "/", r"\cdot": "*"}  # noqa: RUF001
    for sign, plain in signs.items():
        response = response.replace(sign, plain)
    for part in re.split(r"[\n=${}]|</?answer>|boxed", response):
        used: list[Any] = []
        try:
            if value(ast.parse(part.strip(" .\\"), mode="eval").body) == target and sorted(used) == sorted(numbers):
                return True
        except (SyntaxError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
            continue
    return False


class Graded(NamedTuple):
    """A row's verdicts. second: the second grader's, or Countdown's lenient reading; seconds: of the first one."""

    set: str
    row: dict[str, Any]
    first: Verdict
    second: Verdict | None
    seconds: float


def grade(rows: list[dict[str, Any]]) -> Iterator[Graded]:
    """Grade every row by its set's grader and by the second one."""
    for row in rows:
        name, truth, response = SETS[row["set"]].task, row["ground_truth"], row["response"]
        if SETS[row["set"]].bare:
            response = boxed(response.strip())
        begun = time.perf_counter()
        first = tasks.get(name).verify(response, truth)
        seconds = time.perf_counter() - begun
        fields = json.loads(truth)
        if name == "countdown":
            second = tasks.get(name).verify(response, json.dumps({**fields, "grading": "lenient"}))
        else:
            second = geometry.second_opinion(response, fields["answers"], fields.get("choices"))
        yield Graded(row["set"], row, first, second, seconds)


def report(graded: list[Graded]) -> str:
    """Write a table of verdicts and, below it, every disagreement and what no independent evaluator confirms."""
    heads = ["set", "responses", "pass@1, pass@8, mixed groups", "wrong", "unread", "longest", "second grader"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    notes = []
    for name in dict.fromkeys(g.set for g in graded):
        own = [g for g in graded if g.set == name]
        unread = Counter(g.first.reason for g in own if not g.first.parsed)
        countdown = SETS[name].task == "countdown"
        if countdown:
            newly = sum(g.second.correct and not g.first.correct for g in own)  # type: ignore[union-attr]
            read = sum(g.second.parsed and not g.first.parsed for g in own)  # type: ignore[union-attr]
            second = f"lenient reads {read} more, {newly} of them right"
        else:
            compared = [g for g in own if g.second is not None]
            differ = sum(g.second.correct != g.first.correct for g in compared)  # type: ignore[union-attr]
            second = f"differs on {differ} of {len(compared)}"
        groups: dict[str, list[bool]] = {}
        for g in own:
            groups.setdefault(g.row["id"], []).append(g.first.correct)
        means = np.array([np.mean(group) for group in groups.values()])
        rates = f"{means.mean():.2f}, {(means > 0).mean():.2f}, {((means > 0) & (means < 1)).mean():.2f}"
        counts = [len(own), rates, sum(g.first.parsed and not g.first.correct for g in own)]
        reasons = ", ".join(f"{count} {reason}" for reason, count in unread.most_common())
        longest = f"{1000 * max(g.seconds for g in own):.0f} ms"
        lines.append(f"| {name} | {' | '.join(map(str, counts))} | {reasons or '-'} | {longest} | {second} |")
        for g in own:
            fields = json.loads(g.row["ground_truth"])
            verdicts = [v for v in (g.first, g.second) if v is not None]
            if countdown and any(v.correct for v in verdicts):
                if not truly(g.row["response"], fields["numbers"], fields["target"]):
                    notes.append(f"NOT CONFIRMED: {json.dumps(g.row)} {verdicts}")
            elif len({v.correct for v in verdicts}) > 1:
                notes.append(f"differ: {json.dumps(g.row)} {verdicts}")
    return "\n".join([*lines, *notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("sample")
    drawing.add_argument("model", type=Path)
    drawing.add_argument("file", type=Path)
    drawing.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    drawing.add_argument("--problems", type=int, default=48)
    drawing.add_argument("--samples", type=int, default=8)
    drawing.add_argument("--rows", type=int, default=64, help="responses at a time")
    commands.add_parser("grade").add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "grade":
        pool.shared().wall_seconds = 60.0  # a busy machine must not change the verdicts; the limit of CPU time stays
        pool.shared().warm()
        rows = [json.loads(line) for line in arguments.file.read_text(encoding="utf-8").splitlines()]
        print(report(list(grade(rows))))
        return
    begun = time.process_time()
    with arguments.file.open("a", encoding="utf-8") as out:
        for line in sample(arguments.model, arguments.sets, arguments.problems, arguments.samples, arguments.rows):
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
            out.flush()
    print(f"{time.process_time() - begun:.0f} s of CPU time")


if __name__ == "__main__":
    main()
