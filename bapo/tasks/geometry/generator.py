"""Problems about diagrams: which angle is asked for, and the chain of steps that leads to it."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from bapo.tasks import generated
from bapo.tasks.generated import BARREN, Options, Share, too_many
from bapo.tasks.geometry.figures import KINDS, Diagram, quadrilateral_corners
from bapo.validate import matching, wrong

#: Share of all combinations of angles of a kind that each split owns; base and train hold the taught ones.
SHARES = {"taught": 0.75, "probe": 0.07, "diagrams_val": 0.08, "diagrams_test": 0.10}
TAUGHT_SHARES = {"base": 0.75, "train": 0.25}  # of the diagrams of those that are taught
SPLITS = (*TAUGHT_SHARES, *list(SHARES)[1:])
#: Questions about each kind of diagram.
QUESTIONS = {"triangle": ("third", "exterior", "difference"), "quadrilateral": ("fourth",), "parallels": ("other",)}
_CHUNK = 1 << 12  # diagrams drawn at a time; part of what the data are, like the seed


class DiagramProblem(NamedTuple):
    """Holds a diagram and a question about it."""

    diagram: Diagram
    question: str

    @property
    def name(self) -> str:
        return f"geometry:{self.diagram.name}:{self.question}"

    @property
    def triple(self) -> str:
        """Name what is asked, whatever the diagram's pose: its kind, its angles and the question."""
        return f"{shown_angles(self.diagram)}:{self.question}"

    @property
    def prompt(self) -> str:
        return f"<image>{self.diagram.kind} {self.question} :"


def to_instance(name: str) -> DiagramProblem:
    """Return the problem of a name."""
    _, kind, angles, pose, question = name.split(":")
    return DiagramProblem(Diagram(kind, tuple(map(int, angles.split("-"))), *map(int, pose.split(","))), question)


def chain(instance: DiagramProblem) -> tuple[str, int]:
    """Return (steps that lead to the answer, answer in degrees): ``50 + 60 = 110 , 180 - 110 = 70`` and 70."""
    diagram, question = instance
    if question == "other":
        red, blue = parallel_angles(diagram)
        return (str(red), red) if red == blue else (f"180 - {red} = {blue}", blue)
    red, blue = diagram.angles[:2]
    if question == "difference":
        more, less = max(red, blue), min(red, blue)
        return f"{more} - {less} = {more - less}", more - less
    total = f"{red} + {blue}"
    if question == "exterior":
        return f"{total} = {red + blue}", red + blue
    if question == "third":
        return f"{total} = {red + blue} , 180 - {red + blue} = {180 - red - blue}", 180 - red - blue
    angle_sum = sum(diagram.angles[:3])
    return f"{total} + {diagram.angles[2]} = {angle_sum} , 360 - {angle_sum} = {360 - angle_sum}", 360 - angle_sum


def parallel_angles(diagram: Diagram) -> tuple[int, int]:
    """Return the red and the blue angle of parallel lines, in degrees."""
    slope = diagram.angles[0]
    red, blue = (slope if corner % 2 == 0 else 180 - slope for corner in divmod(diagram.shape, 4))
    return red, blue


def shown_angles(diagram: Diagram) -> str:
    """Name a diagram's kind and angles.

    Of parallel lines they are the red and the blue one. By the slope, a diagram and its mirror image, which shows the
    same two angles, would have different names.
    """
    angles = parallel_angles(diagram) if diagram.kind == "parallels" else diagram.angles
    return f"{diagram.kind}:{'-'.join(map(str, angles))}"


def owner(diagram: Diagram, held_out: str = "angles") -> str:
    """Return the one split that a diagram may appear in. held_out: of the generator."""
    split = generated.owner(shown_angles(diagram) + held_out.removeprefix("angles"), SHARES)
    return generated.owner(diagram.name, TAUGHT_SHARES) if split == "taught" else split


class DiagramGenerator(Options):
    """Draws diagrams whose angles are multiples of ``angle_step`` degrees, and questions about them.

    angle_min: the least angle of a figure; tilt: the greatest rotation either way; size_min, canvas: the figure's least
    size and the image's, in pixels; noise: the share of base documents whose steps belong to another diagram; held_out:
    what the probe and the benchmarks have and base and train have not: combinations of angles. "angles_1", "angles_2",
    ... hold out other combinations than "angles".
    """

    angle_step: Literal[1, 2, 3, 4, 5, 6, 9, 10, 12, 15] = 10  # divides 180
    angle_min: Annotated[int, Field(ge=10, le=45)] = 20
    tilt: Annotated[int, Field(ge=0, le=180)] = 15
    size_min: Annotated[int, Field(ge=12)] = 34
    canvas: Annotated[int, Field(ge=24, le=1024)] = 48
    noise: Share = 0.5
    held_out: Annotated[str, matching("angles(_[0-9]+)?", "angles or angles_N, such as angles_5")] = "angles"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Raise UserError where the least figure is larger than the image."""
        if self.size_min > self.canvas - 4:
            cure = f"must be at most canvas - 4 = {self.canvas - 4}"
            raise wrong(None, "data.generator.size_min", self.size_min, cure)
        return self

    def draw(self, rng: np.random.Generator, kind: str, count: int) -> list[Diagram]:
        """Draw ``count`` random diagrams of a kind and keep those whose angles and sides are within the bounds."""
        steps = np.arange(-(-self.angle_min // self.angle_step), 180 // self.angle_step)
        angles = self.angle_step * rng.choice(steps, size=(count, KINDS[kind]))
        shape = np.zeros(count, dtype=np.int64)
        valid = angles.max(1) <= 180 - self.angle_min
        if kind == "triangle":
            angles[:, 2] = 180 - angles[:, :2].sum(1)
            valid &= angles[:, 2] >= self.angle_min
        elif kind == "quadrilateral":
            angles[:, 3] = 360 - angles[:, :3].sum(1)
            shape = rng.integers(50, 151, count)
            valid &= (angles.min(1) >= 40) & (angles.max(1) <= 150)
            valid &= quadrilateral_corners(angles, shape)[1]
        else:
            shape = rng.integers(0, 16, count)
            valid &= (angles[:, 0] >= 40) & (angles[:, 0] <= 140)  # else the lines are far apart and the figure flat
        pose = np.stack(
            [
                shape,
                rng.integers(-self.tilt, self.tilt + 1, count),
                rng.integers(0, 2, count),
                rng.integers(self.size_min, self.canvas - 3, count),
                rng.integers(0, 101, count),
                rng.integers(0, 101, count),
            ],
            1,
        )
        rows = zip(angles[valid].tolist(), pose[valid].tolist(), strict=True)
        return [Diagram(kind, tuple(a), *p) for a, p in rows]

    def instances(self, rng: np.random.Generator, count: int, split: str) -> list[DiagramProblem]:
        """Draw ``count`` problems about distinct diagrams of ``split``, each kind equally often, in random order.

        Raises UserError if so many cannot be found.
        """
        instances: list[DiagramProblem] = []
        for number, kind in enumerate(KINDS):
            kind_count = count // len(KINDS) + (number < count % len(KINDS))
            problems: dict[str, DiagramProblem] = {}
            barren = 0
            while len(problems) < kind_count:
                before = len(problems)
                for diagram in self.draw(rng, kind, _CHUNK):
                    if len(problems) < kind_count and owner(diagram, self.held_out) == split:
                        question = QUESTIONS[kind][int(rng.integers(len(QUESTIONS[kind])))]
                        problems.setdefault(diagram.name, DiagramProblem(diagram, question))
                barren = barren + 1 if len(problems) == before else 0
                if barren == BARREN:
                    more = "draw from more, or try another N in its held_out=angles_N"
                    raise too_many(split, kind_count, len(problems), f"diagrams of the kind {kind}", more)
            instances += problems.values()
        return [instances[i] for i in rng.permutation(count)]

    def documents(self, rng: np.random.Generator, count: int) -> list[tuple[DiagramProblem, str, bool]]:
        """Draw ``count`` of (problem of the base split, steps, noisy).

        A noisy one has the steps of another diagram about which the same is asked. Raises UserError as
        :meth:`instances` does.
        """
        instances = self.instances(rng, count, "base")
        steps = [chain(instance)[0] for instance in instances]
        noisy = rng.random(count) < self.noise
        for question in sorted({instance.question for instance in instances}):
            indices = np.flatnonzero(noisy & np.array([instance.question == question for instance in instances]))
            shuffled = [steps[i] for i in rng.permutation(indices)]
            for index, text in zip(indices, shuffled, strict=True):
                steps[index] = text
        return [(i, text, text != chain(i)[0]) for i, text in zip(instances, steps, strict=True)]
