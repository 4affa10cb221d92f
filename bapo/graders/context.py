r"""What stands beside a box: ``-\boxed{5}``, ``\boxed{5} million`` and ``\boxed{5} is wrong`` do not answer 5.

Only what touches the box is read, and the words of its sentence that deny it: the rest is the reasoning.
"""

# ruff: noqa: RUF001 (signs that look alike are what this is about)
from __future__ import annotations

import re

from bapo.graders import units

#: This much before and behind the box is looked at, however long the response is.
LOOK = 100
TAIL = 24  #: the longest dressing that is taken off it at once

_WRAPPERS = (
    r"text\w*|math(?:bf|rm|it|sf|tt|normal)|[mhf]box|boxed|emph|bold\w*|bm|pmb|under(?:line|brace)|uline|ensuremath"
)
_SIZES = r"\w*style|tiny|small|normalsize|[lL]arge|LARGE|[hH]uge|bf(?:series)?|it(?:shape)?|rm|sf|tt|centering|noindent"
#: Commands whose braces leave the value as it is.
_DRESSING = re.compile(
    rf"{_WRAPPERS}|{_SIZES}|(?:f|text)?color(?:box)?|center(?:line)?|framebox|operatorname|mathop|highlight|hl"
)
#: Commands in front of a box that leave it as it is: dressing, relations like "=", arrows, spaces.
_LEADING = re.compile(
    rf"{_DRESSING.pattern}|approx|simeq|sim|cong|equiv|in|to|therefore|because|implies|iff|so|leadsto|mapsto|colon|l?dots"
    r"|[a-zA-Z]*arrow|q?quad|left|[bB]igg?[lr]?|[hv]space|[hv]fill|item|newline|begin|end|par|tag|label|hline|sqsubset"
    r"|AA|degree|circ|n"  # \\n: the end of a line that was escaped once too often
)
_BLANK = r"(?:\s|~(?!~)|\\[,;:> ]|\\!|&|\\q?quad(?![a-zA-Z])|\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\.?)"
_LEFT = re.compile(rf"(?:{_BLANK}|(?<!\\)\{{|\\(?:{_SIZES})(?![a-zA-Z]))+$")
_RIGHT = re.compile(rf"(?:{_BLANK}|[{{}}])*")
_OPENED = re.compile(rf"(?:{_BLANK}|[({{*$\[]|\\[(\[]|\\(?:{_WRAPPERS})\s*\{{)+$")
_CLOSED = re.compile(rf"(?:{_BLANK}|[{{}}$*)\]]|\\[)\]]|\\(?:{_WRAPPERS})\s*\{{)*")
_END = re.compile(r"\$|\\[\])]|\n\s*\n|\\end\{")
_COMMAND = re.compile(r"\\([a-zA-Z]+)\*?$")
#: Signs in front of the box, and the bold type, list, dash, arrow, tag or sign of a positive number that explain them.
_SIGN_BEFORE = re.compile(r"(?<=[-+*/^_<>√±∓×÷·⋅≠≤≥¬])$|(?<=~~)$|(?:\\not|(?<![\w)}])!)\s*=$")
_NO_SIGN = re.compile(
    r"(?:^|[^\W\d_]{3}\W?)\s*[-–—]\s+$|(?:^|[=&])\s*\+\s*$|^\s*[-*>+]\s+$|[-=]>\s*$|<[/|]?\w[\w|]*>\s*$"
    r"|(?:^|[\s(:.>]|[^\W\d_]{2})\*+$|\S\*\*+\s+$|[^\s\d*]\*\s+$|_\s+$"
)
_OPERAND = r"[+-]?\s*(?:\.?\d|[(|√π{]|\\(?!(?:text|mathrm|mbox)\b)[a-zA-Z]|(?![aAI]\s)[a-zA-Z](?![\w']))"
_SIGN_AFTER = re.compile(
    rf"(?!<[/|]?\w[\w|]*>)[-+*×÷·⋅±∓<>≤≥≠]+\s*{_OPERAND}|[eE][+-]?\d|/\s*[+-]?\s*(?:\.?\d|[(√π{{]|\\[dtc]?(?:frac|sqrt|pi)|(?P<per>[a-zA-Z])(?![a-zA-Z]))"
    r"|\^(?!\s*\{?\s*(?:\\circ|\\prime|\\degree|°|o\b|\\text|\\mathrm|st\b|nd\b|rd\b|th\b))|_[\d{]|~~|,\}?\s*\d{3}|\.\d"
    r"|\\(?:times|div|pm|mp|[dtc]?frac(?!\s*\{\s*\\(?:text|mathrm))|sqrt|pi|neq?|l(?:t|eq?)|g(?:t|eq?)|over|choose|[dt]?binom|sin|cos|tan|ln|log|exp"
    r"|infty|e?ta|alpha|beta|gamma|theta|lambda|cdot(?!\s*\\(?:text|mathrm)))(?![a-zA-Z])"
)
_IN_FORMULA_AFTER = re.compile(r"[-+*!\d]")
_FACTOR = re.compile(r"\((?![^()]*[^\W\d_]{2})")
_LETTER = re.compile(r"[a-zA-Z](?![\w'’])")
_WORD = re.compile(r"[^\W\d_][\w'’-]*")
#: The word in front of a box, or the one before "of".
_DENIED_BEFORE = re.compile(
    rf"(?:{units.CHANGED.pattern}|\b(?:(?:can)?not|never|negative|than|neither|nor)|n['’]t)(?:\s+(?:be|equal(?:\s+to)?|of)(?:\s+the)?)?$",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"[\s,:;(\[–—-]*(?:(?:which|that|this|it)\s+)?(?:(?:is|was|are|were|seems?|looks?)\s+(?:\w+ly\s+)?)?"
    rf"(?:{units.DENIES.pattern}|[✗✘❌]|(?:my|a|the)\s+(?:first\s+)?guess\b"
    r"|(?:is|was|are|were|does|do|can)(?:\s+not|n['’]t)\s+(?:the\s+)?(?:right|correct|true|valid|possible|answer|work|it)\b)"
    r"|\s*\?(?!\s*[yY]es)|\s*or\s+(?:more|less|so|fewer|higher|lower|above|below)\b",
    re.IGNORECASE,
)
#: A number of its own behind the box, or in front of it: another answer.
_VALUE = r"(-?(?:\d+(?:[.,/]\d+)*|\\[dt]?frac\s*\{\d+\}\s*\{\d+\}))"
_NUMBER = rf"[$\\({{\s]*?{_VALUE}(?![\w^\\/(%°]|\s*[-+*=])"
_ALSO_AFTER = re.compile(
    rf"(?:\s*[,;|/]|\s*,?\s*(?:\\text\s*\{{)?\s*(?:or|and)\b[\s}}]*){_NUMBER}[\s$\\)\]}}]*(?:$|[.;\n])"
)
_ALSO_BEFORE = re.compile(rf"(?<![\w.,=+*^-]){_VALUE}[\s$\\)\]]*,?\s*(?:\\text\s*\{{\s*)?or[\s}}$(\\[{{]*$")


def changes(text: str, start: int, end: int) -> bool:
    """Return whether what touches the box ``text[start:end]`` makes something else of it, or denies it."""
    before, after = text[max(0, start - LOOK) : start], text[end : end + LOOK].partition("\n\n")[0]
    formula = _in_formula(text[max(0, start - 1000) : start])
    line = before.rpartition("\n\n" if formula else "\n")[2]
    left, right = _without(_LEFT, line), after if formula else after.partition("\n")[0]
    touching, bracket = len(left) == len(line), False
    next_to = right[_RIGHT.match(right).end() :]  # type: ignore[union-attr]
    touched = len(next_to) == len(right)
    while left.endswith("(") and next_to.startswith(")"):
        line, left, bracket = left[:-1], _without(_LEFT, left[:-1]), True
        touching, right = len(left) == len(line), next_to[1:]
        next_to = right[_RIGHT.match(right).end() :]  # type: ignore[union-attr]
    if _led(left, formula, touching, bracket, line):
        return True
    words = _without(_OPENED, before)
    if words[-1:].isalpha() and _denied_before(words[-40:].rsplit(None, 4)[-4:]):
        return True
    if match := _SIGN_AFTER.match(next_to):
        return not match["per"] or units.name(match["per"]).startswith("?")
    if (formula and _END.search(next_to) and _IN_FORMULA_AFTER.match(next_to)) or (touched and next_to[:1].isdigit()):
        return True
    if re.match(r"!(?!!!)", next_to) and not re.search(r"[^\W\d_]{2}", words):
        return True
    if (formula or touched) and _FACTOR.match(next_to):
        return True
    if (formula or touched) and (letter := _LETTER.match(next_to)):
        return units.name(letter[0]).startswith("?")
    rest = after if formula else after.partition("\n")[0]
    rest = rest[_CLOSED.match(rest).end() :]  # type: ignore[union-attr]
    word = _WORD.match(rest)
    return denied(rest) or (word is not None and units.rescales(word[0]))


def denied(after: str) -> bool:
    """Return whether the words behind an answer say that it is wrong: "is wrong", "(incorrect)", "?"."""
    return _DENIED_AFTER.match(after) is not None


def _denied_before(words: list[str]) -> bool:
    if words[-1].lower() in ("of", "the", "be", "to", "equal"):  # "half of the", "cannot be"
        return _DENIED_BEFORE.search(" ".join(words)) is not None
    return _DENIED_BEFORE.match(words[-1]) is not None or words[-1].lower().endswith(("n't", "n’t"))


def offered(text: str, start: int, end: int) -> tuple[list[str], list[str]]:
    """Return the numbers that are offered before and behind a box as other answers: "6 or", "or 6", ", 6"."""
    before = text[max(0, start - LOOK) : start]
    ahead = _ALSO_BEFORE.search(before) if before.rstrip("$({[ ")[-2:] == "or" or "or}" in before else None
    after = text[end : end + LOOK]
    behind = _ALSO_AFTER.match(after.lstrip("$)]} "))
    return [ahead[1]] if ahead else [], [behind[1]] if behind else []


def _without(dressing: re.Pattern[str], text: str) -> str:
    """Take dressing off the end of a text. It is looked for in a few characters, which is much faster."""
    text = text.rstrip()
    return text[:-TAIL] + dressing.sub("", text[-TAIL:])


def _in_formula(before: str) -> bool:
    r"""Return whether a text ends inside $...$, \(...\), \[...\] or lines that are aligned."""
    paragraph = before.rpartition("\n\n")[2].replace(r"\$", "")
    dollars = paragraph.count("$") - paragraph.count("$$")
    opened = max(paragraph.rfind(r"\["), paragraph.rfind(r"\("), paragraph.rfind(r"\begin{a"))
    closed = max(paragraph.rfind(r"\]"), paragraph.rfind(r"\)"), paragraph.rfind(r"\end{a"))
    return dollars % 2 == 1 or opened > closed


def _led(left: str, formula: bool, touching: bool, bracket: bool, line: str) -> bool:
    """Return whether the sign, number, letter or command that ``left`` ends with belongs to the box.

    bracket: the box stands in round brackets; line: ``left`` and the blanks behind it.
    """
    end = left[-TAIL:]
    if not end or end[-1] in "$:;,":  # the ends of most texts, for speed
        return False
    if _SIGN_BEFORE.search(end):
        return _NO_SIGN.search(line) is None
    if command := _COMMAND.search(end):
        return _LEADING.fullmatch(command[1]) is None
    if left.endswith("}"):
        owner = _owner(left)
        return owner in ("^", "_") or (bool(owner) and _LEADING.fullmatch(owner) is None)
    if touching and re.search(r"\d\.$", end) and not re.fullmatch(r"\s*[1-9]\d?\.", left):
        return True
    if touching and bracket and end[-1].isalnum():
        return True
    if left.endswith(")") and re.search(r"(?<!\w)\([A-J]\)$", end):  # the letter of a choice
        return False
    if end[-1] in ")|":
        return formula
    variable = end[-1].isalpha() and not (end[-2:-1].isalpha() or end[-2:-1] in ("'", "’"))
    return (formula or touching) and (variable or end[-1].isdigit())


def _owner(text: str) -> str:
    """Return the command, or the sign ^ or _, whose braces end ``text``; "" where the braces have none."""
    for _ in range(3):
        text = re.sub(r"\[[^\[\]]*\]$", "", text.rstrip())
        if not text.endswith("}"):
            break
        level, at = 0, len(text)
        while at and (at == len(text) or level):
            at -= 1
            level += (text[at] == "}") - (text[at] == "{")
        text = text[:at]
    command = _COMMAND.search(text)
    return command[1] if command else text[-1:] if text[-1:] in "^_" else ""


def operand(text: str, brace: int) -> bool:
    """Return whether an open brace makes something else of what it holds: it is a root's, a fraction's, a power's."""
    owner = _owner(text[max(0, brace - LOOK) : brace])
    return owner in ("^", "_") or (bool(owner) and _DRESSING.fullmatch(owner) is None)
