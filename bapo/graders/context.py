r"""What touches a box: ``-\boxed{5}``, ``\frac{1}{\boxed{5}}`` and ``\boxed{5}\cdot 10^3`` do not answer 5.

Only signs, digits and commands right beside the box are read, without blanks where these could be a list or a dash:
a right answer that is refused harms more than a wrong one that no policy writes.
"""

from __future__ import annotations

import re

LOOK = 60  #: This much before and behind the box is looked at, however long the response is.
_BEFORE = re.compile(
    r"(?:[-\u221a\u2260\u2264\u2265\u00b1\u00d7\u00f7\u00b7\u2212]|[\d})]/|(?:^|[\s$(])\d+"
    r"|(?:(?:^|[\s$(])[a-zA-Z]|[\d})])\s*[<>]\s*"
    r"|\\(?:not\s*=|(?:neq?|leq?|geq?|lt|gt|pm|sqrt|cdot|times)(?![a-zA-Z]))\s*"
    r"|\\(?:pi|log|ln|sin|cos|tan)(?![a-zA-Z])[^\S\n]*"
    r"|=\s*[-\u2212]\s*|\d[+*]|(?:\bnot|n['\u2019]t)\s[$*(\[{\s]*)\Z"
)
_AFTER = re.compile(
    r"\d|\^(?!\s*\{?\s*(?:\\circ|\\prime|\\degree|\u00b0|o\b|\\text|\\mathrm|st\b|nd\b|rd\b|th\b))|[-+*/\u00d7\u00f7\u00b7\u2212]\d"
    r"|\s*(?:\\(?:cdot|times|div|pm)(?![a-zA-Z])\s*(?:\d|\\frac)"
    r"|(?:\\(?:cdot|times|div|pm)\s*)?\\(?:pi|sqrt)(?![a-zA-Z]))"
    r"|[xyn](?![a-zA-Z])"
    r"|[\s$*\\)\]]*(?:text\s?\{\s*)?(?:(?:thousand|million|billion|trillion)\b"
    r"|(?:is|was)\s+(?:wrong|incorrect|rejected|not\s+(?:right|correct|the\s+answer))\b|\((?:wrong|incorrect)\))"
)
_OPERAND = re.compile(r"(?:\\(?:[dtc]?frac(?:\s*\{[^{}]*\})?|sqrt(?:\s*\[[^\[\]]*\])?)|\^)\s*\Z")


def changes(text: str, start: int, end: int) -> bool:
    """Return whether what touches the box ``text[start:end]`` makes another value of it, or says that it is wrong."""
    before = text[max(0, start - LOOK) : start]
    if text.startswith("\\\\", start):  # the end of a line of a formula stands between
        before = ""
    return _BEFORE.search(before) is not None or _AFTER.match(text, end, end + LOOK) is not None


def operand(text: str, brace: int) -> bool:
    """Return whether an open brace makes another value of what it holds: it is a root's, a fraction's or a power's."""
    return _OPERAND.search(text, max(0, brace - LOOK), brace) is not None
