"""Intervals, unions of them, and inequalities in one variable."""

from __future__ import annotations

import re
from collections.abc import Callable

from bapo.graders import forms
from bapo.graders.forms import Form

SamePart = Callable[[Form, Form], bool]
Bounds = tuple[Form, bool, Form, bool]  # low end, whether it belongs, high end, whether it belongs

_FLIP = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_INFINITE = {r"\infty", r"-\infty"}


def same(gold: Form, answer: Form, same_part: SamePart) -> bool | None:
    """Return whether two ranges are the same; None where one of them cannot be read as intervals.

    The variable matters between two inequalities, and not between an inequality and an interval.
    """
    pieces = _intervals(gold), _intervals(answer)
    if pieces[0] is None or pieces[1] is None:
        return None
    if gold.kind == answer.kind == "relation" and _variable(gold) != _variable(answer):
        return False
    left = list(pieces[1])
    if len(pieces[0]) != len(left):
        return False
    for piece in pieces[0]:
        index = next((i for i, other in enumerate(left) if _same_bounds(piece, other, same_part)), None)
        if index is None:
            return False
        left.pop(index)
    return True


def _intervals(form: Form) -> list[Bounds] | None:
    several = form.kind == "union" or (form.kind == "list" and all(p.kind == "relation" for p in form.parts))
    parts = form.parts if several else (form,)
    bounds = [found for part in parts if (found := _bounds(part)) is not None]
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
        if _variable(form) is None:
            return None
        return parts[0], operators[0] == r"\le", parts[2], operators[1] == r"\le"
    if _is_variable(parts[0]) and not _is_variable(parts[1]):
        return low, False, parts[1], operators[0] == r"\le"
    if _is_variable(parts[1]) and not _is_variable(parts[0]):
        return parts[0], operators[0] == r"\le", high, False
    return None


def _is_variable(form: Form) -> bool:
    return form.kind in ("expression", "choice", "text") and re.fullmatch(r"[a-zA-Z](?:_\w)?", form.latex) is not None


def _variable(form: Form) -> str | None:
    candidates = [form.parts[1]] if len(form.parts) == 3 else form.parts
    return next((part.text for part in candidates if _is_variable(part)), None)


def _same_bounds(gold: Bounds, answer: Bounds, same_part: SamePart) -> bool:
    return (
        gold[1] == answer[1]
        and gold[3] == answer[3]
        and _end(gold[0], answer[0], same_part)
        and _end(gold[2], answer[2], same_part)
    )


def _end(gold: Form, answer: Form, same_part: SamePart) -> bool:
    if {gold.text, answer.text} & _INFINITE:
        return gold.text == answer.text
    return same_part(gold, answer)
