"""Markdown of a results folder as HTML, read by markdown-it.

Raw HTML, links and images are shown as the text that they are. Only ``<br>`` and ``<u>`` pass: our tables use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


#: what stands below its number, so that wide tables fit a laptop: "(sd 1.9)", "(+1.4 to +3.8)"
_SECOND_LINE = re.compile(r"(± [\d.]+|[+-][\d.]+) (\((?:sd [\d.]+|[+-][\d.]+ to [+-][\d.]+)\))(?=</)")


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "image", "autolink", "entity"])
    parser.disable(["code", "reference", "hr", "lheading", "blockquote"])
    return parser


def title(text: str) -> tuple[str, str]:
    """Return (the first heading of level 1 or "", the text without it)."""
    match = re.search(r"^# (.+)\n?", text, re.MULTILINE)
    return (match[1].strip(), text[: match.start()] + text[match.end() :]) if match else ("", text)


def html(text: str, level: int = 3) -> Markup:
    """Return a document as HTML. level: what a heading of level 1 becomes; h6 at most."""
    parser = _parser()
    tokens = [*_arranged(parser.parse(text), level - 1)]
    page = parser.renderer.render(tokens, parser.options, {}).replace("&lt;br&gt;", "<br>")
    page = _SECOND_LINE.sub(r"\1<br><small>\2</small>", page)
    return Markup(re.sub(r"&lt;u&gt;(.*?)&lt;/u&gt;", r"<u>\1</u>", page))


def _arranged(tokens: Sequence[Token], shift: int) -> Iterator[Token]:
    """Lower the headings, and give each row of a table a body of its own for sorting.

    A row that begins in italics comments on the row above (the paper's numbers) and stays with it.
    """
    from markdown_it.token import Token

    rows = 0
    for i, token in enumerate(tokens):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + shift)}"
        elif token.type == "table_open":
            rows = 0
            token.attrSet("class", "sortable")
            yield Token("html_block", "", 0, content='<div class="scroll">')
        elif token.type in ("th_open", "td_open"):
            token.attrs = {"class": "num"} if token.attrs.get("style") == "text-align:right" else {}
        elif token.type == "tr_open" and tokens[i + 1].type == "td_open":
            first = tokens[i + 2].children
            if rows and not (first and first[0].type == "em_open" and first[-1].type == "em_close"):
                yield Token("html_block", "", 0, content="</tbody>\n<tbody>")
            rows += 1
        yield token
        if token.type == "table_close":
            yield Token("html_block", "", 0, content="</div>\n")
