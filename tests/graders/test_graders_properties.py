"""What holds for every answer: no text raises or hangs, equal forms are right, other values are wrong."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from bapo.graders import mathematics
from bapo.tasks.countdown import grammar

LATEX = st.sampled_from(
    [*"0123456789+-*/^_=<>(){}[]|,.:;%$&~ x", r"\frac", r"\sqrt", r"\pi", r"\text{ cm}", r"\left(", r"\%", r"\infty"]
)
text = st.lists(LATEX, max_size=30).map("".join) | st.text(max_size=40)
whole = st.integers(-10_000, 10_000)
part = st.integers(1, 400)


def right(answer: str, gold: str) -> bool:
    return mathematics.grade(f"so \\boxed{{{answer}}}", [gold]).correct


@given(text)
def test_no_text_raises_and_none_is_eight_without_a_box_or_without_a_digit(answer: str) -> None:
    outside, inside = mathematics.grade(answer, ["8"]), mathematics.grade(f"so \\boxed{{{answer}}}", ["8"])
    assert not outside.correct or "boxed" in answer
    assert not inside.correct or (inside.parsed and any(c.isdigit() for c in answer))


@given(whole, part)
def test_the_forms_of_a_number_are_equal_and_no_other_number_is(number: int, bottom: int) -> None:
    value = Fraction(number, bottom)
    top, low = value.numerator, value.denominator
    sign, size = ("-" if top < 0 else ""), abs(top)
    forms = [f"{top}/{low}", rf"{sign}\frac{{{size}}}{{{low}}}", rf"{sign}\dfrac{{{3 * size}}}{{{3 * low}}}"]
    forms += [f"{top}", f"{top}.0", f"${top}$", rf"x = {top}"] if low == 1 else []
    gold = f"{top}" if low == 1 else rf"{sign}\frac{{{size}}}{{{low}}}"
    for form in forms:
        assert right(form, gold), form
    other = value + 1
    assert not right(f"{other.numerator}/{other.denominator}", gold)
    assert not value or not right(f"{-top}/{low}", gold)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 999), st.integers(2, 999))
def test_a_number_before_a_bracket_is_a_factor(a: int, b: int) -> None:
    for form in (f"{a}({b})", f"({a}){b}", rf"{a}\left({b}\right)", f"{a}({b}/1)"):
        assert right(form, f"{a * b}"), form
        assert a * b == a + b or not right(form, f"{a + b}"), form


@settings(max_examples=30)
@given(st.lists(st.integers(-99, 99), min_size=2, max_size=4, unique=True), st.randoms())
def test_a_set_has_no_order_and_a_point_has(numbers: list[int], random) -> None:
    other = list(numbers)
    random.shuffle(other)
    inside, moved = ", ".join(map(str, numbers)), ", ".join(map(str, other))
    assert right(rf"\{{{moved}\}}", rf"\{{{inside}\}}")
    assert right(f"({moved})", f"({inside})") == (numbers == other)
    assert not right(rf"\{{{inside}, 100\}}", rf"\{{{inside}\}}")


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, list[int], Fraction]:
    """Return an expression over 2 to 4 numbers, the numbers, and its value."""
    parts = [(str(n), Fraction(n), True) for n in draw(st.lists(st.integers(1, 30), min_size=2, max_size=4))]
    numbers = [int(value) for _, value, _ in parts]
    while len(parts) > 1:
        i = draw(st.integers(0, len(parts) - 2))
        (a, x, _), (b, y, _) = parts[i : i + 2]
        operator = draw(st.sampled_from("+-*/" if y else "+-*"))
        value = {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else x}[operator]
        parts[i : i + 2] = [(f"({a} {operator} {b})", value, False)]
    return parts[0][0], numbers, parts[0][1]


@given(expressions(), st.integers(1, 9))
def test_an_expression_is_right_for_its_own_value_and_numbers_alone(made, shift: int) -> None:
    text, numbers, value = made
    if value.denominator == 1:
        assert grammar.verify_expression(text, numbers, int(value)).correct
        assert grammar.verify_expression(text, sorted(numbers), int(value)).correct
        assert not grammar.verify_expression(text, numbers, int(value) + shift).correct
        assert not grammar.verify_expression(text, [*numbers, 1], int(value)).correct
        assert not grammar.verify_expression(text, numbers[1:], int(value)).correct
    else:
        assert not grammar.verify_expression(text, numbers, round(value)).correct


@given(st.text(alphabet="0123456789+-*/()=,. \n\u00d7", max_size=60) | st.text(max_size=60), st.integers(1, 99))
def test_no_text_raises_in_countdown(response: str, target: int) -> None:
    for verify in (grammar.verify_expression, grammar.verify_answer, grammar.verify_chain):
        verdict = verify(response, [3, 5, 8], target)
        assert verdict.parsed or not verdict.correct
