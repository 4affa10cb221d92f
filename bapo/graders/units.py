"""Units at the end of an answer: known ones by one name each, so that 10 cm and 10 m are not the same answer."""

from __future__ import annotations

import re

_NAMES = {
    "cm": "cm centimeter centimetre", "mm": "mm millimeter millimetre",
    "m": "meter metre", "km": "km kilometer kilometre",
    "in": "inch inche", "ft": "ft foot feet", "yd": "yd yard", "mi": "mi mile", "kg": "kg kilogram", "g": "gram",
    "mg": "mg milligram", "lb": "lb lbs pound", "oz": "oz ounce", "s": "sec second", "ms": "ms millisecond",
    "min": "min minute", "h": "hr hour", "day": "day", "week": "week", "month": "month", "year": "yr year",
    "degree": "deg degree °", "rad": "rad radian", "dollar": "dollar buck", "cent": "cent", "mph": "mph",
    "km/h": "km/h kmh kmph", "m/s": "m/s", "L": "liter litre", "mL": "ml milliliter millilitre", "Hz": "Hz hz",
    "kHz": "kHz",
    "N": "newton", "J": "joule", "kJ": "kJ", "W": "watt", "V": "volt", "K": "kelvin", "Pa": "pascal", "mol": "mol mole",
    "unit": "unit", "acre": "acre", "gallon": "gal gallon", "percent": "percent",
}  # fmt: skip
_SHORT = {"m": "m", "s": "s", "g": "g", "h": "h", "N": "N", "J": "J", "W": "W", "V": "V", "K": "K", "Pa": "Pa",
          "in": "in",
          "L": "L", "A": "A", "C": "C", "°C": "C", "°F": "F", "F": "F"}  # fmt: skip
_KNOWN = {word: unit for unit, words in _NAMES.items() for word in words.split()}
#: Words that stand alone after a number without \text{}. Single letters do not: they may be variables.
_PLAIN = "|".join(
    sorted((re.escape(f"{w}{s}") for w in _KNOWN for s in ("", "s", "es") if w.isascii()), key=len, reverse=True)
)
_POWER = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d))?"
_TAIL = re.compile(
    r"(?P<body>.*?[\d)}\]a-zA-Z%°!])\s*"
    rf"(?P<unit>(?:(?:\\text\{{[^{{}}]*\}}|°\s*[CF](?![a-zA-Z])|°){_POWER}\s*/?\s*)+)$",
    re.DOTALL,
)
_PLAIN_TAIL = re.compile(
    rf"(?P<body>.*(?:[\d)}}\]]|\s))\s*(?P<unit>(?:(?:square|cubic|sq\.?|cu\.?)\s+)?(?<![a-zA-Z\\])(?:{_PLAIN}){_POWER})$",
    re.DOTALL,
)
_WORDS_TAIL = re.compile(r"(?P<body>-?\d[\d.,/]*)\s+(?P<unit>[a-zA-Z]{3,}(?:\s+[a-zA-Z]{2,}){0,3})$")
_ARC = re.compile(r"(-?[\d.]+)\s*(''?|\")")
_AREA = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}


def split(latex: str) -> tuple[str, str | None]:
    """(the answer without its unit, the unit's one name; "" for an unknown unit, None for none).

    latex: what :func:`bapo.graders.normalise.normalise` returns. Only a unit behind something else counts.
    """
    if match := _ARC.fullmatch(latex):
        return match[1], "arcmin" if match[2] == "'" else "arcsec"
    for pattern in (_TAIL, _PLAIN_TAIL, _WORDS_TAIL):
        match = pattern.match(latex) if len(latex) < 600 else None
        if match is None:
            continue
        body, unit = match["body"].strip(), match["unit"]
        if pattern is _TAIL and "°" not in unit and not re.search(r"[\d)}\]]$|\\pi$|[a-z]$", body):
            continue
        if body.endswith("\\") or not re.search(r"\d|\\pi|\\sqrt|\\frac|[a-zA-Z]", body) or "\\text" in body:
            continue
        return body, name(unit)
    return latex, None


def name(unit: str) -> str:
    """One name for a known unit with its power ("cm^2", "degree"), "" for any other."""
    words = re.sub(r"\\text\{([^{}]*)\}", r"\1", unit).replace("{", "").replace("}", "").strip().strip(".")
    words = re.sub(r"\s*\^\s*", "^", re.sub(r"\s*/\s*", "/", words)).replace(" per ", "/")
    power = ""
    found = re.fullmatch(r"(square|sq|cubic|cu)\.?\s+(.*)", words)
    if found:
        power, words = _AREA[found[1]], found[2]
    found = re.fullmatch(r"(.*?)\s*(\^-?\d|²|³)", words)
    if found:
        power, words = found[2], found[1]
    known = _word(words)
    if not known and "/" in words:
        parts = [_word(part) for part in words.split("/")]
        known = "/".join(parts) if all(parts) else ""
    return known + power if known else ""


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
