"""Problems on disk: parquet files in verl's schema, which both engines read."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from bapo.errors import UserError
from bapo.store.files import atomic, read_table
from bapo.tasks.base import Problem

#: Stands in a prompt for each of its images.
PLACEHOLDER = "<image>"
#: of images, as Pillow names them; it would start other programs for some formats
FORMATS = ("PNG", "JPEG")
#: what :func:`read_problems` reads, for messages
NEEDED = "a problem needs extra_info.id, prompt (one message, the user's) and reward_model.ground_truth"


def write_problems(path: Path, problems: Sequence[Problem], data_source: str, ability: str, split: str) -> None:
    """Write one split: data_source, prompt (one user message), ability, reward_model and extra_info, a row a problem.

    Problems with images have a column ``images``, a list of {"bytes", "path"} a row (the hub's image feature), and
    problems with a form a column ``form``. Raises UserError if the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.string()
    fields = {
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({"split": text, "index": pa.int64(), "id": text}),
    }
    rows = [
        {
            "data_source": data_source,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "ability": ability,
            "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
            "extra_info": {"split": split, "index": index, "id": problem.id},
            "images": [{"bytes": image, "path": None} for image in problem.images],
            "form": problem.form,
        }
        for index, problem in enumerate(problems)
    ]
    if any(problem.images for problem in problems):
        fields["images"] = pa.list_(pa.struct({"bytes": pa.binary(), "path": text}))
    if any(problem.form for problem in problems):
        fields["form"] = text
    with atomic(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(fields)), temporary, compression="zstd")


def read_problems(path: Path) -> list[Problem]:
    """Return the problems of a file of :func:`write_problems`, in order.

    Raises UserError naming the file and the row where something is missing, empty, unreadable or there twice.
    """
    table = read_table(path)
    missing = {"prompt", "reward_model", "extra_info"} - set(table.columns)
    if missing:
        raise UserError(f"{path}: column {min(missing)} is missing; {NEEDED}, as `bapo data` writes them")
    images = table["images"] if "images" in table else [None] * len(table)
    problems: dict[str, Problem] = {}
    rows = zip(table["prompt"], table["reward_model"], table["extra_info"], images, strict=True)
    for number, (messages, reward, extra, pictures) in enumerate(rows):
        where = f"{path}: row {number}"
        try:
            name, truth = extra["id"], reward["ground_truth"]
            prompt = messages[0]["content"] if [m["role"] for m in messages] == ["user"] else ""
        except (TypeError, LookupError):
            name = truth = prompt = ""
        if not all(isinstance(text, str) and text for text in (name, prompt, truth)):
            raise UserError(f"{where}: lacks one of these texts; {NEEDED}")
        problem = Problem(name, prompt, truth, tuple(p.get("bytes") for p in pictures) if pictures is not None else ())
        if problem.id in problems:
            raise UserError(f"{where}: problem {problem.id} occurs twice; every id must be unique")
        check_images(problem, where)
        problems[problem.id] = problem
    return list(problems.values())


def check_images(problem: Problem, where: str) -> None:
    """Raise UserError if the images are no PNG or JPEG pictures, or not as many as the prompt has places for them."""
    places = problem.prompt.count(PLACEHOLDER)
    if len(problem.images) != places:
        raise UserError(f"{where}: {len(problem.images)} images, but {places} times {PLACEHOLDER} in the prompt")
    if not problem.images:
        return
    from PIL import Image

    for number, content in enumerate(problem.images):
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                image.verify()
        except Exception as error:  # what is raised depends on the format and on the damage
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            raise UserError(f"{where}: image {number} cannot be read as PNG or JPEG ({reason})") from None
