"""The Markdown that ``analysis.text`` writes, as HTML: headings, pipe tables, lists, paragraphs, code blocks.

Everything else, raw HTML and links among it, is shown as the text that it is. Only ``<br>`` and ``<u>`` pass, because
our own tables use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

_RULE = re.compile(r"^\|?[\s:|-]*-[\s:|-]*$")
_ITALIC = re.compile(r"^\*[^*].*\*$")


def inline(text: str) -> Markup:
    """Bold, italics, code, ``<br>`` and ``<u>``; the rest escaped."""
    parts = re.split(r"(`[^`]+`)", text)  # nothing is marked up inside code
    return Markup("").join(_code(p) if p.startswith("`") and len(p) > 2 else _marks(p) for p in parts)


def _code(text: str) -> Markup:
    return Markup("<code>{}</code>").format(text[1:-1])


def _marks(text: str) -> Markup:
    found = str(escape(text))
    found = re.sub(r"&lt;br ?/?&gt;", "<br>", found)
    found = re.sub(r"&lt;u&gt;(.*?)&lt;/u&gt;", r"<u>\1</u>", found)
    found = re.sub(r"\*\*(\S(?:.*?\S)?)\*\*", r"<strong>\1</strong>", found)
    found = re.sub(r"\*([^\s*](?:[^*]*[^\s*])?)\*", r"<em>\1</em>", found)
    return Markup(found)


def title(text: str) -> tuple[str, str]:
    """(the first heading of level 1 or "", the text without it)."""
    match = re.search(r"^# (.+)\n?", text, re.MULTILINE)
    return (match[1].strip(), text[: match.start()] + text[match.end() :]) if match else ("", text)


def html(text: str, level: int = 3) -> Markup:
    """A document. level: what a heading of level 1 becomes; h6 at most."""
    return Markup("\n").join(_blocks(text.split("\n"), level - 1))


def _blocks(lines: list[str], shift: int) -> Iterator[Markup]:
    i = 0
    while i < len(lines):
        line, start = lines[i], i
        if not line.strip():
            i += 1
        elif line.startswith("```"):
            i += 1
            while i < len(lines) and not lines[i].startswith("```"):
                i += 1
            yield Markup("<pre>{}</pre>").format("\n".join(lines[start + 1 : i]))
            i += 1
        elif match := re.match(r"(#{1,6}) +(.*)", line):
            size = min(6, len(match[1]) + shift)
            yield Markup("<h{0}>{1}</h{0}>").format(size, inline(match[2]))
            i += 1
        elif line.startswith("|") and i + 1 < len(lines) and _RULE.match(lines[i + 1]):
            while i < len(lines) and lines[i].startswith("|"):
                i += 1
            yield _table(lines[start:i])
        elif line.startswith("- "):
            items: list[str] = []
            while i < len(lines) and (lines[i].startswith("- ") or (lines[i].startswith("  ") and lines[i].strip())):
                if lines[i].startswith("- "):
                    items.append(lines[i][2:])
                else:
                    items[-1] += " " + lines[i].strip()
                i += 1
            yield Markup("<ul>{}</ul>").format(Markup("").join(Markup("<li>{}</li>").format(inline(t)) for t in items))
        else:
            i += 1  # at least this line, whatever it looks like
            while i < len(lines) and lines[i].strip() and not re.match(r"[#|]|- |```", lines[i]):
                i += 1
            yield Markup("<p>{}</p>").format(inline(" ".join(lines[start:i])))


def cells(row: str) -> list[str]:
    """The cells of a row of a pipe table; a pipe inside a cell is written with a backslash before it."""
    parts = re.split(r"(?<!\\)\|", row.strip().removeprefix("|").removesuffix("|"))
    return [p.strip().replace(r"\|", "|") for p in parts]


def _table(lines: list[str]) -> Markup:
    """A row that begins in italics comments on the row above (the paper's numbers): they are sorted as one."""
    header, rule, *body = (cells(line) for line in lines)
    right = [r.endswith(":") and not r.startswith(":") for r in rule]

    def row(values: list[str], tag: Markup) -> Markup:
        numbers = [*right, *[False] * len(values)]
        found = [
            Markup("<{0}{1}>{2}</{0}>").format(tag, Markup(' class="num"') if is_number else "", inline(value))
            for value, is_number in zip(values, numbers, strict=False)
        ]
        return Markup("<tr>{}</tr>").format(Markup("").join(found))

    groups: list[list[Markup]] = []
    for values in body:
        if groups and _ITALIC.match(values[0]):
            groups[-1].append(row(values, Markup("td")))
        else:
            groups.append([row(values, Markup("td"))])
    bodies = Markup("\n").join(Markup("<tbody>{}</tbody>").format(Markup("").join(g)) for g in groups)
    return Markup('<div class="scroll"><table class="sortable">\n<thead>{}</thead>\n{}\n</table></div>').format(
        row(header, Markup("th")), bodies
    )
