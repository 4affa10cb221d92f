"""Numbers that nobody writes out are refused by their text alone, and those that people do write are not."""

from __future__ import annotations

import pytest

from bapo.graders import mathematics, pool
from bapo.graders.normalise import normalise
from bapo.graders.size import too_large

TOO_LARGE = [
    *(r"9^{9^{9}}", "9^9^9", r"{9^9}^{9^9}", r"9^{-9^{9}}", r"3^{3^{3^{3}}}", r"2^{3\cdot 10^8}", "10^{100000}"),
    *(r"(\frac12)^{10^7}", "x^{1000000}", r"\sum_{n=1}^{10^9}\frac{1}{n^2}", r"x = \left(9^{9}\right)^{99999}"),
    *("9^9!", "10000!", "(9!)!", r"(10^{9})!", r"(9!!)^{9!!!!!!!!}!", r"10^{20}!"),
    *(r"\binom{99999999}{4999999}", r"\dbinom{10^9}{10^8}", r"\Gamma(10^{8})", r"\Gamma\left(10^8\right)"),
]
WRITTEN = [
    *("2^{10}", r"10^{400}", r"2^{2^{4}}", r"3^{3^{3}}", "9^{99999}", r"1^{10^4}", r"x^{2023}", "(x+y+z+1)^{300}"),
    *("9999!", "12!!", r"\binom{2000}{1000}", r"\binom{5}{10}", r"\Gamma(5)", r"\frac{(20)!}{7^{2}}", "7"),
    *("1" * 1900 + "^2", "{" * 300 + "1" + "}" * 300, "9^9 " * 200, "+".join([r"\binom{10^{999}}{300}"] * 20)),
]


@pytest.mark.parametrize(("answer", "large"), [*((a, True) for a in TOO_LARGE), *((a, False) for a in WRITTEN)])
def test_only_numbers_that_nobody_writes_out_are_too_large(answer: str, large: bool) -> None:
    assert too_large(normalise(answer)) == large


@pytest.mark.parametrize("gold", ["8", r"\sqrt{2}", "A", "(1, 2)", r"\text{none}", "x=y", "9^9"])
def test_such_an_answer_has_one_verdict_whatever_the_gold_and_costs_no_check(gold: str) -> None:
    before = pool.shared().kills
    found = {mathematics.grade(rf"\boxed{{{answer}}}", [gold]) for answer in TOO_LARGE}
    assert found == {(False, False, "unreadable")} and pool.shared().kills == before
    assert all(mathematics.grade(rf"\boxed{{{answer} }}", [answer]).correct for answer in TOO_LARGE)
