"""verl's arguments for vLLM's server, of every model from the hub, read by vLLM's own parser; no server is started."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")
pytest.importorskip("vllm", reason="vLLM is not installed; containers/vllm_cpu/install makes its environment")

from support.paths import ROOT
from support.studies import hub_models
from support.vllm_arguments import QWEN2, QWEN3, arguments, described

from bapo.engines.verl import verl_config
from bapo.experiments import compose as configuration

#: what fits onto CPU cores, and how it is asked for
SMALL, ON_CPU = "smollm2-135m-instruct", ["scale=pocket", "task=countdown", "method=bapo", "engine=verl", "device=cpu"]
#: every cell that verl runs on GPUs; the scale gpu, whose usual engine is the other one, has models of its own. vLLM
#: asks the class of a model that reads pictures, which cannot be imported without the kernels of a GPU's build
CELLS = [c for c in (*hub_models(), ("gpu", "countdown", ""), ("gpu", "mathematics", "")) if c[1] != "geometry"]


@pytest.mark.parametrize(("scale", "task", "model"), hub_models())
def test_vllm_reads_what_verl_gives_it(scale: str, task: str, model: str) -> None:
    config = configuration.compose_config([f"scale={scale}", f"task={task}", f"model={model}", "method=bapo"])
    found = arguments(verl_config.resolve(config, device="cuda"))
    assert_fits(found, config)
    assert found.dtype == "bfloat16" and found.enable_sleep_mode
    assert found.gpu_memory_utilization == config.verl.gpu_memory_utilization
    assert found.tensor_parallel_size == (2 if config.model.parameters > 6e9 else 1)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    """The configuration of every cell, and a file with the arguments of their engines.

    What vLLM notes of a model's class lies beside it: the pretended GPU could not import that either.
    """
    from vllm.model_executor.models.registry import ModelRegistry

    folder = tmp_path_factory.mktemp("engines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CACHE_ROOT", str(folder))
        for name in (QWEN2, QWEN3):
            assert ModelRegistry.models[name].inspect_model_cls().architecture == name
    configs, made = [], []
    for scale, task, model in CELLS:
        words = [f"scale={scale}", f"task={task}", *([f"model={model}"] if model else []), "method=bapo"]
        configs.append(configuration.compose_config([*words, "engine=verl", "device=cuda"]))
        made.append(arguments(verl_config.resolve(configs[-1], device="cuda")))
        made[-1].model = made[-1].tokenizer = str(described(configs[-1], folder))
    (folder / "engines.pickle").write_bytes(pickle.dumps(made))
    return configs, folder / "engines.pickle"


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0"])
def test_vllm_makes_its_configuration_of_it_on_a_pretended_gpu(engines: Any, capability: str) -> None:
    """Of an A100, an L4 or RTX 4090, and an H100: the last step that needs no kernel."""
    configs, file = engines
    variables = {**os.environ, **verl_config.environment("cuda"), "HF_HUB_OFFLINE": "1"}
    variables["VLLM_CACHE_ROOT"] = str(file.parent)
    command = [sys.executable, ROOT / "tests/support/vllm_on_gpus.py", *capability.split("."), file]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(configs)
    for config, one in zip(configs, found, strict=True):
        row, spread = one["max_model_len"], 2 if config.model.name in ("qwen2.5-math-7b", "qwen3-8b") else 1
        replicas = config.verl.gpus_per_node // spread
        assert row == config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
        assert one == {
            "device": "cuda",
            "architecture": QWEN3 if "qwen3" in config.model.name else QWEN2,
            "dtype": f"torch.{config.model.dtype}",
            "max_model_len": row,
            "sleep": True,
            "gpu_memory_utilization": config.verl.gpu_memory_utilization,
            "tensor_parallel_size": spread,
            "max_num_batched_tokens": max(8192, row),
            "max_num_seqs": min(config.train.batch_size * config.train.group_size // replicas, 1024),
            "second_runner": False,
            "graphs": "FULL_AND_PIECEWISE",
        }


def test_vllm_on_cpu_cores_reads_it_too() -> None:
    config = configuration.compose_config([f"model={SMALL}", *ON_CPU, "verl.rollout=vllm"])
    found = arguments(verl_config.resolve(config, device="cpu"))
    assert_fits(found, config)
    # it cannot sleep there; float32, or nothing could be compared with the trainer
    assert found.dtype == "float32" and found.enforce_eager and not found.enable_sleep_mode


def assert_fits(found: Any, config: Any) -> None:
    row = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    assert (found.max_model_len, found.seed) == (row, config.seed)
