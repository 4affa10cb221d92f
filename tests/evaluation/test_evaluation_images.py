"""Benchmarks with images: what reaches a model, the control with shuffled images, lm-eval's own models that see."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import DictConfig
from PIL import Image
from support.configs import put
from support.standin_vllm import installed

from bapo import tasks
from bapo.errors import UserError
from bapo.evaluation import documents
from bapo.evaluation.run import evaluate
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import evaluation_identity
from bapo.experiments.places import base_directory, data_directory
from bapo.tasks.base import Problem
from bapo.tasks.files import read_problems, write_problems

WORLD = (
    "scale=smoke",
    "task=geometry",
    "tracking=none",
    "device=cpu",
    "evaluation.samples=4",
    "evaluation.benchmarks=[diagrams_val, diagrams_test]",
    "data.split_sizes={base: 8, train: 8, probe: 8, diagrams_val: 6, diagrams_test: 5}",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[DictConfig, Path]:
    """The configuration of a few diagrams and a model that has learnt nothing."""
    from bapo.engines.shared import models
    from bapo.engines.shared.models import images
    from bapo.tasks.job import make_data

    config = compose_config([*WORLD, f"paths.results={tmp_path_factory.mktemp('results')}"])
    make_data(config)
    checkpoint = base_directory(config) / "checkpoint"
    model, tokenizer = models.build_scratch(config)
    models.save(model, images.scratch_processor(config, tokenizer), checkpoint)
    return config, checkpoint


def changed(config: DictConfig, **values: Any) -> DictConfig:
    """A copy with some keys set; ``a__b`` stands for a.b."""
    config = config.copy()
    for key, value in values.items():
        put(config, key, value)
    return config


def benchmark(config: DictConfig, name: str = "diagrams_val", **options: Any) -> Any:
    from bapo.evaluation.tasks import Benchmark

    path = data_directory(config) / f"{name}.parquet"
    return Benchmark(name, path, tasks.get("geometry"), max_tokens=4, samples=4, **options)


def problems(config: DictConfig, name: str = "diagrams_val") -> list[Problem]:
    return read_problems(data_directory(config) / f"{name}.parquet")


def pixels(image: Any) -> str:
    if isinstance(image, bytes):
        image = Image.open(io.BytesIO(image))
    return hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()


def picture(shade: int, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (8, 8), shade if mode == "L" else (shade, 0, 0, 255)[: len(mode)]).save(out, "PNG")
    return out.getvalue()


# ------------------------------------------------------------------------------------------------ documents


def test_a_document_holds_its_images_in_rgb(world: tuple[DictConfig, Path]) -> None:
    task, made = benchmark(world[0]), problems(world[0])
    assert task.images == 1 and task.MULTIMODAL
    for document, problem in zip(task.eval_docs, made, strict=True):
        (image,) = document["images"]
        assert image.mode == "RGB" and pixels(image) == pixels(problem.images[0])
        assert document["prompt"].count("<image>") == 1


@pytest.mark.parametrize("mode", ["L", "RGBA", "RGB"])
def test_pictures_of_every_mode_become_rgb(mode: str) -> None:
    data = documents.to_dataset([Problem("a", "<image>", "1", (picture(200, mode),))])
    (image,) = data[0]["images"]
    assert image.mode == "RGB" and image.getpixel((0, 0))[0] == 200


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (Problem("b", "no place for it", "1", (picture(1),)), "row 1: 1 images, but 0 times <image> in the prompt"),
        (Problem("b", "<image> and <image>", "1", (picture(1),)), "row 1: 1 images, but 2 times <image>"),
        (Problem("b", "<image>", "1", (b"no picture",)), "row 1: image 0 is no readable picture"),
        (Problem("b", "<image>", "1", (picture(1)[:40],)), "row 1: image 0 is no readable picture"),
    ],
)
def test_broken_images_are_named(tmp_path: Path, problem: Problem, message: str) -> None:
    path = tmp_path / "val.parquet"
    write_problems(path, [Problem("a", "<image>x", "1", (picture(0),)), problem], "geometry", "geometry", "val")
    with pytest.raises(UserError, match=rf"val\.parquet: {message}"):
        read_problems(path)


# ------------------------------------------------------------------------------------------------ the control


def shuffled(images: list[bytes], seed: int = 0) -> list[bytes]:
    given = [Problem(str(i), f"question {i}", "1", (image,)) for i, image in enumerate(images)]
    return [problem.images[0] for problem in documents.shuffle_images(given, seed, "here")]


def test_no_problem_keeps_its_image() -> None:
    """Nor an equal one of another problem: Geometry3K asks several questions about one diagram."""
    different = [bytes([i]) for i in range(7)]
    shared = [b"a", b"b", b"a", b"c", b"b", b"a", b"d", b"e"]
    half = [b"a"] * 4 + [b"b", b"b", b"b", b"c"]
    orders = set()
    for images in (different, shared, half, [b"a", b"b"]):
        for seed in range(50):
            found = shuffled(images, seed)
            assert Counter(found) == Counter(images)
            assert all(own != other for own, other in zip(images, found, strict=True))
            assert found == shuffled(images, seed)
            orders.add((len(images), tuple(found)))
    assert len({o for o in orders if o[0] == 7}) > 40
    with pytest.raises(UserError, match=r"here: .*3 of 5 problems share one image"):
        shuffled([b"a", b"a", b"a", b"b", b"c"])
    with pytest.raises(UserError, match="the same number of images"):
        documents.shuffle_images([Problem("a", "", "", (b"a",)), Problem("b", "", "", (b"a", b"b"))], 0, "here")


def test_problems_with_one_question_change_among_themselves() -> None:
    """So that the question still fits the image; what has nobody of its kind changes with the others left over."""
    prompts = ["third"] * 4 + ["fourth"] * 3 + ["lone", "other"]
    given = [Problem(str(i), p, "1", (f"{p} {i}".encode(),)) for i, p in enumerate(prompts)]
    for seed in range(20):
        found = documents.shuffle_images(given, seed, "here")
        for own, other in zip(given[:7], found[:7], strict=True):
            assert other.images != own.images and other.images[0].startswith(own.prompt.encode())
        assert [f.images for f in found[7:]] == [given[8].images, given[7].images]
    lone = [*given[:7], given[7]]  # it must take one of the others', and so all change with all
    found = documents.shuffle_images(lone, 0, "here")
    assert all(a.images != b.images for a, b in zip(lone, found, strict=True))


def test_shuffling_is_an_option_that_changes_nothing_but_the_images(world: tuple[DictConfig, Path]) -> None:
    config = world[0]
    own, other = benchmark(config), benchmark(config, images="shuffled", image_seed=3)
    for a, b in zip(own.eval_docs, other.eval_docs, strict=True):
        assert {k: a[k] for k in ("id", "prompt", "ground_truth")} == {
            k: b[k] for k in ("id", "prompt", "ground_truth")
        }
        assert pixels(a["images"][0]) != pixels(b["images"][0])
    control = changed(config, evaluation__images="shuffled")
    assert evaluation_identity(control) != evaluation_identity(config)
    with pytest.raises(UserError, match=r"^evaluation\.images=mixed: must be"):
        compose_config(["evaluation.images=mixed"])


def test_a_text_benchmark_has_no_images(tmp_path: Path) -> None:
    from bapo.evaluation.tasks import Benchmark

    truth = json.dumps({"numbers": [1, 2, 3], "target": 6, "format": "answer"})
    write_problems(tmp_path / "text.parquet", [Problem("a", "1 2 3", truth)], "countdown", "planning", "text")
    task = Benchmark(
        "text", tmp_path / "text.parquet", tasks.get("countdown"), max_tokens=4, samples=2, images="shuffled"
    )
    assert task.images == 0 and not getattr(task, "MULTIMODAL", False) and "images" not in task.eval_docs[0]


# ------------------------------------------------------------------------------------------------ models that see


def test_the_torch_engine_sees_the_images(world: tuple[DictConfig, Path], tmp_path: Path) -> None:
    """Other images, other samples; everything else about the two evaluations is the same."""
    config, checkpoint = world
    frames = {}
    for images in ("own", "shuffled"):
        summary = evaluate(changed(config, evaluation__images=images), checkpoint, tmp_path / images)
        assert summary["benchmarks"]["diagrams_val"]["samples"] == 4
        frames[images] = pd.read_parquet(tmp_path / images / "diagrams_val.parquet")
    assert frames["own"]["problem_id"].equals(frames["shuffled"]["problem_id"])
    assert len(frames["own"]) == 6 * 4
    assert not frames["own"]["response"].equals(frames["shuffled"]["response"])


def test_through_hf_multimodal(world: tuple[DictConfig, Path]) -> None:
    """lm-eval's own model on our checkpoint. Without torchvision its processor is ours, without a video part."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from bapo.engines.shared.models import images

    images.register_processor()
    config, checkpoint = world
    task = benchmark(config)
    found = simple_evaluate(
        model="hf-multimodal",
        model_args={"pretrained": str(checkpoint), "max_length": 64},
        device="cpu",
        batch_size=8,
        tasks=[task],
        apply_chat_template=True,
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=1,
    )
    assert found["n-samples"]["diagrams_val"] == {"original": 6, "effective": 6}
    for instance, problem in zip(task.instances, problems(config), strict=True):
        text, _, extra = instance.args
        assert "<|image_pad|>" in text and "<image>" not in text
        assert [pixels(image) for image in extra["visual"]] == [pixels(image) for image in problem.images]
        assert len(instance.resps) == 4 and len(set(instance.resps)) > 1


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from bapo.engines.shared.models import images

    images.register_processor()
    with installed(tmp_path, monkeypatch) as module:
        yield module


def test_through_vllm_vlm(world: tuple[DictConfig, Path], engine: Any, tmp_path: Path) -> None:
    """One engine for both benchmarks; every request brings its problem's image, and no seed."""
    pytest.importorskip("ray", reason="lm-eval's vllm-vlm imports ray, which comes with vLLM (here: the extra `verl`)")
    config, checkpoint = world
    summary = evaluate(changed(config, evaluation__backend="vllm"), checkpoint, tmp_path / "eval")
    (keys,) = engine.engines
    assert keys["limit_mm_per_prompt"] == {"image": 1} and keys["seed"] == config.evaluation.seed
    expected: Counter[str] = Counter()
    for name in ("diagrams_val", "diagrams_test"):
        for problem in problems(config, name):
            expected[pixels(problem.images[0])] += 4
        assert summary["benchmarks"][name]["samples"] == 4
        frame = pd.read_parquet(tmp_path / "eval" / f"{name}.parquet")
        assert frame.groupby("problem_id")["response"].nunique().min() > 1
    assert Counter(pixels(image) for _, _, images in engine.asked for image in images) == expected
    for prompt, given, images in engine.asked:
        assert prompt.count("<|image_pad|>") == 1 == len(images)
        assert "seed" not in given and (given["temperature"], given["top_k"]) == (1.0, -1)


def test_a_server_is_refused(world: tuple[DictConfig, Path], tmp_path: Path) -> None:
    config = changed(world[0], evaluation__backend="server", evaluation__server__base_url="http://127.0.0.1:9/v1")
    with pytest.raises(UserError, match=r"a server's completions take no images; use evaluation\.backend=vllm"):
        evaluate(config, world[1], tmp_path)
