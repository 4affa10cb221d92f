"""Problems as the documents of an lm-eval task: id, prompt, ground_truth and, where there are any, images."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo import seeds
from bapo.errors import UserError
from bapo.store.files import read_table

if TYPE_CHECKING:
    import numpy as np

#: Stands in a prompt for each of its images; lm-eval's models with images replace it by the image's own tokens.
PLACEHOLDER = "<image>"


def read_problems(path: Path) -> list[dict[str, Any]]:
    """{"id", "prompt", "ground_truth"} of each problem of a parquet file in verl's schema.

    Where the file has images, "images" is a list of the bytes of each. Raises UserError naming the file and the row
    where something is missing, empty, unreadable or there twice.
    """
    table = read_table(path)
    missing = {"prompt", "reward_model", "extra_info"} - set(table.columns)
    if missing:
        raise UserError(f"{path}: column {min(missing)} is missing; make the data again with `python -m bapo data`")
    with_images = "images" in table.columns
    images = table["images"] if with_images else [None] * len(table)
    problems: dict[str, dict[str, Any]] = {}
    rows = zip(table["prompt"], table["reward_model"], table["extra_info"], images, strict=True)
    for number, (messages, reward, extra, pictures) in enumerate(rows):
        where = f"{path}: row {number}"
        if len(messages) != 1 or messages[0]["role"] != "user":
            raise UserError(f"{where}: prompt must be one message of the role 'user'")
        problem: dict[str, Any] = {
            "id": extra.get("id"),
            "prompt": messages[0]["content"],
            "ground_truth": reward.get("ground_truth"),
        }
        for field, value in problem.items():
            if not isinstance(value, str) or not value:
                raise UserError(f"{where}: {field} must be a non-empty text, not {value!r}")
        if problem["id"] in problems:
            raise UserError(f"{where}: problem {problem['id']} is there twice; every id must be unique")
        if with_images:
            problem["images"] = [p.get("bytes") for p in pictures] if pictures is not None else []
            check_images(problem, where)
        problems[problem["id"]] = problem
    if not problems:
        raise UserError(f"{path}: no problems in it; make the data again with `python -m bapo data`")
    return list(problems.values())


def check_images(problem: dict[str, Any], where: str) -> None:
    """Raises UserError where the images are not pictures, or not as many as the prompt has places for them."""
    from PIL import Image

    images, places = problem["images"], problem["prompt"].count(PLACEHOLDER)
    if len(images) != places:
        raise UserError(f"{where}: {len(images)} images, but {places} times {PLACEHOLDER} in the prompt")
    for number, content in enumerate(images):
        try:
            with Image.open(io.BytesIO(content)) as image:
                image.verify()
        except Exception as error:  # what is raised depends on the format and on the damage
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            raise UserError(f"{where}: image {number} is no readable picture ({reason})") from None


def to_dataset(problems: Sequence[dict[str, Any]]) -> Any:
    """A datasets.Dataset in memory whose images are decoded, to RGB, when a document is taken from it."""
    import datasets

    text = datasets.Value("string")
    features: dict[str, Any] = {"id": text, "prompt": text, "ground_truth": text}
    if "images" not in problems[0]:
        return datasets.Dataset.from_list([dict(p) for p in problems], features=datasets.Features(features))
    features["images"] = datasets.List(datasets.Image(mode="RGB"))
    rows = [{**p, "images": [{"bytes": image, "path": None} for image in p["images"]]} for p in problems]
    return datasets.Dataset.from_list(rows, features=datasets.Features(features))


def shuffle_images(problems: Sequence[dict[str, Any]], seed: int, where: str) -> list[dict[str, Any]]:
    """The same problems, each with the images of another one that are not the same as its own.

    A control: where the image is used, accuracy falls to chance. Problems with the same prompt change among themselves
    where they can, so that the question still fits the image; the others change with any other.
    Raises UserError where that cannot be, because one image belongs to more than half of the problems.
    """
    if len({len(p["images"]) for p in problems}) != 1:
        raise UserError(f"{where}: evaluation.images=shuffled needs the same number of images in every problem")
    contents = [b"\0".join(p["images"]) for p in problems]
    rng = seeds.generator(seed, "shuffled-images")
    alike: dict[str, list[int]] = {}
    for i, problem in enumerate(problems):
        alike.setdefault(problem["prompt"], []).append(i)
    giver: dict[int, int] = {}
    rest: list[int] = []
    for members in alike.values():
        found = _givers(members, contents, rng)
        giver |= found
        rest += [i for i in members if i not in found]
    giver |= _givers(rest, contents, rng)
    if len(giver) < len(problems):  # those left over cannot change among themselves
        giver = _givers(range(len(problems)), contents, rng)
    if not giver:
        most = max(Counter(contents).values())
        raise UserError(f"{where}: evaluation.images=shuffled, but {most} of {len(problems)} problems share one image")
    return [{**problem, "images": problems[giver[i]]["images"]} for i, problem in enumerate(problems)]


def _givers(members: Sequence[int], contents: Sequence[bytes], rng: np.random.Generator) -> dict[int, int]:
    """For each member another one with other contents; {} where there is no such exchange.

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
