"""Finds the answer in a response: the last balanced ``\\boxed{}`` outside the thinking."""

from __future__ import annotations

import contextlib
import re

from bapo.graders import context
from bapo.graders.normalise import closed

#: Only this much before and behind the last box's beginning is read, so that a check costs the same for any response.
REACH = 20_000

_TOKEN = re.compile(r"\\{1,4}(?:boxed|fbox)\s{0,9}\{|\\.|[{}]", re.DOTALL)
#: Allowed between two boxes that are one answer: "and", "or", commas, the ends of formulas, another name.
_LINK = r"(?:,|;|&|\\q?quad|\\text\s?\{[ ,]*(?:and|or)[ ,]*\}|\band\b|\bor\b)"
_JOINT = re.compile(
    rf"[ $)\]}}\\]*(?:{_LINK} ?)*[ $(\[\\]*(?:[^=.+*/^]{{1,15}}=)?[ $(\[\\]*|[ $)\]}}\\,]*(?:\\text\{{ ?)?or\b[^.]*"
)
_LINKED = re.compile(_LINK)
#: Words and signs between two boxes that offer both, whatever else stands there.
_OFFERED = re.compile(
    r"^\W*or\b|\bor\W*$|\bas well as\b|\\(?:lor|vee)\b|\b(?:versus|vs|alternat\w+|could|might|maybe|perhaps|possibly)\b"
    r"|^[\s$]*[|/][\s$]*$|^[\s$]*if\b[^,;.]*[,;]",
    re.IGNORECASE,
)
#: the beginning of a box that the end of the response cuts off
_CUT_OFF = re.compile(r"\\(?:b|bo|box|boxe|boxed|f|fb|fbo|fbox)\s*\Z")


def without_thinking(response: str) -> str:
    """Return what follows the last ``</think>``, up to a ``<think>`` that is never closed.

    Only the end tag may stand in a response (chat templates open the thinking in the prompt), so no start tag is
    required.
    """
    return response.rpartition("</think>")[2].partition("<think>")[0]


def last_tagged(response: str) -> str | None:
    """Return the content of the last complete ``<answer>...</answer>`` outside the thinking; None without one."""
    reply = without_thinking(response)
    end = reply.rfind("</answer>")
    start = reply.rfind("<answer>", 0, max(end, 0))
    return None if start < 0 else reply[start + len("<answer>") : end]


class TouchedBox(Exception):
    """What touches the last box makes another value of it."""


def last_box(response: str) -> str | None:
    """Return the content of the last balanced box outside the thinking, stripped; None where there is none.

    Of nested boxes the outermost counts. Boxes that are one answer (:func:`last_boxes`) are the list of them.
    """
    with contextlib.suppress(TouchedBox):
        return ", ".join(last_boxes(response)) or None
    return None


def last_boxes(response: str) -> list[str]:
    """Return the last box and those before it that form one answer with it, each once; [] where there is none.

    Boxes form one answer on one line, or joined by "and", "or" or a comma, without the end of a sentence, or by words
    such as "alternatively": a response may not offer several. Where the last box is never closed there is no answer,
    whatever stands before it. Raises TouchedBox where what touches the boxes makes another value of them.
    """
    reply = without_thinking(response)
    last = max(reply.rfind(r"\boxed"), reply.rfind(r"\fbox"), 0)
    text = reply[max(0, last - REACH) : last + REACH]
    open_braces: list[tuple[int, int, int]] = []  # of each: where its box and the content start, else -1; and itself
    around: list[int] = []  # the braces around the last box
    boxes: list[tuple[int, int, int, int]] = []  # box start, content start, content end, box end
    first = min((at for at in (text.find(r"\boxed"), text.find(r"\fbox")) if at >= 0), default=len(text))
    for token in _TOKEN.finditer(text, max(0, first - context.LOOK)):
        word = token.group()
        if word == "}":
            start, inner, brace = open_braces.pop() if open_braces else (-1, -1, -1)
            if start >= 0:
                while boxes and boxes[-1][0] > start:
                    boxes.pop()
                boxes.append((start, inner, token.start(), token.end()))
                around.clear()
            elif boxes and 0 <= brace < boxes[-1][0]:
                around.append(brace)
        elif word == "{":
            open_braces.append((-1, -1, token.start()))
        elif word[-1] == "{" and len(word) > 2:
            open_braces.append((token.start(), token.end(), token.start()))
    unclosed = max((start for start, *_ in open_braces), default=-1)
    if not boxes or unclosed > boxes[-1][0] or _CUT_OFF.search(reply[-20:]):
        return []
    joined = 1
    for earlier, later in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        between = text[earlier[3] : later[0]]
        if len(between) > 60:
            break
        if not _OFFERED.search(between):
            if not _JOINT.fullmatch(" ".join(between.split())):
                break
            if "\n" in between.strip("$") and not _LINKED.search(between):
                break
        joined += 1
    answer = boxes[-joined:]
    if context.changes(text, answer[0][0], answer[-1][3]) or any(context.operand(text, brace) for brace in around):
        raise TouchedBox
    return list(dict.fromkeys(text[box[1] : box[2]].strip() for box in answer))


def boxed(answer: str) -> str:
    """Write ``answer`` as a response of nothing but its box, from which :func:`last_box` takes it again.

    Braces that ``answer`` leaves open are closed (two golds of DeepScaleR end too early).
    """
    return f"\\boxed{{{closed(answer)}{' ' if answer.endswith(chr(92)) else ''}}}"
