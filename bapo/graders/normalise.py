"""One spelling for one notation: text in, LaTeX without dressing out; and its brackets. Linear in the text."""

# ruff: noqa: RUF001 (signs that look alike are what this is about)
from __future__ import annotations

import re
from functools import lru_cache
from itertools import accumulate

#: Signs and the commands that they become.
_COMMANDS = (
    "× cdot ⋅ cdot · cdot ∙ cdot π pi θ theta α alpha β beta λ lambda ω omega ∞ infty ≤ le ⩽ le ≥ ge ⩾ ge ≠ ne ± pm "
    "∓ mp ∪ cup ∩ cap ∈ in → to ≈ approx ≅ cong ∠ angle △ triangle ∅ emptyset ⟨ langle ⟩ rangle"
)
_FRACTIONS = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4)}
_TABLE = (
    str.maketrans("−–—﹣－÷∕⁄º，；：（）［］｛｝％．′\u00a0\u2009\u202f\u3000", "-----///°,;:()[]{}%.'    ")
    | str.maketrans("０１２３４５６７８９", "0123456789")
    | str.maketrans({sign: rf"\{name} " for sign, name in re.findall(r"(\S) (\S+)", _COMMANDS)})
    | str.maketrans({sign: rf"\frac{{{n}}}{{{d}}}" for sign, (n, d) in _FRACTIONS.items()} | {"ℝ": r"\mathbb{R}"})
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_INVISIBLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b-\u200f\u2060\ufeff]")

_TEXT = r"(?:text|mbox|hbox|textbf|textit|textrm|textnormal|textsf|texttt|emph|mathrm|mathbf|mathit|mathsf|mathtt|bold)"
_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"

#: (pattern, replacement), in the order in which they apply
_RULES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r",?\\ldots|,?\\dots", r"\\ldots "),
        (r"\\\$|(?<!\\)\$|\\euro(?![a-zA-Z])|[€£¥]|\\pounds(?![a-zA-Z])|(?<![a-zA-Z])USD\s*", ""),
        (r"(?<!\\)\\[()\[\]]", " "),
        (r"\{\s*,\s*\}", ","),
        (r",\s*\\!\s*(?=\d{3}(?!\d))", ","),
        (r"\\!", ""),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|strut|allowbreak|mathstrut|hfill|noindent)(?![a-zA-Z])", ""),
        (r"\\[hv]space\*?\{[^{}]*\}|\\[hv]?phantom\s*(?:\{[^{}]*\}|)", ""),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?", ""),
        (r"(?<!\\)\\(?:[,;:> ]|quad(?![a-zA-Z])|qquad(?![a-zA-Z]))|(?<!\\)~", " "),
        (r"\s\s+", " "),  # rules with several \s* in them are slow on long runs of blanks
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\lbrack(?![a-zA-Z])", "["),
        (r"\\rbrack(?![a-zA-Z])", "]"),
        (r"\\(?:[lr]vert|vert|mid)(?![a-zA-Z])", "|"),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (r"\\(?:leqslant|leq|lt=)(?![a-zA-Z])|<=|=<", r"\\le "),
        (r"\\(?:geqslant|geq)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\lt(?![a-zA-Z])|&lt;", "<"),
        (r"\\gt(?![a-zA-Z])|&gt;", ">"),
        (r"\\neq(?![a-zA-Z])|!=", r"\\ne "),
        (r"\\(?:times|ast|cdotp)(?![a-zA-Z])|\*(?!\*)", r"\\cdot "),
        (r"\*\*", "^"),
        (r"\\(?:thickapprox|simeq)(?![a-zA-Z])|\\sim(?=\s*\d)", r"\\approx "),
        (r"\\(?:varnothing|O(?![a-zA-Z]))(?![a-zA-Z])", r"\\emptyset "),
        (r"\\setminus(?![a-zA-Z])", r"\\backslash "),
        (r"\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![a-zA-Z]))|\\degree(?![a-zA-Z])|\\textdegree", "°"),
        (r"\\" + _TEXT + r"\s*\{\s*(\\?%|per\s?cent(?:age)?|pct)\s*\}|\\%", "%"),
        (r"(?<=[\d}])\s*(?:per\s?cent(?:age)?|pct)\b", "%"),
        (r"(?<=[\d}])\s*(?:\\" + _TEXT + r"\s*\{\s*degrees?\s*\}|degrees?\b)", "°"),
        (
            r"\\(?:operatorname|mathop)\*?\s*\{\s*(sin|cos|tan|cot|sec|csc|ln|log|exp|gcd|det|arcsin|arccos|arctan)\s*\}",
            r"\\\1 ",
        ),
        (r"\\operatorname\*?\s*\{([a-zA-Z]+)\}", r"\\text{\1}"),
        (r"([_^])\s*(?:\{\s*\\" + _TEXT + r"\s*\{([^{}]*)\}\s*\}|\\" + _TEXT + r"\s*\{([^{}]*)\})", r"\1{\2\3}"),
        (r"\\" + _TEXT + r"\s*\{\s*([eidx])\s*\}", r" \1 "),
        (r"\{\\(?:rm|bf|it)\s+([^{}]*)\}", r"\\text{\1}"),
        (r"\\" + _TEXT + r"\s*" + _GROUP, r"\\text{\1}"),
        (r"\^\s*\{\s*\\prime\s*\\prime\s*\}", "''"),
        (r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![a-zA-Z]))", "'"),
        (r"\\text\{\s*\}", " "),
        (r"\s\s+", " "),
        (r"\\mathbb\s*([A-Z])", r"\\mathbb{\1}"),
        (r"\\text\{([^{}]*[^{}\s])\s+(?:and|or)\s*\}", r"\\text{\1} , "),
        (r",?\s*\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}\s*,?|,?(?<![a-zA-Z\\])\s*\b(?:and|or)\b(?![a-zA-Z])\s*,?", " , "),
        (r"(?<!\\)\b(?:infinity|inf|oo)\b", r"\\infty "),
        (r"\+\s*\\infty", r"\\infty "),
        # e-notation, which math-verify reads as Euler's number
        (r"(?<![a-zA-Z\d.\\])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,5})(?![\da-zA-Z.])", r"\1\\cdot 10^{\2}"),
        # \frac12, \frac1{2}, \frac{1}2, \sqrt2, \sqrt x, x^12 stays as TeX reads it
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([a-zA-Z\d])\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\{[^{}]*\})\s*([a-zA-Z\d])", r"\\frac\1{\2}"),
        (r"\\sqrt\s*([a-zA-Z\d])", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])pi(?![a-zA-Z])", r"\\pi "),
        (r"\^\s*\(([^()]*)\)", r"^{\1}"),
        (r"\\\\(?=\s*$)", ""),
    ]
]
_BOX = re.compile(r"\\+(?:boxed|fbox)\s*\{")


@lru_cache(maxsize=8192)
def normalise(text: str) -> str:
    """Write ``text``, of any length, with one notation for one thing, still as LaTeX.

    Currency and dollar signs, spacing commands, \\left and \\right go; text wrappers become \\text{}; fractions get
    their braces; and/or become commas; e-notation becomes a power of ten; degrees become the sign °.
    """
    text = " ".join(_INVISIBLE.sub("", text.translate(_TABLE)).split())
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+", lambda m: "^{" + m.group().translate(_SUPERSCRIPTS) + "}", text)
    text = re.sub(r"[₀-₉]+", lambda m: "_{" + m.group().translate(_SUBSCRIPTS) + "}", text)
    text = re.sub(r"√\s*(?:\(([^()]*)\)|(\d+|[a-zA-Z]))", lambda m: r"\sqrt{" + (m[1] or m[2] or "") + "}", text)
    text = _unbox(text)
    if "matrix" not in text and "array" not in text and "cases" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z{}])", r"\\", text)  # backslashes that were escaped once too often
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return " ".join(text.split()).rstrip(" .,;:?\\")


def compact(latex: str) -> str:
    """Take out spaces and needless braces, for comparing as text."""
    text = re.sub(r"\s+", "", re.sub(r"(?<=\d)\s+(?=\d)", "~", latex))  # 1 2 is not 12
    return re.sub(r"([_^])\{([a-zA-Z\d])\}", r"\1\2", text)


def _unbox(text: str) -> str:
    """Take out every ``\\boxed{`` and the brace that closes it."""
    for _ in range(20):
        match = _BOX.search(text)
        if match is None:
            break
        level, end = 1, None
        for token in re.finditer(r"\\.|[{}]", text[match.end() :]):
            level += {"{": 1, "}": -1}.get(token.group(), 0)
            if level == 0:
                end = match.end() + token.start()
                break
        if end is None:
            text = text[: match.start()] + text[match.end() :]
        else:
            text = text[: match.start()] + text[match.end() : end] + text[end + 1 :]
    return text


# ------------------------------------------------------------------------------------------------ brackets


def split(latex: str, separator: str) -> list[str]:
    """Cut ``latex`` at a separator outside all brackets; it may be a command such as ``\\cup``."""
    parts, level, start, i = [], 0, 0, 0
    while i < len(latex):
        if level == 0 and latex.startswith(separator, i):
            parts.append(latex[start:i])
            i += len(separator)
            start = i
            continue
        character = latex[i]
        if character == "\\":
            word = re.match(r"\\([a-zA-Z]+|.)", latex[i:], re.DOTALL)
            command = word.group(1) if word else ""
            level += {"{": 1, "}": -1, "langle": 1, "rangle": -1, "begin": 1, "end": -1}.get(command, 0)
            i += 1 + len(command)
            continue
        level += 1 if character in "([{" else -1 if character in ")]}" else 0
        i += 1
    return [*parts, latex[start:]]


def balanced(inside: str) -> bool:
    """Return whether brackets, of whatever kinds, close in order and none is left open."""
    return depth(inside) < 10**6


def depth(text: str) -> int:
    """Return the deepest nesting of brackets of all kinds; 10**6 where they do not balance."""
    levels = [0, *accumulate(1 if bracket in "([{" else -1 for bracket in re.findall(r"[()\[\]{}]", text))]
    return max(levels) if min(levels) == levels[-1] == 0 else 10**6


def closed(text: str) -> str:
    """Close the braces that ``text`` leaves open."""
    braces = re.findall(r"(?<!\\)[{}]", re.sub(r"\\\\", "", text))
    return text + "}" * (braces.count("{") - braces.count("}"))
