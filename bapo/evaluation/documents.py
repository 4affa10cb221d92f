"""Problems as the documents of an lm-eval task: id, prompt, ground_truth and, where there are any, images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bapo import seeds
from bapo.errors import UserError
from bapo.tasks.base import Problem

if TYPE_CHECKING:
    import numpy as np


def to_dataset(problems: Sequence[Problem]) -> Any:
    """Return a datasets.Dataset in memory whose images are decoded, to RGB, when a document is taken from it."""
    import datasets

    text = datasets.Value("string")
    features: dict[str, Any] = {"id": text, "prompt": text, "ground_truth": text}
    with_images = any(p.images for p in problems)
    if with_images:
        features["images"] = datasets.List(datasets.Image(mode="RGB"))
    rows = []
    for p in problems:
        images = {"images": [{"bytes": image, "path": None} for image in p.images]} if with_images else {}
        rows.append({"id": p.id, "prompt": p.prompt, "ground_truth": p.ground_truth, **images})
    return datasets.Dataset.from_list(rows, features=datasets.Features(features))


def shuffle_images(problems: Sequence[Problem], seed: int, where: str) -> list[Problem]:
    """Return the same problems, each with the images of another one that are not the same as its own.

    A control: where the image is used, accuracy falls to chance. Problems with the same prompt change among themselves
    where they can, so that the question still fits the image; the others change with any other.
    Raises UserError if that cannot be, because one image belongs to more than half of the problems.
    """
    if len({len(p.images) for p in problems}) != 1:
        raise UserError(f"{where}: evaluation.images=shuffled needs the same number of images in every problem")
    contents = [b"\0".join(p.images) for p in problems]
    rng = seeds.generator(seed, "shuffled-images")
    alike: dict[str, list[int]] = {}
    for i, problem in enumerate(problems):
        alike.setdefault(problem.prompt, []).append(i)
    giver: dict[int, int] = {}
    rest: list[int] = []
    for members in alike.values():
        exchange = _givers(members, contents, rng)
        giver |= exchange
        rest += [i for i in members if i not in exchange]
    giver |= _givers(rest, contents, rng)
    if len(giver) < len(problems):  # those left over cannot change among themselves
        giver = _givers(range(len(problems)), contents, rng)
    if not giver:
        most = max(Counter(contents).values())
        raise UserError(f"{where}: evaluation.images=shuffled, but {most} of {len(problems)} problems share one image")
    return [replace(problem, images=problems[giver[i]].images) for i, problem in enumerate(problems)]


def _givers(members: Sequence[int], contents: Sequence[bytes], rng: np.random.Generator) -> dict[int, int]:
    """Return for each member another one with other contents; {} if there is no such exchange.

    Members with equal contents lie side by side in a random order; each takes from as many places further on as the
    longest such run has.
    """
    counts = Counter(contents[i] for i in members)
    step = max(counts.values(), default=0)
    if 2 * step > len(members):
        return {}
    rank = dict(zip(counts, rng.permutation(len(counts)).tolist(), strict=True))
    within = dict(zip(members, rng.permutation(len(members)).tolist(), strict=True))
    order = sorted(members, key=lambda i: (rank[contents[i]], within[i]))
    return {order[k]: order[(k + step) % len(order)] for k in range(len(order))}
