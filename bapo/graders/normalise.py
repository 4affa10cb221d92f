"""One spelling for one notation: text in, LaTeX without dressing out; and its brackets. Linear in the text."""

# ruff: noqa: RUF001 (signs that look alike are what this is about)
from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate

#: Signs and the commands that they become.
_COMMANDS = (
    "× cdot ⋅ cdot · cdot ∙ cdot π pi θ theta α alpha β beta λ lambda ω omega ∞ infty ≤ le ⩽ le ≥ ge ⩾ ge ≠ ne ± pm "
    "∓ mp ∪ cup ∩ cap ∈ in → to ≈ approx ≅ cong ∠ angle △ triangle ∅ emptyset ⟨ langle ⟩ rangle"
)
_FRACTIONS = {
    sign: rf"\frac{{{top}}}{{{low}}}"
    for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
    for top, low in [unicodedata.normalize("NFKC", sign).split("⁄")]
}
_TABLE = (
    {0xFEE0 + sign: sign for sign in range(0x21, 0x7F)}  # the full-width forms of ASCII
    | str.maketrans("−–—﹣‐‑÷∕⁄º˚∘。、′‘’\u00a0\u2009\u202f\u3000", "------///°°°.,'''    ")
    | str.maketrans({sign: rf"\{name} " for sign, name in re.findall(r"(\S) (\S+)", _COMMANDS)})
    | str.maketrans(_FRACTIONS | {"ℝ": r"\mathbb{R}", "…": "...", "⋯": r"\ldots "})
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_INVISIBLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b-\u200f\u2060\ufeff]")

#: Commands and signs -> the one that is written for them; and dressing, which goes.
_RENAMED_TEXT = r"""
    \lbrace \{ \rbrace \} \lbrack [ \rbrack ] \lvert | \rvert | \vert | \Vert | \lVert | \rVert | \mid | \| |
    \dfrac \frac \tfrac \frac \cfrac \frac \dbinom \binom \tbinom \binom \leqslant \le \leq \le <= \le =< \le
    \geqslant \ge \geq \ge >= \ge \neq \ne != \ne \lt < \gt > &lt; < &gt; > \times \cdot \ast \cdot \cdotp \cdot * \cdot
    ** ^ \thickapprox \approx \simeq \approx \varnothing \emptyset \O \emptyset \setminus \backslash \Reals \mathbb{R}
    \nicefrac \frac \sfrac \frac \colon : \overarc \widehat \wideparen \widehat \degree ° \textdegree °
"""
_DRESSING = r"""
    \displaystyle \textstyle \limits \nolimits \strut \allowbreak \mathstrut \hfill \noindent \boldsymbol \bm \pmb
    \underline \ensuremath \bfseries \itshape \tiny \small \normalsize \large \Large \LARGE \huge \Huge \boxed \fbox
    \scriptstyle \enspace \enskip \notag \nonumber \uline \hl \smash \underbrace \overbrace \framebox \makebox
    \quad \qquad \checkmark \thinspace \medspace \thickspace \sf \euro \pounds \textdollar \mathdollar
"""
_RENAMED = {old: f"{new} " for old, new in re.findall(r"(\S+) (\S+)", " ".join(_RENAMED_TEXT.split()))} | dict.fromkeys(
    _DRESSING.split(), " "
)
_FONT = (
    r"\\(?:text(?:bf|it|rm|normal|sf|tt|sc|sl|up|md)?|[mh]box|emph|math(?:rm|bf|it|sf|tt|normal)|bold|si"
    r"|operatorname\*?|rm|bf|it|sf|tt)"
)
_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_FUNCTIONS = r"(?:arc)?(?:sin|cos|tan)|cot|csc|ln|log"
_CALLED = r"sec|exp|min|max|gcd|lcm|det"  #: also words or units: functions only before a bracket
_GREEK = r"alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|sigma|rho|tau|pi"
#: what a command without braces takes
_TOKEN = rf"[a-zA-Z\d]|\\(?:{_GREEK})(?![a-zA-Z])"
#: What makes a text wrapper hold more than words: numbers (not the powers of units), relations, operators.
_FORMULA = re.compile(r"(?<![\^\d])(?<!\^-)\d|[=<>+*\\|]")
_WORD = r"(?<![\\^\w])[^\W\d_](?:\.?[^\W\d_])+"
#: The names of functions in words; a value right behind one is its argument.
APPLIED = (
    rf"(?i:{_FUNCTIONS}|{_CALLED}|{_GREEK}|(?:arc|a)?(?:sin|cos|tan|cot|sec|csc)h?|[lb]g|sqrt|cbrt|sgn|sign(?:um)?|abs|floor"
    r"|ceil(?:ing)?|round|arg|conj|re|im|zeta|psi)"
)
_PHRASE = re.compile(
    rf"(?!(?:{_FUNCTIONS}|{_CALLED}|{_GREEK}|sqrt)(?![a-z])){_WORD}\.?(?:[\s/'-]*(?<!\w)[^\W\d_]+(?:\^-?\d)?(?!\w)\.?)*\s*"
)
_TIME_OF_DAY = (
    r"(\\text\{\s*)?(?<!\d)(\d{1,2})\s*:\s*(\d\d)\s*(\\text\{\s*)?([aApP])\.?\s?[mM](?![a-zA-Z])\.?"
    r"(?(1)\s*\})(?(4)\s*\})"
)
_JOIN = re.compile(r"\b(?:and|or)\b")


def _text(match: re.Match[str]) -> str:
    """Write a font's or a text's group with only its words in \\text{}: "13 cm" is 13 and a unit, "A or D" a list."""
    inside = match[1]
    if re.fullmatch(_FUNCTIONS, inside.strip()):
        return rf"\{inside.strip()} "
    rest = _JOIN.sub(",", inside)
    listed = ("," in rest.strip(" ,") or rest.count("(") > 1) and not re.search(_WORD, rest)
    if not listed and not _FORMULA.search(inside):
        return rf"\text{{{inside}}}"
    return _PHRASE.sub(r"\\text{\g<0>}", inside)


def _money(match: re.Match[str]) -> str:
    """Take out a sign of money, but keep 5$6 from being a number."""
    text, start, end = match.string, *match.span()
    return " " if text[start - 1 : start].isdigit() and text[end : end + 1].isdigit() else ""


def _lines(match: re.Match[str]) -> str:
    """Write aligned lines as one: those that begin with "=" go on, others are the parts of a list."""
    return re.sub(r"\\\\", " , ", re.sub(r"\\\\\s*&?\s*=", " =", match[1])).replace("&", "")


def rules(*table: tuple[str, str, str | Callable[[re.Match[str]], str]]) -> Callable[[str], str]:
    """Return a function that replaces in a text, one rule after the other.

    table: rows of a string, a pattern and a replacement. Every text that the pattern matches holds the string, and
    looking for the string is faster.
    """
    compiled = [(holds, re.compile(pattern), replacement) for holds, pattern, replacement in table]

    def respell(text: str) -> str:
        for holds, pattern, replacement in compiled:
            if holds in text:
                text = pattern.sub(replacement, text)
        return text

    return respell


_respell = rules(
    ("", r"^(\*\*|[*`])(.*[^*`])\1$", r"\2"),
    ("~~", r"(?<![\w})\s~])~~(?=[^\s~])([^~]*[^\s~])~~|^~~(?=[^\s~])([^~]*[^\s~])~~", r"\\cancel{\1\2}"),
    ("‰", r"(\d+(?:\.\d+)?)\s*‰", r"\\frac{\1}{1000}"),
    ("align", r"\\begin\{(?:aligned|align\*?)\}((?:(?!\\begin).)*?)\\end\{(?:aligned|align\*?)\}", _lines),
    ("{cases}", r"\\begin\{cases\}((?:(?!\\begin)[^&])*?)\\end\{cases\}", _lines),
    ("\\tag", r"\\tag\*?\s*\{[^{}]*\}", ""),
    ("choose", r"\{\s*(\w+)\s*\\choose\s*(\w+)\s*\}", r"\\binom{\1}{\2}"),
    ("log", r"\\log\s*_\s*(?:e(?![a-zA-Z])|\{\s*e\s*\})", r"\\ln "),
    ("\\", r"^[\s$]*\\(?:therefore|implies|Rightarrow|Longrightarrow|to)(?![a-zA-Z])", ""),
    ("dots", r"\\[lc]?dots[bcmio]?(?![a-zA-Z])", r"\\ldots "),
    ("...", r"(\.\d+)\.{3,}|(?<=[,+])\s*\.{3,}|\.{3,}(?=[\s,]*[\w+])", lambda dots: dots[1] or r"\ldots "),
    ("", r"\\\$|(?<!\\)\$|[€£¥]|(?<![a-zA-Z])USD\s*", _money),
    ("box", r"\\+(?:boxed|fbox)\s*" + _GROUP, r"\1"),
    ("\\", r"(?<!\\)\\[()\[\]]", " "),
    (r"\!", r",\s*\\!\s*(?=\d{3}(?!\d))", ","),
    (r"\!", r"\\!", ""),
    ("\\", r"\\[hv]space\*?\{[^{}]*\}|\\[hv]?phantom\s*(?:\{[^{}]*\}|)", ""),
    ("\\", r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?", ""),
    ("{\\", r"\{\\(?:rm|bf|it|bfseries|itshape)\s+([^{}]*)\}", r"\\text{\1}"),
    ("color", r"\\(?:(?:text)?color|colorbox)\s*\{[^{}]*\}", ""),
    ("\\", r"\\(?:rm|bf|it)(?=\s)", ""),
    ("", r"(?<!\\)\\[,;:> ]|(?<!\\)~", " "),
    ("  ", r"\s\s+", " "),  # rules with several \s* in them are slow on long runs of blanks
    ("**", r"\*\*\s*(\d*\.\d+)", r"^{\1}"),
    ("", r"\\[a-zA-Z]+|(?<!\\)\\\||&[lg]t;|[<>!]=|=<|\*\*?", lambda sign: _RENAMED.get(sign[0], sign[0])),
    ("not", r"\\not\s*=", r"\\ne "),
    ("not", r"\\not(?![a-zA-Z])", r"\\text{ not }"),
    ("{", rf"(?:{_FONT}\s*)?\{{\s*([.,/:])\s*\}}", r"\1"),
    ("sim", r"(?<![\d\s])\s*\\sim(?=\s*\d)", r"\\approx"),
    ("^", r"(?:\{\s*\})?\s*\^\s*(?:\{\s*(?:\{\s*\\circ\s*\}|\\circ|°)\s*\}|\\circ(?![a-zA-Z])|°)", "°"),
    ("°", r"(?<=\d)\s*\{\s*°\s*\}", "°"),
    ("op", rf"\\(?:operatorname|mathop)\*?\s*\{{\s*({_FUNCTIONS}|{_CALLED})\s*\}}", r"\\\1 "),
    ("^{-", r"(?<=[a-zA-Z])\^\{(-\d)\}(?=[^{}$]*\})", r"^\1"),  # of units in a group; others get their braces again
    ("{", _FONT + r"\s*(?=\{[^{}]*(?<!\^)\{)", ""),
    ("{", _FONT + r"\s*" + _GROUP, _text),
    ("\\", r"\\text\{\s*\\?(?:%|per\s?cent(?:age)?|pct)\s*\}|\\%", "%"),
    ("p", r"(?<=[\d}])\s*(?:per\s?cent(?:age)?|pct)\b", "%"),
    (")", r"(?<=[\d}])\s+\(\s*([a-z]{3,}(?:\s[a-z]{3,}){0,2})\s*\)$", r"\\text{ \1}"),
    ("", r"(?<=[\d}])\s*(?:\\text\{\s*degrees?\s*\}|degrees?\b|度)", "°"),
    ("text", r"\\text\{\s*(?:negative|minus)\s*\}\s*(?=[\d\\])", "-"),
    ("text", r"([_^])\s*(?:\{\s*\\text\{([^{}]*)\}\s*\}|\\text\{([^{}]*)\})", r"\1{\2\3}"),
    ("^", r"(?<=[\d)])\s*\^\s*(?:o(?![a-zA-Z])|\{\s*o\s*\})", "°"),
    ("/", r"\^\s*\{?(\d+)\}?\s*/\s*_\s*\{?(\d+)\}?", r"\\frac{\1}{\2}"),
    ("text", r"\\frac\s*\{\s*\\text\{([^{}]*)\}\s*\}\s*\{\s*\\text\{([^{}]*)\}\s*\}", r"\\text{\1/\2}"),
    ("frown", r"\\(?:overset|stackrel)\s*\{\s*\\frown\s*\}", r"\\widehat"),
    (")", r"^(\\text\{\s*)?([A-J])\s*\)", r"\1(\2)"),
    ("text", r"\\text\{\s*([eidx])\s*\}", r" \1 "),
    (":", _TIME_OF_DAY, lambda time: rf"{time[2]}:{time[3]}\text{{ {time[5].upper()}M}}"),
    ("U", r"(?<=[)\]])\s*(?:\\text\{\s*U\s*\}|U)\s*(?=[(\[\]])", r"\\cup "),
    ("prime", r"\^\s*\{\s*\\prime\s*\\prime\s*\}", "''"),
    ("prime", r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![a-zA-Z]))", "'"),
    ("text", r"\\text\{\s*\}", " "),
    ("  ", r"\s\s+", " "),
    ("text", r"\\text\{([^{}]*[^{}\s])\s+(?:and|or)\s*\}", r"\\text{\1} , "),
    ("text", r",?\s*\\text\{\s*,?\s*(?:and|or|或)\s*,?\s*\}\s*,?", " , "),
)
#: for what is not in \text{}
_respell_formula = rules(
    ("", r",?(?<![a-zA-Z\\])\s*\b(?:and|or)\b(?![a-zA-Z])\s*,?|或", " , "),
    ("", r"([\u4e00-\u9fff]+)", r"\\text{\1}"),
    ("", r"(?<!\\)\b(?:infinity|inf|oo)\b", r"\\infty "),
    ("infty", r"\+\s*\\infty", r"\\infty "),
    # math-verify reads e-notation as Euler's number
    ("", r"(?<![a-zA-Z\d.\\])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,5})(?![\da-zA-Z.])", r"\1\\cdot 10^{\2}"),
    # \frac12, \frac1{2}, \frac{1}2, \sqrt2, \sqrt x, x^12 stays as TeX reads it
    ("\\", rf"\\(frac|sqrt|dot|hat|vec|bar|mathbb)\s*({_TOKEN})", r"\\\1{\2}"),
    ("frac", rf"(\\frac\s*\{{[^{{}}]*\}})\s*({_TOKEN})", r"\1{\2}"),
    ("sqrt", r"\\sqrt\s*(\\frac\s*\{[^{}]*\}\s*\{[^{}]*\})", r"\\sqrt{\1}"),
    ("sqrt", rf"(\\sqrt\s*\[[^\[\]]*\])\s*({_TOKEN})", r"\1{\2}"),
    (
        ",",
        r"((?:frac|sqrt|\})\s*\{\s*)(\d{1,3}(?:,\d{3})+)(?=\s*\})",
        lambda number: number[1] + number[2].replace(",", ""),
    ),
    # programs write roots and powers so
    ("sqrt", r"(?:\\|(?<![\\a-zA-Z]))sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    ("cbrt", r"(?<![\\a-zA-Z])cbrt\s*\(([^()]*)\)", r"\\sqrt[3]{\1}"),
    ("exp", r"\\?(?<![a-zA-Z])exp\s*\(([^()]*)\)", r"e^{\1}"),
    (
        "",
        rf"(?<![\\a-zA-Z])({_GREEK}|(?:{_FUNCTIONS})(?=\s*[\d(^\\]|\s+[a-zA-Z]\b)|(?:{_CALLED})(?=\s*\())(?![a-zA-Z])",
        r"\\\1 ",
    ),
    ("^", r"\^\s*(-\d+)", r"^{\1}"),
    ("^", r"\^\s*\(([^()]*)\)", r"^{\1}"),
    ("-1", r"\\(sin|cos|tan)\s*\^\s*\{\s*-1\s*\}", r"\\arc\1 "),
    ("C", r"(?:\{\s*\}|(?<![\w}]))_\s*\{?(\d+)\}?\s*C\s*_\s*\{?(\d+)\}?", r"\\binom{\1}{\2}"),
    ("mod", r"(\(\s*)?\\?(?<![a-zA-Z])[pb]?mod(?![a-zA-Z])\s*(?:\{\s*(\w+)\s*\}|(\w+))(?(1)\s*\))", r"\\pmod{\2\3}"),
    ("\\\\", r"\\\\(?=\s*$)", ""),
)
_respell_whole = rules(
    ("", r"^\s*(?:\\mathbb\{R\}|\\text\{\s*all reals?(?: numbers)?\s*\})\s*$", r"(-\\infty,\\infty)"),
    ("R}", r"^\s*\\mathbb\{R\}\s*[\^_]\{?\+\}?\s*$", r"(0,\\infty)"),
    (
        r"\ne",
        r"\\\{\s*([a-zA-Z])(?:\s*\\in\s*\\mathbb\{R\})?\s*[|:]\s*\1\s*\\ne\s*([^,{}\\]+)\\\}",
        r"\\mathbb{R}-\\{\2\\}",
    ),
    ("R}", r"\\mathbb\{R\}\s*(?:\\backslash|-)\s*\\\{([^,{}\\]+)\\\}", r"(-\\infty,\1)\\cup (\1,\\infty)"),
    (
        r"\}",
        r"\\\{\s*[a-zA-Z](?:\s*\\in\s*\\mathbb\{R\})?\s*[|:]\s*([^{}|]*(?:[<>]|\\[lg]e(?![a-z]))[^{}|]*)\\\}",
        r"\1",
    ),
    ("", r"(?<=\d)\s*(?:\^\s*\{\s*)?(?:st|nd|rd|th)\s*\}?$", ""),
    ("empty", r"^\s*\\emptyset\s*$", r"\\{\\}"),
    ("_", r"^(\d+)\s*_\s*(?:\{\s*10\s*\}|10)$", r"\1"),
    ("base", r"\(?\s*(?:\\text\{)?\s*(?:in )?base(?:\s*\})?\s*(\d+)\s*[)}]*$", r"_{\1}"),
    ("_", r"^[({]*(?:\\overline\s*)?[({\s]*0*([0-9A-Z]*\d[0-9A-Z]*)[)}\s]*_\s*[({]*(\d+)[)}]*$", r"\1_{\2}"),
    ("]", r"(?:^|(?<=[\s=]))\]\s*([^\s,\[\](){}|][^\[\](){}|]*,[^\[\](){}|]*)(?=[\[\]])", r"(\1"),
    ("[", r"(?<=[\[(])([^\[\](){}|]*,[^\[\](){}|]*)\[(?=\s*(?:$|\\))", r"\1)"),
)


@lru_cache(maxsize=8192)
def normalise(text: str) -> str:
    """Write ``text``, of any length, with one notation for one thing, still as LaTeX.

    Currency and dollar signs, spacing commands, \\left and \\right go; text wrappers become \\text{}; fractions get
    their braces; and/or become commas; e-notation becomes a power of ten; degrees become the sign °.
    """
    text = " ".join(_INVISIBLE.sub("", text.translate(_TABLE)).split())
    text = re.sub(r"(?<=[\d\s}])((?:[cmk]?m|in|ft|yd|mi)[²³])(?![^{}]*\})", r"\\text{\1}", text)
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+", lambda m: "^{" + m.group().translate(_SUPERSCRIPTS) + "}", text)
    text = re.sub(r"\^\{([\dn])\}", r"^\1", text)
    text = re.sub(r"[₀-₉]+", lambda m: "_{" + m.group().translate(_SUBSCRIPTS) + "}", text)
    text = re.sub(r"√\s*(?:\(([^()]*)\)|(\d+|[a-zA-Z]))", lambda m: r"\sqrt{" + (m[1] or m[2] or "") + "}", text)
    if "matrix" not in text and "array" not in text and "cases" not in text and "align" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z{}])", r"\\", text)  # backslashes that were escaped once too often
    parts = re.split(r"(\\text\{[^{}]*\})", _respell(text))
    parts[::2] = map(_respell_formula, parts[::2])
    return _respell_whole(" ".join("".join(parts).split()).rstrip(" .,;:\\"))


def compact(latex: str) -> str:
    """Take out spaces and needless braces, for comparing as text."""
    text = re.sub(r"\s+", "", re.sub(r"(?<=\d)\s+(?=\d)", "~", latex))  # 1 2 is not 12
    return re.sub(r"([_^])\{([a-zA-Z\d])\}", r"\1\2", text)


def unwrapped(latex: str) -> str:
    """Return the text with the words of each \\text{} bare, between spaces."""
    return re.sub(r"\\text\{([^{}]*)\}", r" \1 ", latex)


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
