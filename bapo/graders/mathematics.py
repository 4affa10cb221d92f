"""The grader of mathematics: is the boxed answer of a response one of the golds?

Several golds are alternatives: any of them is right. (Minerva's lists hold the same answer in several notations, or
the values that two roundings give; an answer of several parts is one gold with commas.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from bapo.errors import UserError
from bapo.graders import compare, forms, numbers, pool, size, units
from bapo.graders.extract import TouchedBox, last_boxes
from bapo.graders.normalise import closed, compact, normalise
from bapo.graders.verdict import (
    DIFFERENT,
    EQUAL,
    NO_ANSWER,
    OVERLOADED,
    RIGHT,
    TIME_LIMIT,
    TOO_LONG,
    UNREADABLE,
    WRONG,
    Verdict,
)

LONGEST = 2000  #: characters; longer answers are compared as they stand
CACHE = 32_768  #: outcomes kept, one for a gold and an answer
MAX_BOXES = 8  #: of one answer that are also looked at alone


def grade(response: str, golds: Sequence[str]) -> Verdict:
    """Grade a response, within the limits of :mod:`bapo.graders.pool`. Never raises because of the response.

    Boxes that are one answer are a list, which is right also where each of them alone is the same gold.
    golds: texts or LaTeX, any of which is right. Raises UserError for empty or unreadable golds.
    """
    golds = check_golds(golds, "golds")
    try:
        boxes = last_boxes(response)
    except TouchedBox:
        return Verdict(False, False, UNREADABLE)
    with pool.shared().one_verdict():
        verdict = judge(", ".join(boxes), golds)
        if verdict.correct or not 1 < len(boxes) <= MAX_BOXES:
            return verdict
        for gold in golds:
            reasons = _alone(boxes, gold)
            if not any(reasons):
                return RIGHT
            if reasons[-1] in ("", OVERLOADED):
                verdict = _OVERLOADED  # it may be right
            elif reasons[-1] == TIME_LIMIT:
                verdict = Verdict(False, False, TIME_LIMIT)  # for pool.one_batch, which counts them
        return verdict


def _alone(boxes: Sequence[str], gold: str) -> list[str]:
    """Return the reasons of boxes that are graded one by one, up to the first that is not the gold."""
    reasons = []
    for box in boxes:
        reasons.append(judge(box, (gold,)).reason)
        if reasons[-1] not in ("", OVERLOADED):
            break
    return reasons


def judge(answer: str, golds: Sequence[str]) -> Verdict:
    """Grade an answer without a box around it; one limit of time holds for all golds."""
    if _empty(answer):
        return _NONE
    if answer.strip() in [gold.strip() for gold in golds]:
        return RIGHT  # before any gold needs algebra
    outcomes = []
    with pool.shared().one_verdict():
        for gold in golds:
            outcomes.append(compare_texts(gold, answer))
            if outcomes[-1] == EQUAL:
                return RIGHT
    if OVERLOADED in outcomes and TIME_LIMIT not in outcomes:  # with a time limit, the answer itself used up the time
        return _OVERLOADED
    if DIFFERENT in outcomes:
        return Verdict(False, True, WRONG)
    return Verdict(False, False, outcomes[0])


_NONE = Verdict(False, False, NO_ANSWER)
_OVERLOADED = Verdict(False, False, OVERLOADED)


def _empty(answer: str) -> bool:
    return not answer.strip("{}()[]$\\., \n\t") and "".join(answer.split()).strip("$") not in (r"\{\}", "{}")


def compare_texts(gold: str, answer: str) -> str:
    """Return an outcome of :mod:`bapo.graders.verdict`."""
    gold, answer = gold.strip(), answer.strip()
    if gold == answer or closed(gold) == answer:
        return EQUAL
    a, b = numbers.integer(gold), numbers.integer(answer)
    if a is not None and b is not None:
        return EQUAL if a == b else DIFFERENT
    if len(answer) > LONGEST or len(gold) > LONGEST:
        same = "".join(answer.split()) == "".join(gold.split())
        return EQUAL if same else TOO_LONG if len(answer) > LONGEST else DIFFERENT
    try:
        # past the limit of a batch the cache is not read, because that of a resumed run holds less
        return (outcome_of.__wrapped__ if pool.shared().refuses else outcome_of)(gold, answer)
    except pool.Overloaded:  # not cached: another attempt may succeed, on a machine that is less busy
        return OVERLOADED
    except RecursionError:  # not cached: it depends on how deep the caller is
        return UNREADABLE


def _read(text: str) -> forms.Form | None:
    try:
        return forms.read(text)
    except forms.Unreadable:
        return None


@lru_cache(maxsize=CACHE)
def outcome_of(gold: str, answer: str) -> str:
    form, right = _read(answer), _read(gold)
    if form is None or right is None:
        same = compact(normalise(gold)) == compact(normalise(answer))
        return EQUAL if same else UNREADABLE if form is None else DIFFERENT
    if (marks := units.marks(gold)) and (others := units.marks(answer)) and not marks & others:
        return DIFFERENT
    if len(form.latex) > forms.MAX_LENGTH:
        return EQUAL if form.text == right.text else TOO_LONG
    try:
        settled = EQUAL if compare.same(right, form) else DIFFERENT
    except compare.NeedsAlgebra:
        settled = None
    if settled != EQUAL and size.too_large(form.latex):
        return UNREADABLE  # whatever the gold
    return settled or pool.shared().judge(gold, answer)


@lru_cache(maxsize=8192)
def readable(gold: str) -> bool:
    """Return whether a gold is an answer that can be compared."""
    if len(gold) > LONGEST:
        return True
    if not compact(normalise(gold)).strip("{}()[]$\\.,;:%"):
        return r"\{\}" in gold or "empty" in gold or "varnothing" in gold or "∅" in gold
    try:
        forms.read(gold)
    except (forms.Unreadable, RecursionError):
        return False
    return True


def check_golds(golds: object, where: str, readable: Callable[[str], object] = readable) -> tuple[str, ...]:
    """Return the golds as a tuple. Raises UserError naming ``where`` for none, or for one that is not ``readable``."""
    golds = (golds,) if isinstance(golds, str) else golds
    if not isinstance(golds, Sequence) or not golds or not all(isinstance(gold, str) for gold in golds):
        raise UserError(f"{where}: must be a text or a list of texts, numbers in quotes; got {golds!r:.80}")
    for gold in golds:
        if not readable(gold):
            raise UserError(f"{where}: the gold {gold!r:.80} is empty or cannot be read; correct or remove this row")
    return tuple(golds)


def grade_line(line: Mapping[str, object]) -> Verdict:
    """Grade {"gold": text or list of texts, "response": text}. Raises UserError naming the field."""
    return grade(read_response(line), check_golds(line["gold"], "field 'gold'"))


def read_response(line: Mapping[str, object]) -> str:
    """Return a line's response. Raises UserError where it is no text."""
    if not isinstance(line["response"], str):
        raise UserError(f"field 'response' must be text, got {type(line['response']).__name__}")
    return line["response"]
