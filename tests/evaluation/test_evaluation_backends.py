"""Evaluation through vLLM (a stand-in engine), with images, and of models from the hub."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from support.configs import changed
from support.standin_vllm import installed

from bapo import tasks
from bapo.errors import UserError
from bapo.evaluation.checkpoints import checkpoint_digest
from bapo.evaluation.run import evaluate
from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory, data_directory
from bapo.experiments.schema import Config
from bapo.store.files import CHECKSUMS
from bapo.tasks.base import Problem
from bapo.tasks.files import read_problems, write_problems

World = tuple[Config, Path]
REVISION = "0123456789abcdef0123456789abcdef01234567"
SMOKE = ("scale=smoke", "tracking=none", "device=cpu")
DIAGRAMS = (
    "task=geometry",
    "evaluation.samples=4",
    "evaluation.benchmarks=[diagrams_val, diagrams_test]",
    "data.split_sizes={base: 8, train: 8, probe: 8, diagrams_val: 6, diagrams_test: 5}",
)


@pytest.fixture(scope="module")
def diagrams(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The same with a few diagrams and a model that reads images."""
    from bapo.engines.shared import models
    from bapo.engines.shared.models import images
    from bapo.tasks.job import make_data

    config = compose_config([*SMOKE, *DIAGRAMS, f"paths.results={tmp_path_factory.mktemp('results')}"])
    make_data(config)
    checkpoint = base_directory(config) / "checkpoint"
    model, tokenizer = models.build_scratch(config)
    models.save(model, images.scratch_processor(config, tokenizer), checkpoint)
    return config, checkpoint


@pytest.fixture(scope="module")
def prompts(world: World) -> set[tuple[int, ...]]:
    """The prompts of training, as tokens."""
    from transformers import AutoTokenizer

    from bapo.engines.shared.prompts import read_prompts

    config, checkpoint = world
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    files = [data_directory(config) / f"{name}.parquet" for name in config.evaluation.benchmarks]
    return {tuple(p.row.tokens) for file in files for p in read_prompts(file, tokenizer, 10**6)}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from bapo.engines.shared.models import images

    images.register_processor()
    with installed(tmp_path, monkeypatch) as module:
        yield module


def through_vllm(config: Config, **values: Any) -> Config:
    return changed(config, evaluation__backend="vllm", **values)


def table(folder: Path, name: str = "cd34") -> pd.DataFrame:
    return pd.read_parquet(folder / f"{name}.parquet")


# ------------------------------------------------------------------------------------------------ vLLM


def test_vllm_is_asked_by_the_template_of_the_configuration(
    world: World, prompts: set[tuple[int, ...]], engine: Any, tmp_path: Path
) -> None:
    """lm-eval takes the model's own when it builds its vLLM."""
    from transformers import AutoTokenizer

    config, checkpoint = world
    chatty = tmp_path / "chatty"
    shutil.copytree(checkpoint, chatty, ignore=shutil.ignore_patterns("trainer", CHECKSUMS))
    tokenizer = AutoTokenizer.from_pretrained(chatty)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] + ' =' }}{% endfor %}"
    tokenizer.save_pretrained(chatty)
    asked = []
    for template in ("plain", None):
        engine.asked.clear()
        evaluate(through_vllm(config, data__chat_template=template), chatty, tmp_path / f"eval_{template}")
        asked.append({tokens for tokens, _ in engine.asked})
    assert asked[0] == prompts and not asked[1] & asked[0]


def test_vllm_is_one_engine_with_every_sampling_key_and_no_seed(
    world: World, prompts: set[tuple[int, ...]], engine: Any, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    config, checkpoint = world
    config = through_vllm(config, evaluation__vllm__tensor_parallel_size=2, sampling__top_k=7)
    summary = evaluate(config, checkpoint, tmp_path / "eval")
    (keys,) = engine.engines  # one for both benchmarks
    s = config.sampling
    expected = {"model": str(checkpoint), "dtype": "bfloat16", "tensor_parallel_size": 2, "seed": 1234}
    expected |= {"gpu_memory_utilization": 0.9, "max_model_len": s.max_prompt_tokens + s.max_response_tokens}
    assert {key: keys[key] for key in expected} == expected
    assert Counter(tokens for tokens, _ in engine.asked) == Counter(dict.fromkeys(prompts, 32))
    end = AutoTokenizer.from_pretrained(checkpoint).eos_token
    keys = {"stop": [end], "max_tokens": s.max_response_tokens, "temperature": 1.0, "top_p": 1.0, "top_k": 7}
    keys |= {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    keys |= {"skip_special_tokens": True, "spaces_between_special_tokens": False}
    assert all(given == keys for _, given in engine.asked)
    for name in ("cd34", "cd4"):
        frame = table(tmp_path / "eval", name)
        assert len(frame) == 6 * 32 and frame.groupby("problem_id")["response"].nunique().min() > 20
        assert (frame["tokens"] == 5).all() and (frame["seed"] == 1234).all()
        assert summary["benchmarks"][name]["samples"] == 32


# ------------------------------------------------------------------------------------------------ images


def benchmark(path: Path) -> Any:
    from bapo.evaluation.tasks import Benchmark

    return Benchmark("diagrams_val", path, tasks.get("geometry"), max_tokens=4, samples=4)


def pixels(image: Any) -> str:
    if isinstance(image, bytes):
        image = Image.open(io.BytesIO(image))
    return hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()


def picture(shade: int, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (8, 8), shade if mode == "L" else (shade, 0, 0, 255)[: len(mode)]).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (Problem("b", "<image> and <image>", "1", (picture(1),)), "row 1: 1 images, but 2 times <image>"),
        (Problem("b", "<image>", "1", (picture(1)[:40],)), "row 1: image 0 is no readable picture"),
    ],
)
def test_broken_images_are_named(tmp_path: Path, problem: Problem, message: str) -> None:
    path = tmp_path / "val.parquet"
    write_problems(path, [Problem("a", "<image>x", "1", (picture(0),)), problem], "geometry", "geometry", "val")
    with pytest.raises(UserError, match=rf"val\.parquet: {message}"):
        read_problems(path)


def test_through_hf_multimodal(diagrams: World) -> None:
    """lm-eval's own model on our checkpoint. Without torchvision its processor is ours, without a video part."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from bapo.engines.shared.models import images

    images.register_processor()
    config, checkpoint = diagrams
    task = benchmark(data_directory(config) / "diagrams_val.parquet")
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
    for instance, problem in zip(task.instances, task.problems, strict=True):
        text, _, extra = instance.args
        assert "<|image_pad|>" in text and "<image>" not in text
        assert [pixels(image) for image in extra["visual"]] == [pixels(image) for image in problem.images]
        assert len(instance.resps) == 4 and len(set(instance.resps)) > 1


def test_through_vllm_vlm(diagrams: World, engine: Any, tmp_path: Path) -> None:
    """One engine for both benchmarks; every request brings its problem's image, and no seed."""
    pytest.importorskip("ray", reason="lm-eval's vllm-vlm imports ray, which comes with vLLM (here: the extra `verl`)")
    config, checkpoint = diagrams
    evaluate(through_vllm(config), checkpoint, tmp_path / "eval")
    (keys,) = engine.engines
    assert keys["limit_mm_per_prompt"] == {"image": 1} and keys["seed"] == config.evaluation.seed
    expected: Counter[str] = Counter()
    for name in ("diagrams_val", "diagrams_test"):
        for problem in read_problems(data_directory(config) / f"{name}.parquet"):
            expected[pixels(problem.images[0])] += 4
        assert table(tmp_path / "eval", name).groupby("problem_id")["response"].nunique().min() > 1
    assert Counter(pixels(image) for _, _, images in engine.asked for image in images) == expected
    for prompt, given, images in engine.asked:
        assert prompt.count("<|image_pad|>") == 1 == len(images)
        assert "seed" not in given and (given["temperature"], given["top_k"]) == (1.0, -1)


# ------------------------------------------------------------------------------------------------ the hub


def test_a_name_on_the_hub_is_known_by_its_revision(world: World, tmp_path: Path) -> None:
    assert checkpoint_digest("Qwen/Qwen2.5-Math-1.5B", REVISION) == f"Qwen/Qwen2.5-Math-1.5B@{REVISION}"
    with pytest.raises(UserError, match=r"model\.revision"):
        evaluate(changed(world[0], model__revision=None), "owner/model", tmp_path)
    with pytest.raises(UserError, match="no checkpoint here"):
        checkpoint_digest(Path("/nowhere/model"))


def test_a_model_from_the_hub_is_evaluated_at_its_revision(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights in the hub's cache as in a folder: the same samples."""
    from huggingface_hub import constants

    config, checkpoint = world
    shutil.copytree(checkpoint, tmp_path / "hub" / "models--owner--tiny" / "snapshots" / REVISION)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    config = changed(config, model__revision=REVISION, evaluation__benchmarks=["cd34"])
    hub, folder = (evaluate(config, c, tmp_path / n / "eval") for c, n in (("owner/tiny", "hub"), (checkpoint, "dir")))
    assert (hub["checkpoint"], hub["checkpoint_sha256"]) == (f"owner/tiny@{REVISION}", None)
    assert folder["checkpoint_sha256"] == checkpoint_digest(checkpoint)
    assert hub["identity"] != folder["identity"] and hub["benchmarks"] == folder["benchmarks"]
    pd.testing.assert_frame_equal(table(tmp_path / "hub" / "eval"), table(tmp_path / "dir" / "eval"))
    with pytest.raises(UserError, match="owner/tiny: "):
        evaluate(changed(config, model__revision="f" * 40), "owner/tiny", tmp_path / "other")
