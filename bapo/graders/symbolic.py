"""A checker's process: algebra by math-verify, with guards against what it takes for equal and is not.

``python -m bapo.graders.symbolic FD``: over the connection FD it receives (gold, answer) and sends an outcome, until it
has made CHECKS checks, the connection closes or the parent is gone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import resource
import signal
import sys
from functools import lru_cache
from multiprocessing.connection import Connection
from types import ModuleType
from typing import TYPE_CHECKING

from bapo.graders import compare, forms, numbers, units
from bapo.graders.verdict import DIFFERENT, EQUAL, UNREADABLE

if TYPE_CHECKING:
    from sympy import Basic, Expr, Rational, Symbol

_SAMPLES = ("1.37", "2.61", "0.83", "3.19", "1.91", "0.47", "2.23", "4.07", "1.13", "2.89")
#: Further points for floors, ceilings and common divisors; letters that usually stand for integers take no others.
_WHOLE = (*range(1, 13), 100, 101, 360)
_INTEGERS = frozenset("ijklmnpqKMN")
CPU_SECONDS = 1.4  #: for one check; then the kernel kills the process, however busy the machine is
ADDRESS_SPACE = 1 << 30  #: bytes
CHECKS = 2000  #: so that what sympy remembers stays small

#: Parsed at the start, to fill the grammar's tables.
_WARM = (
    r"\frac{x+1}{2}-3\sqrt{5}",
    r"2\sin b\cos a",
    r"(x+1)^{2}",
    r"x_{1}e^{-\frac{h t}{k_{B} T_{s}}}",
    r"\frac{\pi^{2}}{8}",
    r"x \le 3",
    r"y=2x+1",
    r"\binom{2n}{n}",
    r"\log_{2} 3",
    r"\lfloor\frac{n}{2}\rfloor",
    r"1+2i",
    "5!",
    r"2 \cdot 3^{4}",
    r"\begin{pmatrix}1 & 2\\3 & 4\end{pmatrix}",
    r"\sqrt[3]{2}",
)
#: Two numbers with nothing between them, the first perhaps the label of a choice; math-verify would multiply or join
#: them.
_BESIDE = re.compile(r"(?<![\^_\d.])\d+(?:\.\d+)?\s+\d|^\(\d+\)\s+\d")
_MARKS = re.compile(r"[°%'\"]+|\^\s*\{?\s*'+\s*\}?")
_COMMON = re.compile(r"\\(gcd|lcm)\s*\((?=[^()]*[a-zA-Z])([^(),]+),([^(),]+)\)")
_COMPLEX_I = re.compile(r"(?<=[\d)}])i(?![a-zA-Z])")


def load() -> None:
    """Import math-verify and build its grammar, so that the first check does not pay for it."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
    for text in _WARM:
        parse(text)
    algebra(r"\sqrt{8}", r"2\sqrt{2}")
    algebra("x+1=y", "y=1+x")


def judge(gold: str, answer: str) -> bool:
    """Compare two texts with algebra. Raises forms.Unreadable for an answer that cannot be read."""
    return compare.same(forms.read(gold), forms.read(answer), algebra)


def algebra(gold: str, answer: str) -> bool:
    """Return whether two LaTeX expressions are equal. Raises forms.Unreadable where ``answer`` cannot be parsed."""
    from math_verify import verify
    from sympy import Basic, MatrixBase
    from sympy.logic.boolalg import BooleanAtom

    if _BESIDE.search(_MARKS.sub(" ", answer)):
        raise forms.Unreadable("two numbers beside each other")
    b = parse(answer)
    if b is None:
        raise forms.Unreadable("not an expression")
    a = parse(gold)
    if a is None:
        return False
    if not isinstance(a, Basic | MatrixBase) or not isinstance(b, Basic | MatrixBase):
        return False
    if isinstance(a, BooleanAtom) or isinstance(b, BooleanAtom):
        return False  # an equation or inequality that says nothing
    if _scalar(a) and _scalar(b):
        a_value, b_value = numbers.read(gold), numbers.read(answer)
        verdict = _numeric(a, b, (a_value.digits if a_value else None, b_value.digits if b_value else None))
        if verdict is not None:
            return verdict
    accepted = bool(verify(a, b, numeric_precision=60, allow_set_relation_comp=True, timeout_seconds=None))
    return accepted and not _vetoed(a, b)


@lru_cache(maxsize=256)
def parse(latex: str) -> Basic | None:
    """Parse a text into a sympy object whose symbols are real and known by name only; None where that fails."""
    from latex2sympy2_extended import NormalizationConfig
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, normalize_latex
    from math_verify.grader import should_treat_as_complex
    from sympy import Expr, I, MatrixBase, Symbol

    # As math_verify.parse does with one formula, except for two options. units: it would take the t of 3t for a unit.
    # lowercase_symbols: it would take R^2 - r^2 for zero.
    if units.TRIGONOMETRIC.search(latex):
        latex = re.sub(r"(\d+(?:\.\d+)?)\s*°", r"{\\frac{\1\\pi}{180}}", latex)
    latex = re.sub(r"(\.\d+)\s*\\ldots", r"\1", latex)  # 0.333... is a decimal
    if r"\ldots" in latex:
        return None  # its grammar would leave out the terms that dots stand for
    common = {f"Q_{{{int.from_bytes(match[0].encode())}}}": match for match in _COMMON.finditer(latex)}
    for name, match in common.items():
        latex = latex.replace(match[0], name)
    # its grammar takes E for Euler's number
    latex = re.sub(r"(?<![a-zA-Z\\])E\s*_\s*\{?\s*(\w)\s*\}?", lambda m: f"Q_{{{7000000 + ord(m[1])}}}", latex)
    text = _COMPLEX_I.sub(" i ", latex.replace("°", "")).replace("%", "").replace(")(", r") \cdot (")
    text = re.sub(r"(?<=\\pi)\s*\(", r" \\cdot (", text)  # its grammar would take it for a function
    text = re.sub(r"_\s*\{?\s*\\(odot|oplus|star|ast)(?![a-zA-Z])\s*\}?", r"_{\1}", text)  # unknown to its grammar
    try:
        text = normalize_latex(
            text, NormalizationConfig(units=False, malformed_operators=True, nits=False, boxed="none")
        )
        real, config = not should_treat_as_complex(text), ConversionConfig(lowercase_symbols=False)
        expression = _converter()(is_real=real, config=config).parse(text)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return None
    if not isinstance(expression, Expr | MatrixBase):
        return expression  # rebuilding an equation would evaluate it
    try:
        imaginary = {symbol.name for symbol in expression.free_symbols} == {"i"}  # where no other letter is
        names = {symbol: I if imaginary else Symbol(symbol.name, real=True) for symbol in expression.free_symbols}
        for symbol in names:
            if symbol.name in common:
                function, a, b = common[symbol.name].groups()
                divisor, product = _divisor()(parse(a), parse(b)), parse(f"({a})({b})")
                names[symbol] = divisor if function == "gcd" else product / divisor
        return expression.xreplace(names)
    except (AttributeError, TypeError):
        return expression


@lru_cache(maxsize=1)
def _divisor() -> type[Expr]:
    """Return the greatest common divisor as a function of two integers: sympy's takes letters for coprime."""
    from sympy import Function, Integer, igcd

    class Divisor(Function):
        @classmethod
        def eval(cls, a: Expr, b: Expr) -> Expr | None:
            return Integer(igcd(a, b)) if a.is_Integer and b.is_Integer else None

    return Divisor


@lru_cache(maxsize=1)
def _converter() -> type:
    """Return latex2sympy's converter, made to multiply what stands side by side: it adds two numbers, as in 3(4)."""
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy
    from sympy import Derivative, Expr, Matrix

    class Converter(_Latex2Sympy):
        def convert_postfix_list(self, arr: list, i: int = 0) -> object:
            if i + 1 == len(arr) or numbers.mixed("".join(factor.getText() for factor in arr[i:])):
                return super().convert_postfix_list(arr, i)
            left = self.convert_postfix(arr[i])
            if isinstance(left, list):  # d/dx
                return Derivative(self.convert_postfix_list(arr, i + 1), left[0])
            if not isinstance(left, Expr | Matrix):
                return left
            right = self.convert_postfix_list(arr, i + 1)
            matrices = isinstance(left, Matrix) or isinstance(right, Matrix)
            return (self.mat_mul_flat if matrices else self.mul_flat)(left, right)

    return Converter


def _scalar(expression: Basic) -> bool:
    from sympy import Expr, MatrixExpr

    return isinstance(expression, Expr) and not isinstance(expression, MatrixExpr)


def _numeric(a: Basic, b: Basic, decimals: tuple[int | None, int | None]) -> bool | None:
    """Compare at many digits: constants, and functions at sample points. None: cannot say.

    decimals: the significant digits of each that was written as one decimal.
    """
    from sympy import Float, ceiling, floor, nsimplify

    symbols = sorted(a.free_symbols | b.free_symbols, key=lambda s: s.name)
    inexact = a.has(Float) or b.has(Float)
    try:
        a, b = (nsimplify(x, rational=True) if x.has(Float) else x for x in (a, b))
    except Exception:
        return None
    if not symbols:
        return _constants(a, b, decimals, inexact)
    stepped = (floor, ceiling, _divisor())
    points = [{s: _sample(i, shift) for i, s in enumerate(symbols)} for shift in range(6)]
    if a.has(*stepped) or b.has(*stepped):
        whole = [{s: _whole(i, shift) for i, s in enumerate(symbols)} for shift in range(2 * len(_WHOLE))]
        points = [
            {s: (w if s.name[0] in _INTEGERS else p)[s] for s in symbols} for w, p in zip(whole, points, strict=False)
        ]
        points = list({tuple(point.values()): point for point in points + whole}.values())
    agreed = 0
    for point in points:
        verdict = _at(a, b, point, inexact)
        if verdict is False:
            return False
        agreed += verdict is True
    return True if agreed >= 4 else None


def _sample(index: int, shift: int) -> Rational:
    from sympy import Rational

    value = Rational(_SAMPLES[(index + 3 * shift) % len(_SAMPLES)]) + index // len(_SAMPLES) * 5
    return -value if shift >= 2 and (index + shift) % 2 == 0 else value


def _whole(index: int, shift: int) -> int:
    return _WHOLE[(shift + index * (3 + shift // len(_WHOLE))) % len(_WHOLE)]


def _at(a: Basic, b: Basic, point: dict[Symbol, Rational], inexact: bool) -> bool | None:
    """Return whether a and b agree at a point, to 25 digits; None where they have no value there."""
    from sympy import I, im, re

    try:
        x, y = (value.subs(point).evalf(40, maxn=200) for value in (a, b))
        if not (x.is_number and y.is_number) or not (x.is_finite and y.is_finite):
            return None
        x, y = (re(v) + I * im(v) for v in (x, y))
        size = max(abs(x), abs(y))
        if size == 0:
            return True
        return bool(abs(x - y).evalf(30) <= size * (10**-12 if inexact else 10**-25))
    except Exception:
        return None


def _constants(a: Basic, b: Basic, decimals: tuple[int | None, int | None], inexact: bool) -> bool | None:
    from sympy import Rational

    a, b = (x.doit() for x in (a, b))
    if a == b:
        return True
    if isinstance(a, Rational) and isinstance(b, Rational):
        return numbers.agree(_value(a, decimals[0]), _value(b, decimals[1]))
    try:
        x, y = a.evalf(60, maxn=1000), b.evalf(60, maxn=1000)
        if not (x.is_number and y.is_number and x.is_finite and y.is_finite):
            return None
        if x.is_real is False or y.is_real is False:
            return _at(a, b, {}, inexact)
        if (decimals[0] is None) != (decimals[1] is None):  # a decimal for a number that has no end
            p, q = (_value(Rational(str(v)), d) for v, d in ((x, decimals[0]), (y, decimals[1])))
            return numbers.agree(p, q, whole=False)
        size = max(abs(x), abs(y))
        if abs(x - y) > size * (10**-12 if inexact else 10**-50):
            return False
        if inexact:
            return True
        # equal to fifty digits: look at the difference itself, as closely as the size of the numbers asks
        gap = (a - b).evalf(20, maxn=4000)
        return bool(abs(gap) <= min(size, 1 / size, 1) * Rational(1, 10**300)) if gap.is_number else None
    except Exception:
        return None


def _value(rational: Rational, digits: int | None) -> numbers.Value:
    from fractions import Fraction

    return numbers.Value(Fraction(int(rational.p), int(rational.q)), digits)


def _vetoed(a: Basic, b: Basic) -> bool:
    """Return whether math-verify was wrong to accept: equations without real solutions, an interval for points."""
    from sympy import Eq, FiniteSet, Interval, Set, Tuple, simplify

    kinds = [next((k for k in (Interval, FiniteSet, Tuple, Set) if isinstance(x, k)), None) for x in (a, b)]
    if Interval in kinds and (FiniteSet in kinds or Tuple in kinds):
        return True
    if isinstance(a, Eq) and isinstance(b, Eq):
        left, right = a.lhs - a.rhs, b.lhs - b.rhs
        if left.free_symbols != right.free_symbols:
            return True
        try:  # the same equation up to a factor without zeros
            return not simplify(left / right).is_constant() and not _same_solutions(a, b)
        except Exception:
            return True
    return False


def _same_solutions(a: Basic, b: Basic) -> bool:
    from sympy import solve

    symbols = sorted(a.free_symbols, key=lambda s: s.name)
    first, second = (solve(x, symbols[0]) for x in (a, b))
    return bool(first) and len(first) == len(second) and set(map(str, first)) == set(map(str, second))


# ------------------------------------------------------------------------------------------------ the process


def serve(stream: Connection, checker: ModuleType = sys.modules[__name__]) -> None:
    """Check what comes over ``stream`` under the limits, then end the process.

    checker: a module with ``load()``, which imports what is slow, and ``judge(gold, answer)``.
    """
    checker.load()
    parent = os.getppid()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # a signal without a Python handler ends the process even inside one long C call
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    sys.setrecursionlimit(3000)
    with contextlib.suppress(OSError, EOFError, MemoryError):  # after a lack of memory no state is to be trusted
        stream.send_bytes(b"ready")
        for _ in range(CHECKS):
            while not stream.poll(2.0):
                if os.getppid() != parent:
                    os._exit(0)
            gold, answer = json.loads(stream.recv_bytes())
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            try:
                outcome = EQUAL if checker.judge(gold, answer) else DIFFERENT
            except MemoryError:
                raise
            except Exception:
                outcome = UNREADABLE
            signal.setitimer(signal.ITIMER_PROF, 0)
            stream.send_bytes(outcome.encode())
    os._exit(0)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
