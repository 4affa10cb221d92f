"""The structure of an answer: number, text, list, tuple, set, interval, matrix, equation, relation or expression."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from bapo.graders import numbers, units
from bapo.graders.normalise import APPLIED, balanced, closed, compact, depth, normalise, rules, split, unwrapped

#: Longer answers are compared as text only.
MAX_LENGTH = 500
MAX_DEPTH = 40
MAX_PARTS = 64

#: Left sides of equations whose right side is the answer: names, not expressions.
_NAME = re.compile(
    r"(?:(?:m|\\text\{\s*m\s*\}|\\#)\s*)?"
    r"(?:\\(?:angle|measuredangle|triangle|overline|overrightarrow|widehat|vec|hat|bar|mathbf|mathbb|mathcal|Delta)\s*)*"
    r"(?:\\angle\s*\{?\s*\d+\s*\}?|\{?\s*(?:[A-Za-z]|[A-Z][A-Za-z\s]{0,11}|[a-z]{3,12}|\\[a-zA-Z]+|\\text\{[^{}]*\})\s*\}?)'*"
    r"(?:\s*_\s*(?:\{[^{}]*\}|\w))?"
    r"(?:\s*\^\s*(?:\{\s*(?:\*|'+|\\(?:cdot|prime|circ|star|dagger|top)|th|st|nd|rd)\s*\}|\*|\\cdot|')"
    r"|(?<=[A-Zfgh])\s*\^\s*\{\s*(?:-1|[a-z]+|\d+(?=\s*\}\s*\())\s*\})?"
    r"(?:\s*\\circ\s*[a-z])?"
    r"(?:\s*[(\[](?:[^()\[\]]|\((?:[^()]|\([^()]*\))*\)){0,40}[)\]])?(?:\s*\\pmod\{\w+\})?"
)
#: A letter and a bracket that holds it again, x(x-1), is no function of it.
_PRODUCT = re.compile(r"([a-zA-Z])\s*\((?=.*(?<![a-zA-Z\\])\1(?![a-zA-Z(]))")
#: Left sides with a letter that _has_letters does not see.
_MULTIPLE = re.compile(r"\d*\s*\\(?:alpha|beta|gamma|delta|theta|lambda|mu|omega|sigma|rho|tau)\s*(?:\^\s*\{.+\})?")
#: Left sides that ask for a value of several unknowns: m+n, xy, a/b, AB^2, but not 2x+y. Powers are of digits.
_SEVERAL = re.compile(
    r"(?:[a-zA-Z\s+\-()\[\]{}|]|\^\s*(?:\d|\{\s*\d\s*\})"
    r"|_\s*(?:\w|\{\s*\w+\s*\})|\\(?:frac|cdot|ldots|triangle)(?![a-zA-Z]))+"
)
_CONSTANTS = (r"\pi", "e", r"\phi", r"\varphi")
#: Operators whose result stands on the right of an equation.
_EVALUATED = re.compile(
    r"\\(?:lim|sum|prod|int|max|min|sup|gcd|det|dim|deg|log|ln|sin|cos|tan|Pr|mathbb\s*\{?[EP])(?![a-z])"
)
_CONGRUENCE = re.compile(r"([^=]+?)\s*\\equiv\s*([^=]+?)\s*(\\pmod\{\w+\})")
#: A side of an equation that is arithmetic.
_ARITHMETIC = re.compile(r"(?=.*\d)(?:[\d\s.+\-/^(){}|!]|\\(?:cdot|div|frac|sqrt|pi)(?![a-zA-Z]))+")
_MATRIX = re.compile(r"\\begin\{([pbBvV]?)(?:matrix|smallmatrix)\}(.*)\\end\{\1(?:matrix|smallmatrix)\}", re.DOTALL)
_ARRAY = re.compile(r"([(\[])\s*\\begin\{(array|matrix)\}(?:\{[lcr|\s]*\})?(.*)\\end\{\2\}\s*([)\]])", re.DOTALL)
_RELATION = re.compile(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|\\ne(?![a-zA-Z])|<|>")
VARIABLE = r"(?:[a-zA-Z]|\\(?:alpha|beta|gamma|theta|lambda|mu|omega)(?![a-zA-Z]))(?:_\{?\w\}?)?"
_MEMBER = re.compile(rf"^\s*{VARIABLE}\s*\\in(?![a-zA-Z])")
_CHOICE = re.compile(r"\(?\s*(?:\\text\{\s*)?\(?\s*([A-Ja-j])\s*\)?\s*\}?\s*\)?")
_LABELLED_CHOICE = re.compile(r"(?:\(\s*([A-J])\s*\)(?:\s+|(?=[^(\s]))|([A-J])\s*[.:]\s*(?=[^=]*$))(\S.*)", re.DOTALL)
#: a capital by itself, such as the letter of another choice
_CAPITAL = re.compile(r"(?<![\w\\])[A-J](?!\w)")
_CONDITION = r"[a-zA-Z]\s*(?:(?:\\(?:in|ge|le|ne)(?![a-z])|[<>=])\s*[\w\\{}^+*-]{1,25}|\\text\{[^{}]*\})?"
#: Leaves the value alone of an answer that says more: words or the letter of a choice in front.
_alone = rules(
    (
        "text",  # one word right in front of a value, or words in front of a bracket, may be an operator
        rf"^\\text\{{(?![^{{}}]*(?:{units.CHANGED.pattern}|{units.DENIED}\}}|\bof\s*\}}|\b{APPLIED}\s*\}}(?!\s*[:=])))"
        r"(?:[^{}]*(?:\b(?:is|are)\s*|:\s*)\}|[^{}]*\}\s*[:=]"
        r"|[^{}]*(?:[^\W\d_]{2}\s+(?:\w[^{}]*)?|[\u4e00-\u9fff])\}(?!\s*[(\[]))\s*[:=]?\s*(?![_^:=])(?=[^\s,;])",
        "",
    ),
    (
        "",
        r"^(?:\\text\{\s*\(?[A-J]\s*[).:]\s*\}|\([A-J]\)|[A-J]\.(?=\s))\s*(?=[^\s,;])(?!(?:\\text\{)?\(?[A-J]\)?\}?$)",
        "",
    ),
    ("text", r"^\\text\{(?![^{}]*\b[A-J]\b[^{}]*\b[A-J]\b)[^{}]*[^{}\s][\s:]+\(?([A-J])\)?\s*\}$", r"\\text{\1}"),
)
#: A condition behind a value.
_BEHIND = re.compile(
    rf"\s*(?:,?\s*\(?(?:\\text\{{\s*(?:for|where|with|at)\b[^{{}}]*\}}|\\forall)\s*(?:{_CONDITION})?\)?"
    r"|\([a-zA-Z]=[\w-]+\)|,\s*[a-zA-Z]\s*\\in\s*\\mathbb\{[A-Z]\})$"
)
#: What a condition says that leaves less of a range, and less of a function unless it is said of all.
_FEWER = re.compile(r"\\mathbb\{[NQZ]\}|\b(?:integer|natural|whole|rational|prime|(?:odd|even)\b)", re.IGNORECASE)
_SOME = re.compile(
    rf"^(?!.*(?:\b(?:all|every|any|each)\b|\\forall)).*(?:[<>=]|\\[lg]e(?![a-z])|{_FEWER.pattern})", re.IGNORECASE
)
#: Plain words in front of a value or a letter, which are then read as in \text{}.
_PREFACE = re.compile(
    r"^(?:(?:[a-zA-Z]+\s+){0,5}(?:is|are|option|choice|answer)\s*:?\s+\(?[A-J]\)?$"
    r"|(?:[a-zA-Z]+\s+){0,5}(?:[a-zA-Z]{3,}\s*:|(?:is|are)(?=\s))\s*(?=[-\d.\\(]))",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d.,])")
_DECIMAL_COMMA = re.compile(r"-?\d+,(?:\d{1,2}|\d{4,})")
#: What is a time of day, and what may be one or a ratio, because minutes are said in fives.
_TIME, TIME = re.compile(r"\d{1,2}:0\d"), re.compile(r"\d{1,2}:[0-5][05]")


class Unreadable(Exception):
    """The text is not an answer that can be compared: empty, too deep, unbalanced."""


@dataclass(frozen=True)
class Form:
    """Says how a gold or an answer reads."""

    kind: str  # number text list tuple set interval union matrix equation relation ratio choice expression
    latex: str  # for algebra
    text: str  # for comparing as text
    parts: tuple[Form, ...] = ()  # of lists and so on, row by row for a matrix; the right side of an equation
    number: numbers.Value | None = None
    #: the left side of an equation, if it is a name; "time" of a ratio, "letter" of a choice, "comma" of a decimal
    name: str | None = None
    brackets: str = ""  # of an interval or tuple
    columns: int = 0  # of a matrix
    operators: tuple[str, ...] = ()  # of a relation, between its parts
    unit: str | None = None  # that was stripped
    percent: bool = False  # whether a percent sign was stripped
    other: Form | None = None  # another reading of the same text
    alone: Form | None = None  # the value alone, of an answer that says more
    #: the arithmetic in a chain of equations without a name in front, which must be true
    steps: tuple[Form, ...] = ()


@lru_cache(maxsize=8192)
def read(text: str) -> Form:
    """Read the form of a gold or an answer. Raises Unreadable."""
    latex = closed(normalise(text))
    if not compact(latex).strip("{}()[]$\\"):
        if compact(latex) == r"\{\}":
            return _form("set", latex)
        raise Unreadable("empty")
    if len(latex) > MAX_LENGTH:
        return _form("text", latex)
    if depth(re.sub(r"\\[{}]", "", latex)) > MAX_DEPTH or latex.count(r"\{") > MAX_PARTS:
        raise Unreadable("too deep or unbalanced")
    form, alone = _whole(latex), latex if units.doubtful(latex) else _without_words(latex)
    if alone != latex:
        with contextlib.suppress(Unreadable):
            form = replace(form, alone=_whole(alone))
    return form


def _without_words(latex: str) -> str:
    """Return the value alone, without a condition behind it unless that makes another set or function of it."""
    if "=" in latex and units.ALTERED.search(unwrapped(latex.partition("=")[0])):
        return latex
    value = _alone(_PREFACE.sub(r"\\text{\g<0>}", latex))
    match = _BEHIND.search(value)
    if match is None:
        return value
    condition, value = unwrapped(match[0]), value[: match.start()]
    last = re.sub(r"\\[a-zA-Z]+", " ", value.rpartition("=")[2]).strip()
    letters = set(re.findall(r"(?<![a-zA-Z\\])[b-zA-Z](?![a-zA-Z{])", condition))
    of_value, real = letters & set(last), letters & set("txyz")
    ranged = _RELATION.search(value) or re.fullmatch(r"[(\[].*[)\]]", last)
    if ranged and (real or not of_value) and _FEWER.search(condition):
        return latex
    return latex if of_value & real and _SOME.search(condition) else value


def _form(kind: str, latex: str, **more: object) -> Form:
    return Form(kind, latex, compact(latex), **more)  # type: ignore[arg-type]


def _whole(latex: str) -> Form:
    """Read a whole answer: one part, or a list of them."""
    groups = [_expand(group) for group in split(latex, ";")]
    if len(groups) > 1 and all(groups):
        parts = [_list(g, "tuple") if len(g) > 1 else _part(g[0]) for g in groups]
        return _form("list", latex, parts=_named(parts))
    pieces = groups[0] if groups else []
    if not pieces:
        raise Unreadable("empty")
    if len(pieces) == 1:
        return _part(pieces[0])
    whole, united = _list(pieces, "list", latex), _THOUSANDS.sub(lambda number: number[0].replace(",", ""), latex)
    if "=" in united and "," not in united:  # n = 1,234 is a number to whoever writes it so
        return replace(whole, other=_part(united))
    number = numbers.read(latex)
    if number is not None:  # 1,234 is a number, and the list of 1 and 234 to whoever writes it so
        return _form("number", latex, number=number, other=whole)
    body, unit = units.split(latex)
    if body != latex and (number := numbers.read(body)) is not None:
        return _form("number", body, number=number, unit=unit)
    if united != latex and "," not in united:  # 1,234\pi
        return replace(whole, other=_part(united))
    if _DECIMAL_COMMA.fullmatch(latex):
        return replace(whole, other=replace(scalar(latex.replace(",", ".")), name="comma"))
    return whole


def _list(pieces: list[str], kind: str, latex: str | None = None) -> Form:
    if len(pieces) > MAX_PARTS:
        raise Unreadable("too many parts")
    return _form(kind, latex or ",".join(pieces), parts=_named([_part(piece) for piece in pieces]))


def _named(parts: list[Form]) -> tuple[Form, ...]:
    """Take the name off the first part where it names the whole list: ``a = 4, -8, -10``."""
    if parts[0].kind == "equation" and parts[0].name and not any(p.kind in ("equation", "relation") for p in parts[1:]):
        parts = [parts[0].parts[0], *parts[1:]]
    return tuple(parts)


def _expand(latex: str) -> list[str]:
    """Return the parts between commas; one with a plus-minus sign becomes two."""
    parts: list[str] = []
    for piece in split(latex, ","):
        if re.search(r"\\pm(?![a-zA-Z])", piece) and not re.match(r"\s*\\\{|\s*\(", piece):
            for pm, mp in ("+-", "-+"):
                parts.append(re.sub(r"\\mp(?![a-zA-Z])", mp, re.sub(r"\\pm(?![a-zA-Z])", pm, piece)))
        elif piece.strip():
            parts.append(piece.strip())
    return [re.sub(r"^([^=]*=)?\s*\+\s*", r"\1", piece.strip()) for piece in parts]


def _part(latex: str) -> Form:
    """Read one part, which holds no comma outside brackets."""
    latex = _MEMBER.sub("", latex.strip()).strip().removeprefix("=").strip()
    left, approx, right = (side.strip() for side in latex.partition(r"\approx"))
    if approx:  # the exact side, unless that is only a name
        latex = f"{left}={right}" if right and _is_name(left) and left not in _CONSTANTS else left or right
    latex = latex.rstrip(".,;: ")
    if not latex:
        raise Unreadable("empty")
    if latex == r"\ldots":  # a list that goes on
        return _form("text", latex)
    if match := _CHOICE.fullmatch(latex):
        letter = match[1]
        if letter.isupper() or "(" in latex or "\\text" in latex:
            return Form("choice", letter, letter.upper(), name="letter" if letter == latex else None)
    match = _LABELLED_CHOICE.fullmatch(unwrapped(latex).strip())
    if match and not _CAPITAL.search(match[3]) and not units.LABEL_DOUBT.search(match[3]):
        return Form("choice", latex, match[1] or match[2])
    unions = split(latex, r"\cup")
    if len(unions) > 1:
        return _form("union", latex, parts=tuple(_part(piece) for piece in unions))
    if match := _MATRIX.fullmatch(latex) or _ARRAY.fullmatch(latex):
        form = _matrix(match, latex)
        if form is not None:
            return form
    bracketed = _bracketed(latex)
    if bracketed is not None:
        return bracketed
    if units.doubtful(latex) and plain_words(latex) is None:
        return Form("text", latex, compact(latex))  # nothing but the same words is equal to a doubt
    return _equation(latex) or _relation(latex) or scalar(latex)


def _matrix(match: re.Match[str], latex: str) -> Form | None:
    if match[1] in ("v", "V"):
        return None  # a determinant is a number
    body = match[3] if match.re is _ARRAY else match[2]
    rows = [row.split("&") for row in re.split(r"\\\\(?:\[[^\]]*\])?|\\cr(?![a-zA-Z])", body.replace(r"\hline", ""))]
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if not rows or len({len(row) for row in rows}) > 1 or len(rows) * len(rows[0]) > MAX_PARTS or "begin" in body:
        return None
    cells = tuple(_part(cell) for row in rows for cell in row)
    return _form("matrix", latex, parts=cells, columns=len(rows[0]))


_PAIRS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\langle": r"\rangle"}


def _bracketed(latex: str) -> Form | None:
    """Read a part that is one pair of brackets: tuple, interval, set, or something in needless brackets."""
    opening = next((b for b in (r"\{", r"\langle", "(", "[", "{") if latex.startswith(b)), None)
    closing = next((b for b in (r"\}", r"\rangle", ")", "]", "}") if latex.endswith(b)), None)
    if opening is None or closing is None or len(latex) < len(opening) + len(closing):
        return None
    inside = latex[len(opening) : -len(closing)]
    if not balanced(inside):
        return None
    pieces = [piece.strip() for piece in split(inside, ",")]
    if opening in "([" and closing in ")]":
        if len(pieces) == 1 and (opening, closing) == ("(", ")"):
            return _whole(inside) if inside.strip() else None
        if len(pieces) == 1 or not all(pieces):
            return None
        parts = tuple(_part(piece) for piece in pieces)
        if len(parts) > MAX_PARTS:
            raise Unreadable("too many parts")
        if (opening, closing) == ("(", ")") or (len(parts) != 2 and (opening, closing) == ("[", "]")):
            return _form("tuple", latex, parts=parts, brackets=opening + closing)
        return _form("interval", latex, parts=parts, brackets=opening + closing) if len(parts) == 2 else None
    if _PAIRS[opening] != closing:
        return None
    if opening == r"\langle":
        return _form("tuple", latex, parts=tuple(_part(piece) for piece in pieces), brackets="()")
    if opening == "{" and len(pieces) == 1:
        return _whole(inside) if inside.strip() else None
    if re.search(r"\||:|\\colon", inside) and not re.search(r"\|[^|]*\|", inside):
        return None  # set-builder notation
    pieces = _expand(inside)
    return _list(pieces, "set", latex) if pieces else _form("set", r"\emptyset")


def _equation(latex: str) -> Form | None:
    if r"\equiv" in latex and (match := _CONGRUENCE.fullmatch(latex)) and _is_name(match[1]):
        return _form("equation", latex, parts=(_whole(match[2]),), name=compact(match[1] + match[3]))
    sides = [side.strip() for side in split(latex, "=")]
    if len(sides) < 2 or not all(sides):
        return None
    if _RELATION.search(latex):
        return None
    left, last = sides[0], sides[-1]
    if len(sides) > 2 or not (_has_letters(left) or _MULTIPLE.fullmatch(left)):
        # in a chain, or in arithmetic that is worked out, the last side is the answer
        if _is_name(left):
            # steps may be rounded, in other units or percent; two whole numbers are two answers
            whole = [side for side in sides[1:] if re.fullmatch(r"-?\d+", side)]
            steps = tuple(scalar(side) for side in whole) if last in whole else ()
            return _form("equation", f"{left}={last}", parts=(replace(_whole(last), steps=steps),), name=compact(left))
        if not _has_letters(left + last):
            steps = tuple(scalar(side) for side in sides[:-1] if _ARITHMETIC.fullmatch(side))
            return replace(_whole(last), steps=steps) if "," not in left else None
    return _form("equation", latex, parts=(_whole(last),), name=compact(left) if _is_name(left) else None)


def _has_letters(latex: str) -> bool:
    """Return whether there are letters outside the names of commands."""
    return re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", latex)) is not None


def _is_name(latex: str) -> bool:
    """Return whether a text is a variable, a function of variables, a length |AB|, a ratio or a tuple of names."""
    text = latex.strip("° ")
    if _EVALUATED.match(text) and not re.search(r"[+<>,]", text):
        return True
    for opening, closing in ("()", "||"):
        if text.startswith(opening) and text.endswith(closing) and len(text) > 2:
            return all(_is_name(piece) for piece in split(text[1:-1], ","))
    if ":" in text:
        return all(_is_name(piece) for piece in text.split(":"))
    bare = re.sub(r"\\(?:text|vec)\{[^{}]*\}", "", text)
    worded = bare != text and not units.CHANGED.search(text) and re.fullmatch(r"[a-zA-Z_\s{}']*(?:\\cdot)?\s*", bare)
    if len(text) > 80 or units.doubtful(text) or not (worded or _NAME.fullmatch(text)):
        return False
    return _PRODUCT.match(text) is None and units.ALTERED.search(unwrapped(text)) is None


def several(equation: str) -> bool:
    """Return whether one "=" stands behind two or more unknowns, so that the right side may be what was asked for."""
    left, _, right = equation.partition("=")
    letters = set(re.findall(r"[a-df-hj-zA-Z](?:_\s*\{?\s*\w+)?", re.sub(r"\\[a-zA-Z]+", "", left)))
    if len(letters) < 2 or "=" in right or len(left) > 80 or not _SEVERAL.fullmatch(left):
        return False
    return units.ALTERED.search(left) is None


def _relation(latex: str) -> Form | None:
    operators = tuple(m.group() for m in _RELATION.finditer(latex))
    if not operators or "=" in latex:
        return None
    sides = [side.strip() for side in _RELATION.split(latex)]
    if not all(sides) or len(sides) > 3:
        return _form("expression", latex)
    parts = tuple(scalar(side) for side in sides)
    if any(part.unit and _FEWER.search(part.unit) for part in parts):  # "x > 2, where x is an integer"
        return _form("text", latex)
    return _form("relation", latex, parts=parts, operators=operators)


def scalar(latex: str) -> Form:
    """Read a number, ratio, words or expression; percent signs and units are taken off and kept aside."""
    if (number := numbers.read(latex)) is not None:
        return _form("number", latex, number=number)
    if latex.endswith("%"):
        body = latex.rstrip("% ")  # all signs at once, because one sign a call would be as many calls
        if latex.count("%") > 1:  # several signs make no hundredth
            return scalar(body) if body else _form("text", latex)
        return replace(scalar(body), percent=True) if body else _form("text", latex)
    if ":" in latex and "\\text" not in latex:
        parts = [piece.strip() for piece in latex.split(":")]
        if all(parts):
            name = "time" if _TIME.fullmatch(compact(latex)) else None
            return _form("ratio", latex, parts=tuple(scalar(p) for p in parts), name=name)
    text = plain_words(latex)
    if text is not None:
        return Form("text", latex, text)
    body, unit = units.split(latex)
    if unit == units.SPOKEN:  # 5 factorial is neither 5 nor worked out
        return Form("text", latex, " ".join(re.findall(r"[^\W_]+", unwrapped(latex).lower())))
    if unit is not None or body != latex:
        form = _part(body) if compact(body) != compact(latex) else _form("expression", latex)
        return replace(form, unit=unit)
    return _form("expression", latex)


def plain_words(latex: str) -> str | None:
    """Return the words, in lower case, of a part that is all \\text{} or plain words of four and more letters."""
    inner = unwrapped(latex)
    wrapped = inner != latex
    if re.search(r"[\\{}^_=+/<>|]", inner):
        return None
    rest = re.sub(r"\\text\{[^{}]*\}", "", latex)
    if wrapped and re.search(r"\d", rest):
        return None
    if not wrapped and (re.match(r"\s*-?[\d.]", inner) or not re.search(r"[a-zA-Z]{4}", inner)):
        return None
    words = [units.stem(word) for word in re.findall(r"[^\W_]+", inner.lower()) if word != "and"]
    return re.sub(r"^(?:an?|the) (?=\w\w)", "", " ".join(words)) or None
