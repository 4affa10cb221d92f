"""What vLLM is given, problems with images, and evaluation of models from the hub."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from support.configs import changed

from bapo.errors import UserError
from bapo.evaluation import backends
from bapo.evaluation.backends import WITH_IMAGES, build
from bapo.evaluation.checkpoints import checkpoint_digest
from bapo.evaluation.run import evaluate
from bapo.experiments.schema import Config
from bapo.tasks.base import Problem
from bapo.tasks.files import read_problems, write_problems

World = tuple[Config, Path]
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("on_cpu", [False, True])
@pytest.mark.parametrize(("images", "model"), [(0, "vllm"), (2, "vllm-vlm")])
def test_vllms_engine_is_what_the_configuration_says(
    world: World, monkeypatch: pytest.MonkeyPatch, images: int, model: str, on_cpu: bool
) -> None:
    """The arguments of lm-eval's model; what they make real vLLM do: test_evaluation_vllm.py.

    On a GPU it has the variables of training, but where the user has set them.
    """
    from lm_eval.api import registry

    given: dict[str, Any] = {}
    monkeypatch.setattr(
        registry, "get_model", lambda name: lambda **keys: given.update(keys, model=name, env={**os.environ})
    )
    monkeypatch.setattr(backends.environment, "vllm_on_cpu", lambda: on_cpu)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)  # verl's configuration was printed in this process
    monkeypatch.setattr(os, "environ", {**os.environ, "TRITON_CACHE_DIR": "/mine"})
    config, checkpoint = world
    config = changed(config, evaluation__backend="vllm", evaluation__vllm__tensor_parallel_size=2)
    build(config, checkpoint, lambda count: None, images)
    s = config.sampling
    expected = {"model": model, "pretrained": str(checkpoint), "revision": None, "dtype": "bfloat16", "seed": 1234}
    expected |= {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.9, "add_bos_token": False}
    expected |= {"max_model_len": s.max_prompt_tokens + s.max_response_tokens}
    expected |= {"max_images": 2, "batch_size": WITH_IMAGES} if images else {"batch_size": "auto"}
    assert {key: given.get(key) for key in expected} == expected and ("max_images" in given) == bool(images)
    variables = {"TRITON_CACHE_DIR": "/mine", "VLLM_USE_V2_MODEL_RUNNER": None if on_cpu else "0"}
    assert {name: given["env"].get(name) for name in variables} == variables and given["enforce_eager"] == on_cpu


def picture(shade: int, form: str = "PNG") -> bytes:
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(out := io.BytesIO(), form)
    return out.getvalue()


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (Problem("b", "<image> and <image>", "1", (picture(1),)), "row 1: 1 images, but 2 times <image>"),
        (Problem("b", "<image>", "1", (picture(1)[:40],)), "row 1: image 0 cannot be read"),
        (Problem("b", "<image>", "1", (picture(1, "EPS"),)), "row 1: image 0 cannot be read as PNG or JPEG"),
    ],
)
def test_broken_images_are_named(tmp_path: Path, problem: Problem, message: str) -> None:
    path, two = tmp_path / "val.parquet", (picture(0), picture(0, "JPEG"))
    write_problems(path, [Problem("a", "<image><image>x", "1", two), problem], "geometry", "geometry", "val")
    with pytest.raises(UserError, match=rf"val\.parquet: {message}"):
        read_problems(path)


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
    tables = [pd.read_parquet(tmp_path / name / "eval" / "cd34.parquet") for name in ("hub", "dir")]
    pd.testing.assert_frame_equal(*tables)
    with pytest.raises(UserError, match="owner/tiny: "):
        evaluate(changed(config, model__revision="f" * 40), "owner/tiny", tmp_path / "other")
