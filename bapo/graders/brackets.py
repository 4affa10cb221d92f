"""Brackets in LaTeX: cutting at separators outside them, balance and depth."""

from __future__ import annotations

import re


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
    level = 0
    for token in re.findall(r"\\[{}]|[()\[\]{}]", inside):
        level += 1 if token in ("(", "[", "{", r"\{") else -1
        if level < 0:
            return False
    return level == 0


def depth(text: str) -> int:
    """Return the deepest nesting of brackets of all kinds; 10**6 where they do not balance."""
    level = deepest = 0
    for character in re.findall(r"[()\[\]{}]", text):
        level += 1 if character in "([{" else -1
        deepest = max(deepest, level)
        if level < 0:
            return 10**6
    return deepest if level == 0 else 10**6


def closed(text: str) -> str:
    """Close the braces that ``text`` leaves open."""
    braces = re.findall(r"(?<!\\)[{}]", re.sub(r"\\\\", "", text))
    return text + "}" * (braces.count("{") - braces.count("}"))
