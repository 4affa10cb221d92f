"""What is wrong with a real set: found, reported and, where ``data.cleaning`` says so, left out of training."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bapo.errors import UserError

#: Length of the n-grams by which problems are compared.
N = 10
#: Tokens of the longest prompt (Table 3); a problem that surely has more cannot be trained on.
LONGEST = 2048
#: Share of a held-out problem's n-grams in one training problem from which the two count as near-duplicates.
NEAR = 0.5


@dataclass(frozen=True)
class Item:
    """A problem of a real set before its prompt is written.

    id: the set's name, the file where the set is a folder of the user's, and the row; gold: its answer's place in a
    file, for messages.
    """

    id: str
    text: str
    golds: tuple[str, ...]
    images: tuple[bytes, ...] = ()
    diagram: str = ""  # digest of the images' pixels
    gold: str = field(default="", compare=False)


def options(decisions: Mapping[str, Any], allowed: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Fill ``data.cleaning`` up with the defaults, the first of each key's allowed values. Raises UserError."""
    for key, value in decisions.items():
        if key not in allowed:
            raise UserError(f"data.cleaning.{key}: no such decision; allowed: {', '.join(allowed) or 'none here'}")
        if value not in allowed[key]:
            raise UserError(f"data.cleaning.{key}={value}: must be one of {', '.join(allowed[key])}")
    return {key: str(decisions.get(key, values[0])) for key, values in allowed.items()}


# ------------------------------------------------------------------------------------------------ answers


def is_empty(golds: Iterable[str]) -> bool:
    """Return whether all golds are blank, so that no response can be right."""
    return not any(gold.strip() for gold in golds)


def is_not_available(golds: Iterable[str]) -> bool:
    return any(gold.strip().lower() in ("n/a", "na", "none", "nan", "null") for gold in golds)


# ------------------------------------------------------------------------------------------------ duplicates

_LAYOUT = re.compile(r"\\left|\\right|\\[,;:! ]|\\text\s*\{([^{}]*)\}|[\s$]+")


def same_problem(text: str) -> str:
    """Write problems that differ in white space and case only as one text."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text)).casefold()


def same_answer(gold: str) -> str:
    """Write answers that differ in layout only as one text; equal numbers are the grader's affair."""
    return _LAYOUT.sub(r"\1", gold.replace("dfrac", "frac").replace("tfrac", "frac")).casefold().rstrip(".")


def duplicates(items: Sequence[Item]) -> list[list[Item]]:
    """Group items with the same problem and diagram, two or more, in the order of the set."""
    groups: dict[tuple[str, str], list[Item]] = defaultdict(list)
    for item in items:
        groups[same_problem(item.text), item.diagram].append(item)
    return [group for group in groups.values() if len(group) > 1]


def conflicting(group: Sequence[Item]) -> bool:
    return len({tuple(map(same_answer, item.golds)) for item in group}) > 1


# ------------------------------------------------------------------------------------------------ figures

_DRAWN = re.compile(r"\[asy\b|!\[[^\]]*\]\(|\\includegraphics", re.IGNORECASE)
_MENTIONS = {
    "drawing as [asy] code": re.compile(r"\[asy", re.IGNORECASE),
    "figure": re.compile("figure", re.IGNORECASE),
    "as shown": re.compile("as shown", re.IGNORECASE),
    "shown below, above or in": re.compile("shown (below|above|in)", re.IGNORECASE),
}


def mentions(text: str) -> list[str]:
    """List how a problem refers to a figure; [] where it does not."""
    return [name for name, pattern in _MENTIONS.items() if pattern.search(text)]


def is_drawn(text: str) -> bool:
    """Return whether the figure is in the text, as code or a link: a model may read it there."""
    return bool(_DRAWN.search(text))


# ------------------------------------------------------------------------------------------------ length

_PIECES = re.compile(r"(?:[^\w\s]|_)?[^\W\d_]+|\d|(?:[^\w\s]|_)+")


def pieces(text: str) -> int:
    """Count words, digits and runs of signs: Qwen's tokenizers make at least as many tokens of a text."""
    return len(_PIECES.findall(text))


# ------------------------------------------------------------------------------------------------ overlap

_DROPPED = re.compile(r"\[asy\].*?\[/asy\]|<[^<>]{1,20}>|\\(?:left|right|displaystyle)(?![a-z])|\\[,;:! ]", re.DOTALL)
_TOKENS = re.compile(r"[^\W\d_]+|\d+|[+\-*/=<>^|!]")
NORMALISATION = (
    "NFKC, lower case; drawings in [asy], HTML tags and spacing commands of LaTeX are removed; what is left is split "
    "into words (LaTeX commands are words), numbers and the signs + - * / = < > ^ | !"
)


@dataclass(frozen=True)
class Grams:
    """The distinct n-grams of each text. hashes: uint64 [M]; owners: int64 [M], index of the text; counts: [texts]."""

    hashes: np.ndarray
    owners: np.ndarray
    counts: np.ndarray


def grams(texts: Sequence[str], n: int = N, short: bool = True) -> Grams:
    """Hash the n-grams of each text. short: a text of fewer than n tokens counts as one n-gram, else as none."""
    vocabulary: dict[str, int] = {}
    tokens = [
        [vocabulary.setdefault(t, len(vocabulary) + 1) for t in _TOKENS.findall(_DROPPED.sub(" ", text.lower()))]
        for text in (unicodedata.normalize("NFKC", text) for text in texts)
    ]
    names = np.array([_hash64(name) for name in ("", *vocabulary)], dtype=np.uint64)
    powers = np.array([pow(0x9E3779B97F4A7C15, k + 1, 2**64) for k in range(n)], dtype=np.uint64)
    hashes: list[np.ndarray] = [np.empty(0, dtype=np.uint64)]
    for ids in tokens:
        row = names[np.array(ids, dtype=np.int64)]
        if len(row) >= n:
            hashes.append(np.unique(np.lib.stride_tricks.sliding_window_view(row, n) @ powers))
        else:
            one = row @ powers[: len(row)] + np.uint64(len(row) + 1)
            hashes.append(np.array([one] if short else [], dtype=np.uint64))
    counts = np.array([len(h) for h in hashes[1:]], dtype=np.int64)
    return Grams(np.concatenate(hashes), np.repeat(np.arange(len(texts)), counts), counts)


def shares(train: Grams, test: Grams) -> dict[tuple[int, int], float]:
    """Return, by (text of test, text of train), the share of the first one's n-grams in the second, where above 0."""
    where: dict[int, list[int]] = defaultdict(list)
    for value, owner in zip(test.hashes.tolist(), test.owners.tolist(), strict=True):
        where[value].append(owner)
    common = np.isin(train.hashes, test.hashes)
    pairs: Counter[tuple[int, int]] = Counter()
    for value, owner in zip(train.hashes[common].tolist(), train.owners[common].tolist(), strict=True):
        pairs.update((test_owner, owner) for test_owner in where[value])
    return {(t, o): count / int(test.counts[t]) for (t, o), count in sorted(pairs.items())}


def _hash64(token: str) -> int:
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest(), "little")
