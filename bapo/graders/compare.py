"""Compares two answers part by part. What needs algebra goes to ``algebra``, which the caller gives."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from bapo.graders import forms, numbers, units
from bapo.graders.forms import Form

#: (gold, answer) in LaTeX -> whether they are equal. May raise NeedsAlgebra or forms.Unreadable.
Algebra = Callable[[str, str], bool]
Bounds = tuple[Form, bool, Form, bool]  # low end, whether it belongs, high end, whether it belongs

Part = TypeVar("Part")

_FLIP = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_INFINITE = {r"\infty", r"-\infty"}


class NeedsAlgebra(Exception):
    """The comparison cannot be settled without computer algebra."""


def no_algebra(gold: str, answer: str) -> bool:
    """Raise NeedsAlgebra. This is the ``algebra`` of a caller that has none."""
    raise NeedsAlgebra


def same(gold: Form, answer: Form, algebra: Algebra = no_algebra) -> bool:
    """Return whether ``answer`` is ``gold``. Lists and sets are unordered, tuples ordered; the tests show the rest.

    Raises what ``algebra`` raises.
    """
    if answer.steps:
        bare = replace(answer, steps=())
        return same(gold, bare, algebra) and all(_true(step, bare, algebra) for step in answer.steps)
    if (gold.text, gold.kind, gold.unit, gold.percent) == (answer.text, answer.kind, answer.unit, answer.percent):
        return True
    if answer.alone is not None and same(gold, answer.alone, algebra):
        return True
    if not units.same(gold.unit, answer.unit):
        return False
    if gold.percent != answer.percent:
        if gold.unit or answer.unit:
            return False
        # 50% is right where 50 was meant and where 0.5 was, and 0.5% is not where 0.5 was
        small = not gold.percent and gold.number is not None and abs(gold.number.value) < 1
        if not small and same(replace(gold, percent=False), replace(answer, percent=False), algebra):
            return True
        hundredth = _hundredth(gold if gold.percent else answer)
        if hundredth is None:
            return False
        return same(hundredth, answer, algebra) if gold.percent else same(gold, hundredth, algebra)
    if gold.other is not None and gold.other.name == "comma" and not re.fullmatch(r"-?\d,\d\d", gold.text):
        gold = replace(gold, other=None)  # answers may have a decimal comma; of golds only 1,23 has one
    if gold.kind == "number" and gold.other is not None:
        if answer.kind == "list" and re.sub(r", ", ",", answer.latex) == gold.latex:
            return True
        gold = replace(gold, other=None)  # 1,234 may be written as a list, but not in another order or words
    kinds = (gold.kind, answer.kind)
    if "equation" in kinds:
        return _equations(gold, answer, algebra)
    if gold.other is not None and answer.other is not None and gold.kind != answer.kind:
        readings = (gold.other, replace(answer, other=None)), (replace(gold, other=None), answer.other)
        return any(same(*pair, algebra) for pair in readings)
    if (reading := _reading(gold, answer.kind)) is not None:
        return same(reading, answer, algebra)
    if (reading := _reading(answer, gold.kind)) is not None:
        return same(gold, reading, algebra)
    if kinds == ("number", "number"):
        return numbers.agree(gold.number, answer.number)  # type: ignore[arg-type]
    if "choice" in kinds or "text" in kinds:
        return _words(gold, answer)
    if "ratio" in kinds:
        return _ratios(gold, answer, algebra)
    if "matrix" in kinds:
        return _matrices(gold, answer, algebra)
    if set(kinds) & {"interval", "union", "relation"}:
        return _ranges(gold, answer, algebra)
    if set(kinds) & {"list", "set", "tuple"}:
        return _collections(gold, answer, algebra)
    return _expressions(gold, answer, algebra)


def _reading(form: Form, kind: str) -> Form | None:
    """Return another reading of ``form`` that suits a form of this kind; None where there is none.

    A text with two readings has the second one, and a list of one part has that part.
    """
    if form.other is not None and (kind in ("list", "set", "tuple")) == (form.kind == "number"):
        return form.other
    one_part = form.kind in ("list", "set") and len(form.parts) == 1
    return form.parts[0] if one_part and kind not in ("list", "set") else None


def _true(step: Form, last: Form, algebra: Algebra) -> bool:
    """Return whether "step = last" may be true: a decimal may be rounded, and what cannot be read says nothing."""
    if step.unit or last.unit or step.percent or last.percent:
        return True
    if step.number and last.number:
        return numbers.near(step.number, last.number)
    if "." in step.latex + last.latex or last.kind not in ("number", "expression") or _literal(last):
        return True
    try:
        return algebra(last.latex, step.latex)
    except forms.Unreadable:
        return True


def _hundredth(form: Form) -> Form | None:
    """Return the hundredth of a number or an expression, without its percent sign; None for any other form."""
    if form.number is not None:
        value = form.number._replace(value=form.number.value / 100)
        return replace(form, kind="number", number=value, percent=False, text=f"{form.text}/100")
    if form.kind == "expression":
        latex = rf"\frac{{{form.latex}}}{{100}}"
        return replace(form, latex=latex, text=latex, percent=False)
    return None


def _expressions(gold: Form, answer: Form, algebra: Algebra) -> bool:
    if gold.text == answer.text:
        return True
    if _literal(gold) or _literal(answer):
        return False  # numerals in another base are names: 52_8 is neither 52 nor 42
    if all(re.fullmatch(r"[a-zA-Z]", form.text) for form in (gold, answer)):
        return False  # two different variables
    return algebra(gold.latex, answer.latex)


def _literal(form: Form) -> bool:
    return re.fullmatch(r"-?[0-9A-Za-z]*\d[0-9A-Za-z.]*_\{?\d+\}?", form.text) is not None


def _words(gold: Form, answer: Form) -> bool:
    """Compare words and letters of choices, ignoring case, wrappers and punctuation."""
    if "choice" in (gold.kind, answer.kind):
        if gold.kind == answer.kind:
            return gold.text == answer.text
        choice, other = (gold, answer) if gold.kind == "choice" else (answer, gold)
        if other.text.upper() != choice.text:
            return False
        # a bare capital may be a variable, and e, f, i are not E, F, I; a small letter answers a choice
        return other.kind == "text" or (gold is choice and (gold.name is None or gold.text <= "D"))
    return _letters(gold) == _letters(answer) != ""


def _letters(form: Form) -> str:
    if form.kind == "text":
        return re.sub(r"[\W_]", "", form.text.lower())
    if form.kind in ("expression", "list") and re.fullmatch(r"[a-zA-Z\s,]+", form.latex):
        return re.sub(r"[\W_]", "", form.latex.lower())
    return ""


def _ratios(gold: Form, answer: Form, algebra: Algebra) -> bool:
    """Compare by quotient (not times of day): a:b equals c:d, and what equals a/b."""
    clocks = [form.name == "time" or form.unit in ("?am", "?pm") for form in (gold, answer)]
    if gold.kind == "ratio" and forms.TIME.fullmatch(gold.text) and not clocks[1]:
        return False  # of what may be a time of day another ratio is no other spelling
    if gold.kind == answer.kind:
        if len(gold.parts) != len(answer.parts):
            return False
        if any(clocks):
            time = gold.name == answer.name and (clocks[0] or forms.TIME.fullmatch(gold.text))
            return bool(time) and _ordered(gold.parts, answer.parts, no_algebra)
        values = [[p.number.value if p.number else None for p in form.parts] for form in (gold, answer)]
        if all(v for row in values for v in row):
            return len({g / a for g, a in zip(*values, strict=True)}) == 1
        if any(p.kind not in ("number", "expression") or p.unit or p.percent for p in gold.parts + answer.parts):
            return _ordered(gold.parts, answer.parts, algebra)
        return all(algebra(_quotient(gold, i), _quotient(answer, i)) for i in range(1, len(gold.parts)))
    ratio, other = (gold, answer) if gold.kind == "ratio" else (answer, gold)
    if len(ratio.parts) != 2 or any(clocks) or other.kind not in ("number", "expression"):
        return False
    a, b = (part.number for part in ratio.parts)
    if a and b and other.number:
        return bool(b.value) and numbers.agree(numbers.Value(a.value / b.value), other.number)
    latex = _quotient(ratio, 1), other.latex
    return algebra(*(latex if ratio is gold else latex[::-1]))


def _quotient(ratio: Form, index: int) -> str:
    return rf"\frac{{{ratio.parts[0].latex}}}{{{ratio.parts[index].latex}}}"


def _matrices(gold: Form, answer: Form, algebra: Algebra) -> bool:
    kinds = {gold.kind, answer.kind}
    if kinds == {"matrix"}:
        return gold.columns == answer.columns and _ordered(gold.parts, answer.parts, algebra)
    if kinds == {"matrix", "tuple"}:  # a vector written as a point
        matrix = gold if gold.kind == "matrix" else answer
        vector = matrix.columns in (1, len(matrix.parts)) and len(matrix.parts) > 1
        return vector and _ordered(gold.parts, answer.parts, algebra)
    return kinds == {"matrix", "expression"} and algebra(gold.latex, answer.latex)


def _ordered(gold: tuple[Form, ...], answer: tuple[Form, ...], algebra: Algebra) -> bool:
    return len(gold) == len(answer) and all(same(g, a, algebra) for g, a in zip(gold, answer, strict=True))


def _sorted(parts: tuple[Form, ...]) -> tuple[Form, ...]:
    """Return the coordinates x, y and z in this order; other parts as they stand."""
    coordinates = all(part.kind == "equation" and part.name in ("x", "y", "z") for part in parts)
    return tuple(sorted(parts, key=lambda part: part.name or "")) if coordinates else parts


def _unordered(gold: tuple[Form, ...], answer: tuple[Form, ...], algebra: Algebra) -> bool:
    """Return whether the parts of one can be paired with equal parts of the other; repeated parts count."""
    if len(gold) != len(answer):
        return False
    left = list(answer)
    # pairs that need no algebra come first, because a pass over n^2 pairs must stay cheap
    unmatched = [part for part in gold if not _take(left, partial(_same_without_algebra, part))]
    return all(_take(left, partial(same, part, algebra=algebra)) for part in unmatched)


def _take(left: list[Part], fits: Callable[[Part], bool]) -> bool:
    """Take the first part that fits out of ``left``; return whether there is one."""
    index = next((i for i, part in enumerate(left) if fits(part)), None)
    if index is not None:
        left.pop(index)
    return index is not None


def _same_without_algebra(gold: Form, answer: Form) -> bool:
    try:
        return same(gold, answer)
    except NeedsAlgebra:
        return False


def _collections(gold: Form, answer: Form, algebra: Algebra) -> bool:
    if gold.kind in ("list", "set") and answer.kind in ("list", "set"):
        names = [[part.name for part in form.parts if part.kind == "equation"] for form in (gold, answer)]
        # x = 1, y = 2 is compared with 1, 2 in the order of the names, unless it is one name, or roots'
        one_sided = sorted(map(len, names)) == [0, len(gold.parts)]
        roots = not names[0] and all(re.fullmatch(r"x_\{?\d\}?", name or "") for name in names[1])
        if one_sided and not roots and len(set(names[0] or names[1])) > 1:
            return _ordered(gold.parts, _sorted(answer.parts), algebra)
        return _unordered(gold.parts, answer.parts, algebra)
    named = gold.kind == "list" and answer.kind == "tuple" and all(p.kind == "equation" for p in gold.parts)
    if named or (gold.kind == "tuple" and answer.kind in ("tuple", "list")):  # a list: the brackets were left out
        return _ordered(gold.parts, _sorted(answer.parts), algebra)
    return {gold.kind, answer.kind} == {"set", "expression"} and algebra(gold.latex, answer.latex)


# -------------------------------------------------------------------------------------------- equations


def _equations(gold: Form, answer: Form, algebra: Algebra) -> bool:
    """Compare two equations, or a named value with the value alone."""
    if (point := _point(gold, answer)) is not None:
        return same(gold, point, algebra)
    if gold.kind == answer.kind:
        if gold.name and answer.name and _same_name(gold.name, answer.name):
            if same(gold.parts[0], answer.parts[0], algebra):
                return True
            if gold.parts[0].kind in ("number", "list", "set", "tuple"):
                return False
        return algebra(gold.latex, answer.latex)
    if gold.kind == "equation":
        return bool(gold.name) and answer.kind != "relation" and same(gold.parts[0], answer, algebra)
    return (
        bool(answer.name or forms.several(answer.latex))
        and gold.kind != "relation"
        and same(gold, answer.parts[0], algebra)
    )


def _point(gold: Form, answer: Form) -> Form | None:
    """Return the point that an answer (y,x) = (8,5) names, in the order of the gold's names, or else of x, y and z."""
    if answer.kind != "equation" or answer.name is None or answer.parts[0].kind != "tuple":
        return None
    names, parts = answer.name.strip("()").split(","), answer.parts[0].parts
    listed = gold.kind == "list"
    known = [part.name for part in gold.parts] if listed else (gold.name or "(x,y,z)").strip("()").split(",")
    if len(names) != len(parts) or not set(names) <= set(known):
        return None
    ordered = sorted(zip(names, parts, strict=True), key=lambda pair: known.index(pair[0]))
    latex = ",".join(part.latex for _, part in ordered)
    return replace(answer.parts[0], text=f"({latex})", parts=tuple(part for _, part in ordered))


def _same_name(a: str, b: str) -> bool:
    """Return whether names are equal, or a function of one variable and the y that graphs it."""
    a, b = (re.sub(r"^(?:y|[fgh]\([a-z]\))$", "y", name) if {a, b} & {"y"} else name for name in (a, b))
    bare = [re.sub(r"\\text|[(){}\\_]", "", name) for name in (a, b)]
    return bare[0] == bare[1]


# -------------------------------------------------------------------------------------------- intervals, inequalities


def _ranges(gold: Form, answer: Form, algebra: Algebra) -> bool:
    """Compare intervals, unions of them, and inequalities in one variable.

    The variable matters between two inequalities, and not between an inequality and an interval.
    """
    pieces = _intervals(gold), _intervals(answer)
    if pieces[0] is None or pieces[1] is None:  # one of them cannot be read as intervals
        if gold.kind == answer.kind == "union":
            return _unordered(gold.parts, answer.parts, algebra)
        if {gold.kind, answer.kind} & {"number", "tuple", "list", "set", "ratio"}:
            return False
        return algebra(gold.latex, answer.latex)
    if gold.kind == answer.kind == "relation" and _variable(gold) != _variable(answer):
        return False
    left = list(pieces[1])
    fit = (_take(left, partial(_same_bounds, piece, algebra=algebra)) for piece in pieces[0])
    return len(pieces[0]) == len(left) and all(fit)


def _intervals(form: Form) -> list[Bounds] | None:
    several = form.kind == "union" or (form.kind == "list" and all(p.kind == "relation" for p in form.parts))
    parts = form.parts if several else (form,)
    bounds = [ends for part in parts if (ends := _bounds(part)) is not None]
    return bounds if len(bounds) == len(parts) else None


def _bounds(form: Form) -> Bounds | None:
    if form.kind in ("interval", "tuple") and len(form.parts) == 2 and form.brackets:
        return form.parts[0], form.brackets[0] == "[", form.parts[1], form.brackets[1] == "]"
    if form.kind != "relation" or r"\ne" in form.operators:
        return None
    parts, operators = form.parts, form.operators
    if operators[0] in (">", r"\ge"):
        parts, operators = parts[::-1], tuple(_FLIP[o] for o in reversed(operators))
    if any(o not in ("<", r"\le") for o in operators):
        return None
    low, high = forms.scalar(r"-\infty"), forms.scalar(r"\infty")
    if len(parts) == 3:
        ends = parts[0].number, parts[2].number
        if _variable(form) is None or (ends[0] and ends[1] and ends[0].value > ends[1].value):
            return None
        return parts[0], operators[0] == r"\le", parts[2], operators[1] == r"\le"
    if _is_variable(parts[0]) and not _is_variable(parts[1]):
        return low, False, parts[1], operators[0] == r"\le"
    if _is_variable(parts[1]) and not _is_variable(parts[0]):
        return parts[0], operators[0] == r"\le", high, False
    return None


def _is_variable(form: Form) -> bool:
    return form.kind in ("expression", "choice", "text") and re.fullmatch(forms.VARIABLE, form.latex) is not None


def _variable(form: Form) -> str | None:
    candidates = [form.parts[1]] if len(form.parts) == 3 else form.parts
    return next((part.text for part in candidates if _is_variable(part)), None)


def _same_bounds(gold: Bounds, answer: Bounds, algebra: Algebra) -> bool:
    ends = ((gold[0], answer[0]), (gold[2], answer[2]))
    return (gold[1], gold[3]) == (answer[1], answer[3]) and all(
        g.text == a.text if {g.text, a.text} & _INFINITE else same(g, a, algebra) for g, a in ends
    )
