"""The laptop's geometry: diagrams are what they say, splits are disjoint, chains are right, the end is graded."""

from __future__ import annotations

import io
import json
import re
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from support.late import LATE
from support.world import start_of

from bapo import tasks
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory, data_directory, run_directory
from bapo.tasks.files import read_problems
from bapo.tasks.geometry import figures
from bapo.tasks.geometry import generator as generators

if LATE:
    from scipy.stats import binom
    from support.resumed import assert_resumes_bit_for_bit

    from bapo.engines.shared.models import images
    from bapo.engines.shared.prompts import read_prompts
    from bapo.engines.torch.trainer import train
    from bapo.evaluation.backends import build
    from bapo.evaluation.run import run_benchmark
    from bapo.evaluation.tasks import Benchmark

TASK = tasks.get("geometry")
GENERATOR = generators.DiagramGenerator(angle_step=5, tilt=180)


def some(kind: str, count: int = 200) -> list[figures.Diagram]:
    return GENERATOR.draw(np.random.default_rng(1), kind, 20 * count)[:count]


@pytest.mark.parametrize("kind", figures.KINDS)
def test_the_coloured_angles_are_drawn_to_scale(kind):
    diagrams = some(kind)
    sectors = figures.draw(diagrams, 48).sectors
    drawn = np.rad2deg(np.arccos(np.clip((sectors[:, :, 1] * sectors[:, :, 2]).sum(-1), -1, 1)))
    if kind == "parallels":
        named = [generators.parallel_angles(d) for d in diagrams]
    else:
        named = [d.angles[:-1] for d in diagrams]
    assert np.abs(drawn - np.array(named)).max() < 1e-6


@pytest.mark.parametrize("kind", ["triangle", "quadrilateral"])
def test_sides_enclose_the_named_angles(kind):
    """From the segments alone: they close, and the angle at every corner is the named one, the plain one too."""
    diagrams = some(kind)
    segments = figures.draw(diagrams, 48).segments
    assert np.abs(segments[:, :, 1] - np.roll(segments[:, :, 0], -1, 1)).max() < 1e-9
    ahead = segments[:, :, 1] - segments[:, :, 0]
    behind = -np.roll(ahead, 1, 1)
    cosine = (ahead * behind).sum(-1) / np.linalg.norm(ahead, axis=-1) / np.linalg.norm(behind, axis=-1)
    assert np.abs(np.rad2deg(np.arccos(cosine)) - [d.angles for d in diagrams]).max() < 1e-6


def test_parallel_lines_are_parallel_and_the_figure_stays_on_the_canvas():
    for kind in figures.KINDS:
        diagrams = some(kind)
        segments = figures.draw(diagrams, 48).segments
        margin = figures.MARGIN - 1e-9
        assert segments.min() >= margin and segments.max() <= 48 - margin
        extent = np.ptp(segments.reshape(len(diagrams), -1, 2), 1).max(1)
        assert np.abs(extent - [d.size for d in diagrams]).max() < 1e-6
        if kind == "parallels":
            lines = segments[:, :2, 1] - segments[:, :2, 0]
            assert np.abs(lines[:, 0, 0] * lines[:, 1, 1] - lines[:, 0, 1] * lines[:, 1, 0]).max() < 1e-6


def test_a_picture_shows_the_colours_where_the_angles_are():
    diagrams = some("quadrilateral", 40)
    drawing, right = figures.draw(diagrams, 48), []
    for content, sectors in zip(figures.render(diagrams, 48), drawing.sectors, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(content)), dtype=int)
        assert pixels.shape == (48, 48, 3)
        assert (pixels == 255).all(-1).mean() > 0.4  # white paper
        for channel, (vertex, first, second) in zip((0, 2, 1), sectors, strict=True):
            inside = (first + second) / np.linalg.norm(first + second)
            x, y = (vertex + 5 * inside).astype(int)
            right.append(pixels[y, x].argmax() == channel and pixels[y, x].min() < 120)
    assert np.mean(right) > 0.9  # here and there another side runs through the place


@pytest.mark.parametrize(
    "diagram, question, steps, answer",
    [
        (("triangle", (50, 60, 70), 0), "third", "50 + 60 = 110 , 180 - 110 = 70", 70),
        (("triangle", (50, 60, 70), 0), "exterior", "50 + 60 = 110", 110),
        (("triangle", (50, 60, 70), 0), "difference", "60 - 50 = 10", 10),
        (("quadrilateral", (80, 90, 100, 90), 80), "fourth", "80 + 90 + 100 = 270 , 360 - 270 = 90", 90),
        (("parallels", (70,), 4 * 1 + 3), "other", "110", 110),
        (("parallels", (70,), 4 * 0 + 3), "other", "180 - 70 = 110", 110),
    ],
)
def test_the_steps_and_the_answer_of_a_question(diagram, question, steps, answer):
    instance = generators.DiagramProblem(figures.Diagram(*diagram, 0, 0, 40, 50, 50), question)
    assert generators.chain(instance) == (steps, answer)


def triples(made: list[generators.DiagramProblem]) -> set[str]:
    """Kind, question and angles, the angles read from the drawing: of parallel lines those of both sectors."""
    found = set()
    for kind in figures.KINDS:
        instances = [i for i in made if i.diagram.kind == kind]
        sectors = figures.draw([i.diagram for i in instances], 48).sectors
        cosines = np.clip((sectors[:, :, 1] * sectors[:, :, 2]).sum(-1), -1, 1)
        angles = np.rint(np.rad2deg(np.arccos(cosines))).astype(int).tolist()
        found |= {f"{kind} {i.question} {shown}" for i, shown in zip(instances, angles, strict=True)}
    return found


@pytest.mark.parametrize(
    ("scale", "variant"), [("laptop", ""), ("smoke", ""), ("gpu", ""), *(("laptop", f"+angles_{n}") for n in (5, 44))]
)
def test_what_the_probe_and_the_benchmarks_ask_is_not_trained_on(scale, variant):
    """No triple of kind, angles and question is in training and in another split; base and train share theirs."""
    words = [f"scale={scale}", "task=geometry", "tracking=none"]
    data = compose_config([*words, f"model=qwen2.5-vl-325k{variant}"] if variant else words).data
    generator, random = generators.DiagramGenerator.of(data), np.random.default_rng(3)
    made = {s: generator.instances(random, min(size, 3000), s) for s, size in data.split_sizes.items()}
    asked = {split: triples(instances) for split, instances in made.items()}
    names = {split: {i.diagram.name for i in instances} for split, instances in made.items()}
    pictures = {s: set(figures.render([i.diagram for i in found[:120]], generator.canvas)) for s, found in made.items()}
    for a, b in combinations(asked, 2):
        assert {a, b} == {"base", "train"} or not asked[a] & asked[b]
        assert not names[a] & names[b] and not pictures[a] & pictures[b]
    if generator.angle_step == 10:  # few enough for both to have most of them
        assert len(asked["train"] & asked["base"]) > len(asked["train"]) / 2
    # the angles themselves are taught, each with other ones
    single = {split: {int(x) for name in names for x in re.findall("[0-9]+", name)} for split, names in asked.items()}
    assert all(angles <= single["base"] for angles in single.values())


def test_another_draw_holds_out_other_combinations():
    asked = []
    for held_out in ("angles", "angles_5", "angles_44"):
        generator = GENERATOR.model_copy(update={"angle_step": 10, "held_out": held_out})
        made = generator.instances(np.random.default_rng(3), 400, "diagrams_test")
        asked.append({generators.shown_angles(i.diagram) for i in made})
    # a tenth of some 1,080 combinations each, so that two draws share a tenth of theirs
    assert all(len(one & other) < min(len(one), len(other)) / 4 for one, other in combinations(asked, 2))


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        ("angles_", "data.generator.held_out=angles_: must be angles or angles_N"),
        ("angles_1", "of the kind parallels .* or try another N in its held_out=angles_N"),
    ],
)
def test_what_cannot_be_held_out_is_named(held_out: str, message: str) -> None:
    data = compose_config(["scale=laptop", "task=geometry", f"data.generator.held_out={held_out}"]).data
    with pytest.raises(UserError, match=message):
        for split in data.split_sizes:
            generators.DiagramGenerator.of(data).instances(np.random.default_rng(3), 30, split)


def test_a_form_is_one_for_parallel_lines_and_their_mirror_image():
    """A slope of 60 shows, mirrored, what a slope of 120 shows with the sectors at the places before."""
    one, two = (
        generators.DiagramProblem(figures.Diagram("parallels", (slope,), shape, 0, mirror, 40, 50, 50), "other")
        for slope, shape, mirror in ((60, 4 * 0 + 0, 0), (120, 4 * 1 + 1, 1))
    )
    assert one.triple == two.triple == "parallels:60-60:other"
    assert figures.render([one.diagram], 48) == figures.render([two.diagram], 48)


def test_noise_gives_other_steps_for_the_same_question():
    made = generators.DiagramGenerator(noise=0.5).documents(np.random.default_rng(4), 600)
    noisy = [(i, text) for i, text, wrong in made if wrong]
    assert 0.35 < len(noisy) / 600 < 0.5
    for instance, text in noisy:
        right = {generators.chain(i)[0] for i, _, _ in made if i.question == instance.question}
        assert text in right - {generators.chain(instance)[0]}
    clear = generators.DiagramGenerator(noise=0.0).documents(np.random.default_rng(4), 60)
    assert not any(wrong for _, _, wrong in clear)


TRUTH = json.dumps({"answer": 70, "format": "chain"})


@pytest.mark.parametrize(
    "response, correct, parsed",
    [
        ("50+60=110,180-110=70", True, True),
        ("70", True, True),
        ("70=110", False, True),
        ("070", True, True),
        ("=,+", False, False),
        ("9" * 100_000 + "=70", True, True),
        ("9" * 100_000, False, True),
        ("\u0667\u0660", False, False),  # digits, but not these
    ],
)
def test_the_last_number_counts(response, correct, parsed):
    verdict = TASK.verify(response, TRUTH)
    assert (verdict.correct, verdict.parsed) == (correct, parsed)
    assert (verdict.reason == "") == correct


def test_data_on_disk(tmp_path):
    sizes = "data.split_sizes={base: 90, train: 30, probe: 9, diagrams_val: 9, diagrams_test: 9}"
    config = compose_config(["scale=laptop", "task=geometry", "tracking=none", sizes])
    counts = TASK.write_data(config, tmp_path)
    assert counts["train"]["problems"] == 30 and "base" not in counts
    problems = read_problems(tmp_path / "diagrams_val.parquet")
    assert len(problems) == 9
    tokenizer = TASK.build_tokenizer(config)
    processor = images.scratch_processor(config, tokenizer)
    for problem in problems:
        assert problem.prompt.count("<image>") == len(problem.images) == 1
        kind, question = problem.prompt.removeprefix("<image>").split()[:2]
        assert problem.id.startswith(f"geometry:{kind}:") and problem.id.endswith(f":{question}")
        assert Image.open(io.BytesIO(problem.images[0])).size == (48, 48)
        assert TASK.verify(TASK.gold_responses(problem.ground_truth)[0], problem.ground_truth).correct
    rows = read_prompts(tmp_path / "train.parquet", tokenizer, config.sampling.max_prompt_tokens, processor)
    assert all(len(p.row.tokens) == 9 and p.row.images.pixel_values.shape == (16, 432) for p in rows)
    with pytest.raises(UserError, match="have images, which this model cannot read"):
        read_prompts(tmp_path / "train.parquet", tokenizer, 16)


def test_a_run_on_diagrams_goes_on_from_its_middle_to_the_same_weights(tmp_path):
    small = ["scale=smoke", "task=geometry", "tracking=none", "method=bapo", "base.iterations=120", "train.steps=6"]
    small += ["data.split_sizes={base: 600, train: 16, probe: 4, diagrams_val: 6, diagrams_test: 6}", "probe.prompts=4"]
    small += ["train.batch_size=8", "train.mini_batch_size=4", "checkpoint.every=2"]
    small += [f"paths.results={tmp_path}", "checkpoint.keep_state=true"]
    config = start_of(small)
    train(config)
    assert_resumes_bit_for_bit(run_directory(config), small)


@pytest.mark.full
def test_the_diagram_is_read_and_without_it_accuracy_falls_to_guessing(tmp_path):
    """The control: each problem with another one's diagram, after a base training of half a minute."""
    sizes = "{base: 6000, train: 32, probe: 8, diagrams_val: 200, diagrams_test: 8}"
    words = [f"data.split_sizes={sizes}", "data.generator.noise=0", "base.iterations=1500"]
    words += ["evaluation.benchmarks=[diagrams_val]", f"paths.results={tmp_path}"]
    config = start_of(["scale=laptop", "task=geometry", "tracking=none", *words])
    checkpoint = base_directory(config) / "checkpoint"
    frame = pd.read_parquet(data_directory(config) / "diagrams_val.parquet")
    model, found = build(config, checkpoint, lambda count: None), []
    for name, order in (("own", range(200)), ("control", np.random.default_rng(0).permutation(200))):
        path = tmp_path / f"{name}.parquet"
        frame.assign(images=[frame["images"][i] for i in order]).to_parquet(path)
        task = Benchmark("diagrams_val", path, TASK, max_tokens=config.sampling.max_response_tokens)
        found.append(run_benchmark(model, task)[1]["correct"].mean())
    own, control = found
    guessing = 0.11  # drawing from the answers to each question
    assert own > max(guessing + 0.04, control)
    assert 200 * control <= binom.ppf(0.999, 200, guessing)
