"""Units at the end of an answer, so that 10 cm and 10 m, or 6 AM and 6 PM, are not the same answer.

Known units have one name each; others are known by their words. Words that make another number are no units:
5 million is 5000000, and 5 factorial is not 5.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from bapo.graders import numbers
from bapo.graders.normalise import unwrapped

#: name: the words for it
_UNITS_TEXT = """
    cm: cm centimeter centimetre; mm: mm millimeter millimetre; m: meter metre; km: km kilometer kilometre;
    in: in inch inche; ft: ft foot feet; yd: yd yard; mi: mi mile; kg: kg kilogram; g: gram; mg: mg milligram;
    lb: lb lbs pound; oz: oz ounce; s: sec second; ms: ms millisecond; min: min minute; h: hr hour; day: day;
    week: week; month: month; year: yr year; degree: deg degree °; rad: rad radian; dollar: dollar buck;
    cent: cent; h^-1 mi: mph; h^-1 km: km/h kmh kmph; m s^-1: m/s; L: liter litre; mL: ml mL milliliter millilitre;
    Hz: Hz hz; kHz: kHz; C: celsius; F: fahrenheit; N: newton; J: joule; kJ: kJ; W: watt; V: volt; K: kelvin;
    Pa: pascal; mol: mol mole; unit: unit; acre: acre; gallon: gal gallon; percent: percent
"""
_NAMES = dict(entry.strip().split(": ") for entry in _UNITS_TEXT.split(";"))
_LETTERS = "m s g h N J W V K Pa in L A C F"
_SHORT = {unit: unit for unit in _LETTERS.split()} | {"u": "unit", "°C": "C", "°F": "F"}
_KNOWN = {word: unit for unit, words in _NAMES.items() for word in words.split()}
#: Words that stand alone after a number without \text{}. Single letters do not: they may be variables.
_PLAIN = "|".join(
    sorted((re.escape(f"{w}{s}") for w in _KNOWN for s in ("", "s", "es") if w.isascii()), key=len, reverse=True)
)
TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_POWER = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d))?"
# a blank between two units must match in one way only: with two, a failing match takes exponential time
_TAIL = re.compile(
    r"(?P<body>.*?[\d)}\]a-zA-Z%°!])\s*"
    rf"(?P<unit>(?:(?:\\text\{{[^{{}}]*\}}|°\s*[CF](?![a-zA-Z])|°){_POWER}\s*(?:(?:/|\\cdot)\s*)?)+)$",
    re.DOTALL,
)
_PLAIN_UNIT = (
    rf"(?:(?:square|cubic|sq\.?|cu\.?)\s+)?(?<![a-zA-Z\\])(?:{_PLAIN})(?![a-zA-Z])(?:\s+(?:squared|cubed)|{_POWER})"
)
_PLAIN_TAIL = re.compile(
    rf"(?P<body>.*(?:[\d)}}\]]|\\pi|(?<![a-zA-Z])[a-zA-Z]\s))\s*(?P<unit>{_PLAIN_UNIT}(?:(?:\s*/\s*|\s+per\s+){_PLAIN_UNIT})?)$",
    re.DOTALL,
)
_WORDS_TAIL = re.compile(r"(?P<body>-?\d[\d.,/]*)\s+(?P<unit>[a-zA-Z]{3,}(?:\s+[a-zA-Z]{2,}){0,3})$")
_ARC = re.compile(r"(-?[\d.]+)\s*(''?|\")")
_PLAIN_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2}|[^\x00-\xff]")
_AREA = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}

_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALES |= {"dozen": 12, "doz": 12}
_PARTS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7}
_PARTS |= {"eighth": 8, "ninth": 9, "tenth": 10, "hundredth": 100, "thousandth": 1000, "millionth": 10**6}
_NUMERALS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
_DIGITS = set(_NUMERALS.split())
_OPERATORS = {"plus", "minus", "over", "divided", "multiplied", "factorial", "factorials", "modulo", "mod"}
_POWERS = {"squared", "cubed"}
#: A word right behind a number that makes another of it: a scale, a fraction, a rate, arithmetic done to it.
_FIRST = re.compile(
    r"score|gross|tens|lakhs?|crores?|myriads?|googols?|bn|mln|mil|thous|[kMG]|kilo|mega|giga|tera|hecto|deca|deci|centi"
    r"|milli|micro|nano|pico|per?mill?e|pp[mb]|basis|less|[a-z-]*(?:een|tie|eleven|twelf|illion|hundred|thousand)ths?"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty-[a-z]+"
    r"|(?:doubl|tripl|quadrupl|halv|increas|decreas|reduc|diminish|augment|rais|negat|invert|subtract)(?:ed|ing)"
)
#: Such words anywhere behind it ("5 out of seven"), and at the end ("5 in binary", but not "5 binary strings").
_LATER = re.compile(rf"(?!one$)(?:{'|'.join(_NUMERALS.split())})|hundred|thousand|mille|[a-z]*illi(?:on|ard)s?")
_LAST = re.compile(r"binary|octal|hex(?:adecimal)?|recurring|repeating|neg|imaginary")
_CHANGED_TEXT = """
    twice thrice double triple square cube root log sin cos tan reciprocal inverse more less fewer greater larger
    smaller under above below within beyond up next times per
"""
_HEDGES_TEXT = """
    wrong incorrect invalid untrue impossible mistake mistaken error rejected discarded excluded eliminated maybe
    perhaps possibly probably likely unlikely unsure uncertain guess guessed suppose almost nearly instead nope
    wrongly incorrectly falsely mistakenly alternately alternatively refuted disproved disproven debunked retracted
"""
_LIMITS_TEXT = """
    not no non nor neither never none nothing cannot without except besides may might could would should than least most
    some others other sometimes too before was were had rather either both between negative opposite bound upper
    lower close until though although however yet or and but versus vs if unless when whenever otherwise else false
"""
#: Words that deny what they stand behind. Those that are as often of what is counted, such as "failed", are none.
_DENIED_TEXT = r"""
    formerly negated undefined unverified
    abandoned bogus contradict(?:ed|ion|s)? crossed debunked denied dis(?:card|miss|prov|put|qualif|regard|agree)\w*
    doubtful dubious erroneous extraneous fails fals\w* faux flawed garbage ignored? implausible improper inaccura\w*
    incorr\w* inconsistent kein kidding mislead\w* mis(?:read|calculated|counted) nevermind nicht nonsense oops
    overruled placeholder provisional\w* questionable refute[ds]? reject\w* rescinded retract\w* revoked ruled scratch
    sorry speculat\w* spurious struck superseded tbc tbd tentative\w* typo unclear unfounded unprov\w* unreliable
    unsolved unsound unsupported untenable void withdrawn checking
"""
#: Words that make it vague or unknown what they stand behind.
_VAGUE_TEXT = r"""
    un(?:confirmed|known|determined|decided|resolved|specified|checked|tested|justified|realistic|trustworthy)
    ambig\w* indetermin\w* conjectur\w* hypothe\w* estimat\w* assum(?:ed|ing|ption) approx\w* circa about around todo
    fixme tba etc onwards? upwards? inverse reciprocal ish
"""
#: Adverbs and words in -ish hedge ("presumably", "ten-ish"), except of time and sharing, and nouns that end so.
_HEDGING = (
    r"(?!(?:dai|week|month|year|annual|quarter|hour|night|respective|exact|precise|total|equal|on|fami|[a-z]*f|jel|bel|li"
    r"|assemb|ju|supp|rep|ral|al|bul|ear|ita)ly(?!\w)|(?:[a-z]*f|d|rad|par|rubb|pol|brit|engl|span|turk|ir|swed|dan"
    r"|scott|finn|jew|flem)ish(?!\w))[a-z]{2,}(?:ly|ish)"
)


def _any(words: str) -> str:
    """Return a pattern of any of the words, but not of commands with their names."""
    return rf"(?<![\\\w])(?:{'|'.join(words.split())})(?!\w)"


#: Words in front of a number that make another of it.
CHANGED = re.compile(
    _any(" ".join([_CHANGED_TEXT, _NUMERALS, *_OPERATORS, *_POWERS, *(f"{w}s?" for w in _SCALES | _PARTS)])),
    re.IGNORECASE,
)
_WHAT = r"\s+(?:of\s+)?(?:the\s+)?(?:answer|result|value|number|solution|it|that|this|[a-z])\W*$"
#: Names of another value than the answer's: "twice x", "square of the answer", "x plus one".
ALTERED = re.compile(
    rf"^\W*(?:the\s+)?(?:(?:twice|thrice|double|triple|half|reciprocal|inverse)(?:{_WHAT}|\W*$)"
    rf"|(?:third|quarter|square|cube|(?:square|cube)\s+root|log|logarithm|sine?|cosine?|tangent){_WHAT})"
    rf"|{_any('squared cubed')}\W*$|{_any('plus minus times')}\s+(?:\d|{_any(_NUMERALS)})",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    _any(_HEDGES_TEXT + _LIMITS_TEXT) + r"|n['\u2019]t\b|[不非错误无没百千万亿半倍](?!米)", re.IGNORECASE
)
#: Behind a number, too, unless something is counted; and signs that are no words.
_DENIAL = re.compile(
    rf"^(?!.*\b(?!(?:this|\w*wards)\W*$)(?:\w+[^su\W]s|people|men)\W*$)"
    rf".*{_any(f'{_DENIED_TEXT} {_VAGUE_TEXT} {_HEDGING}')}|{_any('fails')}|\boff by\b"
    r"|^\W*[\^%#~&@✗✘❌-](?![^\W\d])",
    re.IGNORECASE,
)
#: Words that end with a denial deny what they stand in front of.
DENIED = rf"(?i:{_any(_DENIED_TEXT)}(?:[\s-]+out)?)\W*"
#: Doubts behind the letter of a choice, where the rest may be what is chosen: "not enough information".
LABEL_DOUBT = re.compile(
    _any(f"{_HEDGES_TEXT} right correct answer") + r"|^\W*(?:or|but)\b"
    r"|^\W*(?:not|is|was|does|has|can(?:not)?|fails?|refuted|discarded|disproved|ruled|crossed|struck)"
    r"(?:\W+(?:not|be|been|hold|work|out|false|untrue|ruled|crossed|struck|eliminated))*\W*$",
    re.IGNORECASE,
)
#: The unit of what is no number with a unit: words that do arithmetic.
SPOKEN = "!"
_FILLERS = {"a", "an", "the", "of", "in", "on", "at", "each", "total"}
#: Words that make one unit another.
_CHANGE = "per squared cubed square cubic nautical north south east west am pm not left right up down bc ad"
_CHANGING = set(_CHANGE.split())


def split(latex: str) -> tuple[str, str | None]:
    """Return (answer without its unit, unit as :func:`name` writes it); None: no unit, SPOKEN: arithmetic in words.

    latex: what :func:`bapo.graders.normalise.normalise` returns. Only a unit behind something else counts. A number
    and its scale (5 million) come back as one number.
    """
    if match := _ARC.fullmatch(latex):
        return match[1], "arcmin" if match[2] == "'" else "arcsec"
    for pattern in (_TAIL, _PLAIN_TAIL, _WORDS_TAIL) if _PLAIN_WORD.search(latex) else (_TAIL,):
        match = pattern.match(latex) if len(latex) < 600 else None
        if match is None:
            continue
        body, unit = match["body"].strip(), match["unit"]
        if pattern is _TAIL and "°" not in unit and not re.search(r"[\d)}\]]$|\\pi$|[a-z]$", body):
            continue
        if "°" in unit and TRIGONOMETRIC.search(body):
            continue  # the degrees of an argument
        if body.endswith("\\") or not re.search(r"\d|\\pi|\\sqrt|\\frac|[a-zA-Z]", body) or "\\text" in body:
            continue
        return _scaled(latex, body, unit)
    return latex, None


def _scaled(latex: str, body: str, unit: str) -> tuple[str, str | None]:
    words = _words(unit).split()
    lower = [word.lower().rstrip(".") for word in words]
    factor, used = Fraction(1), 0
    while used < len(lower) and (scale := _SCALES.get(lower[used].removesuffix("s"))):
        factor, used = factor * scale, used + 1
    if not used and lower and (part := _PARTS.get(lower[0].removesuffix("s"))):
        factor, used = Fraction(1, part), 1
    rest = lower[used:]
    if rest and (rest[0] in _DIGITS | _POWERS or _OPERATORS & set(rest) or _timed(rest) or doubtful(unit)):
        return latex, SPOKEN
    if _DENIAL.search(" ".join(words)):
        return latex, SPOKEN
    if (rest and _FIRST.fullmatch(words[used] if len(words[used]) == 1 else rest[0])) or lower[:1] in (["!"], ["?"]):
        return latex, SPOKEN
    if any(map(_LATER.fullmatch, rest)) or (rest and _LAST.fullmatch(rest[-1])):
        return latex, SPOKEN
    if not used:
        return body, name(unit)
    number = numbers.read(body)
    if number is None:
        return latex, SPOKEN
    value = number.value * factor
    text = str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return text, name(" ".join(words[used:])) if rest else None


def doubtful(latex: str) -> bool:
    """Return whether words deny or hedge what they stand beside: "is wrong", "or more", "if n is even"."""
    return _PLAIN_WORD.search(latex) is not None and _DOUBT.search(latex) is not None


def _timed(words: list[str]) -> bool:
    """Return whether a number goes on: "three times two" and "three point one" do, "three times" is three."""
    return any(a in ("times", "point") and (b in _DIGITS or b.isdigit()) for a, b in pairwise(words))


def _words(unit: str) -> str:
    return unwrapped(unit).replace("{", "").replace("}", "").strip()


def name(unit: str) -> str:
    """Return the one name of a known unit and its power ("cm^2"), "?" and the words of any other, "" for no word."""
    words = " ".join(_words(unit).strip(".").split())
    words = re.sub(r"^(?:°|degrees?(?![a-zA-Z]))\s*(?=[a-zA-Z])", "", words)
    words = re.sub(r"\s*\^\s*", "^", re.sub(r"\s*/\s*", "/", words)).replace(" per ", "/")
    words = re.sub(r" squared(?![a-z])", "^2", re.sub(r" cubed(?![a-z])", "^3", words))
    if product := _product(words):
        return product
    power, whole = "", words
    match = re.fullmatch(r"(square|sq|cubic|cu)\.?\s+(.*)", words)
    if match:
        power, words = _AREA[match[1]], match[2]
    match = re.fullmatch(r"(.*?)\s*(\^-?\d|²|³)", words)
    if match:
        power, words = match[2], match[1]
    if unit := _word(words):
        return unit + power
    others = re.findall(r"([^\W\d_]+|°)(\^-?\d)?", whole.replace(".", ""))
    stems = {(_word(word) or stem(word.lower())) + exponent for word, exponent in others if word not in _FILLERS}
    return "?" + " ".join(sorted(stems)) if stems else ""


def _product(words: str) -> str:
    """Return known units with their powers, in order: kJ mol^-1 for kJ/mol; "" where one is not known."""
    powers: dict[str, int] = {}
    for position, part in enumerate(words.replace("(", "").replace(")", "").split("/")):
        for factor in part.replace("\\cdot", " ").split():
            match = re.fullmatch(r"([^\W\d_]+|°)(?:\^(-?\d))?\.?", factor)
            unit = _word(match[1]) if match else ""
            if not match or not unit:
                return ""
            powers[unit] = powers.get(unit, 0) + int(match[2] or 1) * (-1 if position else 1)
    return " ".join(sorted(unit if power == 1 else f"{unit}^{power}" for unit, power in powers.items()))


#: Signs and words of money, percent and degrees. The first letters are looked at first, which is faster.
_MARK = re.compile(
    r"(?=[\\^€£¥¢%°dcepy])(?:(?P<dollar>\\\$|\\(?:text|math)dollar|\bdollars?\b)"
    r"|(?P<euro>€|\\euro\b|\beuros?\b)"
    r"|(?P<pound>£|\\pounds|\bpounds?\b)|(?P<yen>¥|\byen\b)|(?P<cent>¢|\bcents?\b)"
    r"|(?P<percent>%|\bpercent\b)|(?P<degree>°|\^\s*\{?\s*\\circ|\bdegrees?\b))"
)


@lru_cache(maxsize=8192)
def marks(text: str) -> frozenset[str]:
    """Return the kinds of money, percent and degrees in a text as it was written.

    An answer may leave such a mark out, so normalising drops it. But an answer may not have another one in its place.
    """
    return frozenset(match.lastgroup or "" for match in _MARK.finditer(text))


def same(a: str | None, b: str | None) -> bool:
    """Return whether answers with these units may be equal: no unit, and the word "unit", go with any.

    Of two unknown ones, one may say more (apples, red apples), but not another unit or direction.
    """
    if not a or not b or a == b or "unit" in (a, b):
        return True
    if {a, b} in ({"degree", "C"}, {"degree", "F"}):
        return True
    if "?" not in a[0] + b[0] or SPOKEN in (a, b):
        return False
    left, right = (set(unit.removeprefix("?").split()) for unit in (a, b))
    more = {word.partition("^")[0] for word in left ^ right}
    return (left <= right or right <= left) and not more & (_CHANGING | _UNITS)


_UNITS = set(_NAMES) | set(_SHORT.values())


def stem(word: str) -> str:
    for ending, stem in (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x")):
        if word.endswith(ending) and len(word) > 4:
            return word.removesuffix(ending) + stem
    return word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word


def _word(word: str) -> str:
    word = word.strip()
    if word in _SHORT:
        return _SHORT[word]
    for form in (word, word.lower()):
        for ending in ("", "s", "es"):
            stem = form[: -len(ending)] if ending and form.endswith(ending) else form
            if stem in _KNOWN:
                return _KNOWN[stem]
    return ""
