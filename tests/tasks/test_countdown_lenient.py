"""``data.grading=lenient``: expressions as language models write them are read, and nothing wrong becomes right."""

from __future__ import annotations

import ast
import operator
import random
import re
from fractions import Fraction

import pytest
from support.late import LATE
from support.linear import linear_time

from bapo import tasks
from bapo.engines.verl.reward import compute_score
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import data_identity, evaluation_identity, train_identity
from bapo.tasks import files
from bapo.tasks.countdown import grammar, notation

if LATE:
    from bapo.evaluation.lm_eval_tasks.utils import Extract


countdown = tasks.get("countdown")
NUMBERS, TARGET = (12, 3, 7, 4), 24


def lenient(text: str, form: str = "expression", numbers=NUMBERS, target: int = TARGET):
    return countdown.verify(text, grammar.to_ground_truth(numbers, target, form, "lenient"))


def strict(text: str, form: str = "expression", numbers=NUMBERS, target: int = TARGET):
    return countdown.verify(text, grammar.to_ground_truth(numbers, target, form))


# ------------------------------------------------------------------------------------------------ by hand


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{12 / 3 * 7 - 4}",
        r"So the answer is $\boxed{12 \div 3 \times 7 - 4}$.",
        r"\boxed{\frac{12}{3} \cdot 7 - 4 = 24}",
        r"\boxed{1 + 1}. Wait, that is not it. \boxed{12/3*7-4}",
        "12 ÷ 3 × 7 − 4",  # noqa: RUF001
        "12 / 3 · 7 – 4",  # noqa: RUF001
        "12 / 3 x 7 - 4",
        "(12 / 3)x7 - 4",
        "(12 / 3) X 7 - 4",
        "12 / 3 * 7 - 4 = 24",
        "24 = 12 / 3 * 7 - 4",
        "12 / 3 * 7 - 4.",
        "**12 / 3 * 7 - 4**",
        "**12 / 3 * 7 - 4 = 24**",
        "`12 / 3 * 7 - 4`",
        r"12 / 3 \* 7 - 4",
        "$12 / 3 * 7 - 4$",
        "$$12 / 3 * 7 - 4 = 24$$",
        r"\( \left( 12 / 3 \right) \times 7 - 4 \)",
        r"\[ \dfrac{12}{3} \times 7 - 4 = 24 \]",
        r"\dfrac{12}{\frac{3}{7}} - 4",
        r"12\,/\,3 * 7 - 4",
        "12\u00a0/ 3 * 7 - 4",
        "（12 ÷ 3）× 7 － 4",  # noqa: RUF001
    ],
)
def test_what_models_write_is_read(text: str) -> None:
    assert not strict(text).parsed
    assert lenient(text) == lenient(f"<answer>{text}</answer>", "answer") == (True, True, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("12 ÷ 3 × 7 + 4", "wrong-value"),  # noqa: RUF001
        ("12 ÷ 3 × 7 + 4 = 24", "wrong-value"),  # noqa: RUF001
        ("12 / 3 * 7 - 4 = 25", "wrong-equation"),
        ("25 = 12 / 3 * 7 - 4", "wrong-equation"),
        ("12 + 3 + 7 + 2 = 24", "wrong-numbers"),
        ("12 + 12 = 24", "wrong-numbers"),
        (r"\boxed{24}", "wrong-numbers"),
        ("12 / 3 * 7 = 28", "wrong-numbers"),
        (r"\frac{12}{3 - 3} \times 7 - 4", "wrong-numbers"),
        (r"\frac{12}{7 - 4 - 3}", "division-by-zero"),
        (r"\frac{12}{3 * 7} - 4", "wrong-value"),
        (r"\boxed{12/3*7-4} or rather \boxed{12 + 3 + 7 + 4}", "wrong-value"),  # the last one counts
    ],
)
def test_what_is_read_and_wrong(text: str, reason: str) -> None:
    assert lenient(text) == (False, True, reason)


@pytest.mark.parametrize(
    "text",
    [
        "12 / 3 * 7 - 4 = 28 - 4 = 24",  # which of the sides is the answer?
        "12 / 3 * 7 - 4 = 20 + 4",
        "12 / 3 * 7 - 4 == 24",
        "12 / 3 * 7 - 4 = 24.0",
        "12 / 3 * 7 - 4 = ?",
        "12 / 3 * 7 - 4 = x",
        "12 / 3 * 7 - 4 ≈ 24",
        "The answer is 12 / 3 * 7 - 4",
        "12 / 3(7) - 4",
        r"2\frac{1}{2}",
        "12^1 / 3 * 7 - 4",
        "12³ / 3 * 7 - 4",
        "１２ / 3 * 7 - 4",  # noqa: RUF001
        "0x12 / 3 * 7 - 4",
        "12x + 3",
        "x = 12 / 3 * 7 - 4",
        "$1$2 / 3 * 7 - 4",
        r"1\,2 / 3 * 7 - 4",
        "1 2 / 3 * 7 - 4",
        "1,2 / 3 * 7 - 4",
        "12 ** 3 - 7 * 4",
        "**12 / 3** * **7 - 4**",
        "−4 + 12 / 3 * 7",  # noqa: RUF001
        r"\boxed{12/3*7-4} and \boxed{12 + 12}",  # two answers
        r"\boxed{12 / 3 * 7 - 4",
        r"\frac{}{3}",
        r"\text{12 / 3 * 7 - 4}",
        "",
        "$$",
    ],
)
def test_what_stays_unread(text: str) -> None:
    verdict = lenient(text)
    assert not verdict.correct and not verdict.parsed, verdict


@pytest.mark.parametrize(
    ("response", "correct", "reason"),
    [
        (r"<think>12/3=4</think> The result is \boxed{12 / 3 * 7 - 4}", True, ""),
        (r"12/3=4 ...</think> \boxed{12 / 3 \times 7 - 4 = 24}", True, ""),
        (r"<answer>\boxed{12 / 3 * 7 - 4}</answer>", True, ""),
        (r"\boxed{12 + 12} <answer>12 / 3 x 7 - 4</answer>", True, ""),  # tags are what the prompt asks for
        (r"<answer>12 + 12</answer> \boxed{12 / 3 * 7 - 4}", False, "wrong-numbers"),
        (r"<think>\boxed{12 / 3 * 7 - 4}</think> I do not know.", False, "no-answer"),
        (r"<think>\boxed{12 / 3 * 7 - 4}", False, "unfinished-thinking"),
        ("12 / 3 * 7 - 4 = 24", False, "no-answer"),
    ],
)
def test_tags_come_first_and_a_box_counts_without_them(response: str, correct: bool, reason: str) -> None:
    verdict = lenient(response, "answer")
    assert (verdict.correct, verdict.reason) == (correct, reason)


def test_thousands_are_read_in_groups_of_three() -> None:
    assert lenient("1,000 + 24 = 1,024", numbers=(1000, 24), target=1024).correct
    assert lenient(r"1{,}000 + 24", numbers=(1000, 24), target=1024).correct
    for text in ("1,00 + 24", "1,0000 + 24", "0,100 + 24", "1,000,00 + 24"):
        assert not lenient(text, numbers=(100, 1000, 24), target=1024).parsed


# ------------------------------------------------------------------------------------------------ at random

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def evaluate(text: str) -> tuple[list[int], Fraction | None]:
    """Return the numbers and the value of a plain expression by Python's own parser; None for a division by zero."""
    numbers: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        assert isinstance(node, ast.Constant) and type(node.value) is int
        numbers.append(node.value)
        return Fraction(node.value)

    tree = ast.parse(text, mode="eval").body
    try:
        result = value(tree)
        return sorted(numbers), result
    except ZeroDivisionError:
        return [int(n) for n in sorted(re.findall(r"\d+", text), key=int)], None


def expression(rng: random.Random, numbers: list[int]) -> tuple[str, str]:
    """Return a random expression of the numbers, plain and as a model might write it."""
    if len(numbers) == 1:
        return str(numbers[0]), str(numbers[0])
    cut = rng.randrange(1, len(numbers))
    (a, left), (b, right) = expression(rng, numbers[:cut]), expression(rng, numbers[cut:])
    sign = rng.choice("+-*/")
    if sign == "/" and rng.random() < 0.5:
        return f"(({a})/({b}))", rf"\{rng.choice(['', 'd', 't'])}frac{{{left}}}{{{right}}}"
    spellings = {
        "+": ["+", "＋"],  # noqa: RUF001
        "-": ["-", "−", "–"],  # noqa: RUF001
        "*": ["*", "×", "·", r"\times ", r"\cdot ", r"\*", "x"],  # noqa: RUF001
        "/": ["/", "÷", r"\div "],
    }
    gap = rng.choice([" ", "  ", "\u00a0"])
    pair = rng.choice([("(", ")"), (r"\left(", r"\right)")])
    return f"(({a}){sign}({b}))", f"{pair[0]}{left}{gap}{rng.choice(spellings[sign])}{gap}{right}{pair[1]}"


def dress(rng: random.Random, text: str) -> str:
    return rng.choice(["{}", "${}$", "$${}$$", r"\({}\)", r"\[ {} \]", r"\boxed{{{}}}", "**{}**", "{}."]).format(text)


def test_random_expressions_get_the_verdict_of_an_independent_evaluator() -> None:
    """Right exactly where Python's parser says so; 3,000 expressions, half of the targets are another number."""
    rng, right = random.Random(0), 0
    for _ in range(3000):
        numbers = [rng.randint(1, 30) for _ in range(rng.randint(2, 4))]
        plain, written = expression(rng, numbers)
        used, value = evaluate(plain)
        if rng.random() < 0.2:
            numbers[rng.randrange(len(numbers))] += 1  # the expression does not use the given numbers
        if value is None or value.denominator > 1 or not 0 <= value <= grammar.MAX_VALUE:
            target, true = rng.randint(1, 60), False
        else:
            target = int(value) + rng.choice([0, 0, 1, -1 if value else 1])
            true = value == target and used == sorted(numbers)
        claim = rng.choice([None, None, target, target + 1])
        text = dress(rng, written if claim is None else f"{written} = {claim}")
        if text.startswith("**") and "*" in text[2:-2]:
            continue  # bold type around asterisks is not always read
        verdict = lenient(text, numbers=numbers, target=target)
        assert verdict.correct == (true and claim in (None, target)), (text, numbers, target, verdict)
        right += verdict.correct
    assert right > 300


def test_perturbed_answers_are_right_only_where_the_perturbed_text_is() -> None:
    """One character of a right answer is deleted, doubled or replaced: only a text of the same meaning stays right."""
    rng, kept = random.Random(1), 0
    same = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "x": "*", "$": " ", "\u00a0": " "})  # noqa: RUF001
    for text in ("12 ÷ 3 × 7 − 4 = 24", "$12/3 · 7 - 4$", "(12 / 3) x 7 - 4 = 24"):  # noqa: RUF001
        assert lenient(text).correct
        for _ in range(1500):
            i, letter = rng.randrange(len(text)), rng.choice("0123456789+-*/x×÷−=().,$ \u00a0^{}\\")  # noqa: RUF001
            changed = rng.choice(
                [text[:i] + text[i + 1 :], text[:i] + letter + text[i:], text[:i] + letter + text[i + 1 :]]
            )
            if not lenient(changed).correct:
                continue
            kept += 1
            changed = re.sub(r"\\[()\[\],;:! ]", " ", changed.translate(same).replace(r"\*", "*"))
            expression, *value = changed.strip(" .").split("=")
            assert [int(v) for v in value] in ([], [24]), changed
            assert evaluate(" ".join(expression.split())) == (sorted(NUMBERS), 24), changed
    assert kept > 100


def test_whatever_the_strict_grading_reads_has_the_same_verdict() -> None:
    rng, read = random.Random(2), 0
    for _ in range(4000):
        text = "".join(rng.choice(["12", "3", "7", "4", " ", "+", "-", "*", "/", "(", ")"]) for _ in range(9))
        verdict = strict(text)
        if verdict.parsed:
            read += 1
            assert lenient(text) == verdict == lenient(f"<answer>{text}</answer>", "answer")
    assert read > 20


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{" * 100_000,
        r"\frac{1}{" * 300 + "1" + "}" * 300,
        r"\boxed{" * 100_000 + "1" + "}" * 100_000,
        "1,000" * 200_000,
        "12 x " * 200_000,
        "**" * 400_000,
        "`" + "*a" * 300_000 + "`",
        "$" * 1_000_000,
        "=" * 1_000_000,
        r"\left" * 200_000,
        "9" * 1000 + " = " + "9" * 10,
        "`" + "*a" * 400,
        "1 = " + "9" * 900,
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.parametrize("form", ["expression", "answer"])
def test_large_hostile_texts_get_a_quick_refusal(text: str, form: str) -> None:
    with linear_time():
        assert not lenient(text, form).correct
        assert not lenient(f"<answer>{text}</answer>", form).correct


# ------------------------------------------------------------------------------------------------ the option


def test_the_option_is_part_of_a_runs_identity_and_strict_is_as_before() -> None:
    words = ["scale=paper", "task=countdown", "method=grpo"]
    plain, other = compose_config(words), compose_config([*words, "data.grading=lenient"])
    assert compose_config([*words, "data.grading=strict"]) == plain
    for identity in (data_identity, train_identity, evaluation_identity):
        assert identity(plain) != identity(other)


@pytest.mark.parametrize("words", [("scale=laptop", "task=countdown"), ("scale=paper", "task=mathematics")])
def test_where_there_is_nothing_to_read_in_two_ways_it_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"data\.grading=lenient: only Countdown's expressions"):
        compose_config([*words, "data.grading=lenient"])


def test_the_data_carry_it_to_training_and_evaluation_alike(tmp_path) -> None:
    small = ["scale=pocket", "task=countdown", "data.split_sizes={train: 4}"]
    for grading in grammar.GRADINGS:
        countdown.write_data(compose_config([*small, f"data.grading={grading}"]), tmp_path)
        problem, *_ = files.read_problems(tmp_path / "train.parquet")
        truth = grammar.from_ground_truth(problem.ground_truth)
        assert truth.grading == grading
        (gold,) = countdown.gold_responses(problem.ground_truth)
        response = f"${gold} = {truth.target}$"
        read = grading == "lenient"
        assert countdown.verify(gold, problem.ground_truth).correct
        assert countdown.verify(response, problem.ground_truth).correct == read
        assert compute_score("countdown", response, problem.ground_truth)["score"] == float(read)  # verl's workers


def test_a_line_to_grade_names_it() -> None:
    line = {"numbers": list(NUMBERS), "target": TARGET, "response": r"I get \boxed{12/3 \times 7 - 4}"}
    assert not countdown.grade_line(line).parsed
    assert countdown.grade_line({**line, "grading": "lenient"}).correct
    assert countdown.grade_line({**line, "grading": "lenient", "response": "12/3*7-4 = 24"}).correct
    with pytest.raises(UserError, match="field 'grading' must be one of strict, lenient"):
        countdown.grade_line({**line, "grading": "generous"})


def test_lm_evals_filter_and_the_majority_vote_see_the_box() -> None:
    boxed = r"Thus $\boxed{12 \div 3 \times 7 - 4 = 24}$"
    ((kept, tagged),) = Extract("countdown").apply([[boxed, "so <answer>12/3*7-4</answer>"]], [{}])
    assert lenient(kept, "answer").correct and strict(kept, "answer") == strict(boxed, "answer")
    assert tagged == "<answer>12/3*7-4</answer>"
    assert countdown.answer(boxed) == countdown.answer("<answer>12 / 3 * 7 - 4</answer>") == "12/3*7-4"
    assert countdown.answer("12 / 3 = 4 , 4 * 7 = 28") == "12/3=4,4*7=28"  # a chain, as it is
    assert notation.plain("12/3*7-4") == "12/3*7-4"
