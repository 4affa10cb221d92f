"""Further graders beside those of the suite: the scorers of the paper's authors, and math-verify as verl calls it.

``python -m bapo.evaluation.instruments FD`` is the process of a checker (:mod:`bapo.graders.pool`), which bounds the
time and memory of MathRuler and math-verify.
"""

from __future__ import annotations

import ast
import contextlib
import json
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from multiprocessing.connection import Connection

from bapo import tasks
from bapo.experiments.schema import EvaluationConfig
from bapo.graders import pool, symbolic
from bapo.graders.extract import boxed, last_box
from bapo.graders.normalise import normalise
from bapo.graders.size import too_large
from bapo.graders.verdict import NO_ANSWER, RIGHT, TIME_LIMIT, WRONG, Verdict
from bapo.tasks.base import Problem, Task
from bapo.validate import wrong

MATH_VERIFY, MATHRULER = "math-verify", "mathruler"
_NONE, _WRONG, _STOPPED = (
    Verdict(False, False, NO_ANSWER),
    Verdict(False, True, WRONG),
    Verdict(False, False, TIME_LIMIT),
)
_LONGEST = 1000  #: the most characters of an expression that is evaluated
_BITS = 100_000  #: the most bits of a power


class Authors(Task):
    """Grades as the authors' scorer of a task does, for problems in the paper's format: docs/fidelity.md."""

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]

    def verify(self, response: str, ground_truth: str) -> Verdict:
        truth = json.loads(ground_truth)
        if self.name == "countdown":
            return countdown(response, truth["numbers"], truth["target"])
        if self.name == "geometry":
            return library_verdict(MATHRULER, response, truth["answers"])
        return hendrycks(response, truth["answers"])


def require(evaluation: EvaluationConfig, task: str, problem: Problem) -> None:
    """Raise UserError where a grader cannot read answers to a problem, or MathRuler is missing."""
    if evaluation.grader == "suite" and not evaluation.second_grader:
        return  # a project's task may have ground truths of any form
    form = None
    with contextlib.suppress(ValueError, AttributeError):
        form = json.loads(problem.ground_truth).get("format")
    if not in_boxes(tasks.get(task)):
        form = None
    cure = f"problem {problem.id} does not ask for it; leave the key out"
    if evaluation.second_grader and form != "boxed":
        raise wrong(None, "evaluation.second_grader", evaluation.second_grader, f"reads a box, and {cure}")
    if evaluation.grader != "authors":
        return
    if form != ("answer" if task == "countdown" else "boxed"):
        raise wrong(None, "evaluation.grader", evaluation.grader, f"reads the paper's format of answers, and {cure}")
    if task == "geometry" and not _has_mathruler():
        missing = "MathRuler is not installed; install the extra `authors`"
        raise wrong(None, "evaluation.grader", evaluation.grader, missing)


def in_boxes(task: Task) -> bool:
    """Return whether answers to rows lie in boxes; a task may say that they lie elsewhere (:mod:`bapo.tasks.rows`)."""
    return getattr(task, "answer_in", "box") == "box"


def _has_mathruler() -> bool:
    return all(map(find_spec, ("mathruler", "pylatexenc")))


def second_verdict(response: str, golds: Sequence[str]) -> Verdict:
    """Return the verdict of math-verify. golds: right answers, one of which must be given."""
    if too_large(normalise(last_box(response) or "")):
        return _STOPPED
    return library_verdict(MATH_VERIFY, response, golds)


# ------------------------------------------------------------------------------------------------ Countdown


def countdown(response: str, numbers: Sequence[int], target: int) -> Verdict:
    """Grade the last <answer> that begins and ends on the last line, even if it is part of the thinking.

    It may have any of Python's arithmetic operators and floating-point numbers, and must be within 1e-5 of the target.
    """
    for mark in ("Assistant:", "<|im_start|>assistant"):
        if mark in response:
            response = response.partition(mark)[2]
            break
    answers = [text.partition("<answer>") for text in response.rpartition("\n")[2].split("</answer>")[:-1]]
    texts = [text.strip() for _, tag, text in answers if tag]
    if not texts:
        return _NONE
    text = texts[-1]
    try:
        if (
            len(text) > _LONGEST
            or sorted(map(int, re.findall(r"\d+", text))) != sorted(numbers)
            or not re.fullmatch(r"[-+*/().\d\s]+", text)
        ):
            return _WRONG
        value = work_out(ast.parse(text, mode="eval").body, {})
        return RIGHT if abs(value - target) < 1e-5 else _WRONG
    except (SyntaxError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError):
        return _WRONG


def _power(base: complex, exponent: complex) -> complex:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _BITS:
        raise OverflowError("a number that nobody writes out")
    return base**exponent


_OPERATIONS: Mapping[type, Callable[..., complex]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.UAdd: operator.pos},
    **{ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Pow: _power, ast.USub: operator.neg},
}


def work_out(node: ast.expr, names: Mapping[str, Callable[..., complex]]) -> complex:
    """Evaluate an expression of numbers and calls of ``names`` without Python's ``eval``.

    Raises ValueError or KeyError for any other expression, and what the operations raise.
    """
    match node:
        case ast.Constant(int() | float() as number):
            return number
        case ast.UnaryOp(sign, operand):
            return _OPERATIONS[type(sign)](work_out(operand, names))
        case ast.BinOp(left, sign, right):
            return _OPERATIONS[type(sign)](work_out(left, names), work_out(right, names))
        case ast.Call(ast.Name("Symbol" | "Function" | "Float" as name), [ast.Constant(str() as text)], []):
            return names[name](text)  # no other name gets a text, which sympy would evaluate
        case ast.Call(function, arguments, []):
            return work_out(function, names)(*(work_out(a, names) for a in arguments))  # type: ignore[operator]
        case ast.Name(name):
            return names[name]  # type: ignore[return-value]
    raise ValueError(f"not an expression of numbers: {ast.dump(node):.80}")


# ------------------------------------------------------------------------------------------------ mathematics


def hendrycks(response: str, golds: Sequence[str]) -> Verdict:
    """Grade the last box as verl's ``math.compute_score`` does: it strips both texts and compares them.

    verl took its rules from lm-eval's Hendrycks MATH, which differs in ``a/b`` unless both are integers.
    """
    from lm_eval.tasks.hendrycks_math.utils import last_boxed_only_string, remove_boxed

    try:
        box = last_boxed_only_string(response)
        answer = None if box is None else remove_boxed(box)
    except AssertionError:
        answer = None
    if answer is None:
        return _NONE
    return RIGHT if any(_same_text(answer, gold) for gold in golds) else _WRONG


def _same_text(answer: str, gold: str) -> bool:
    try:
        return _strip(answer) == _strip(gold)
    except (AssertionError, IndexError):  # for two units, or a root without an argument
        return answer == gold


def _strip(text: str) -> str:
    from lm_eval.tasks.hendrycks_math.utils import strip_string

    text = strip_string(text.replace("/", "\0")).replace("\0", "/")
    return re.sub(r"^(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)$", r"\\frac{\1}{\2}", text)


# ------------------------------------------------------------------------------------------------ checkers


def library_verdict(grader: str, response: str, golds: Sequence[str]) -> Verdict:
    """Return the verdict of a library in a checker's process. golds: right answers, one of which must be given."""
    return pool.verdict(__name__, json.dumps([grader, *golds]), response)


def load() -> None:
    """Import the libraries, and replace MathRuler's parser, which would run an answer as Python."""
    symbolic.load()
    if _has_mathruler():
        from mathruler import grader

        grader._sympy_parse = _sympy_parse


def _sympy_parse(text: str) -> complex:
    import sympy
    from sympy.parsing import sympy_parser as parser

    functions = {n: v for n, v in vars(sympy).items() if isinstance(v, type) and issubclass(v, sympy.Expr)}
    names = {**functions, "sqrt": sympy.sqrt, "pi": sympy.pi, "Function": sympy.Function}
    rules = (*parser.standard_transformations, parser.implicit_multiplication_application)
    code = parser.stringify_expr(text.replace("^", "**"), {}, names, rules)
    return work_out(ast.parse(code, mode="eval").body, names)


def judge(grader_and_golds: str, response: str) -> bool:
    """Return whether a library accepts a response. grader_and_golds: JSON of the library's name and the golds.

    Raises ValueError where the library finds no answer.
    """
    library, *golds = json.loads(grader_and_golds)
    if library == MATHRULER:
        from mathruler import grader

        answer = grader.extract_boxed_content(response)
        if answer == "None":
            raise ValueError("no box")
        return any(grader.grade_answer(answer, gold) for gold in golds)
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    latex = LatexExtractionConfig()
    answers = parse(response, [ExprExtractionConfig(), latex], parsing_timeout=None)
    if not answers:
        raise ValueError("no answer")
    return any(verify(parse(boxed(g), [latex], parsing_timeout=None), answers, timeout_seconds=None) for g in golds)


if __name__ == "__main__":
    symbolic.serve(Connection(int(sys.argv[1])), sys.modules[__name__])
