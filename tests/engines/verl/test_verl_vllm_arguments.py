"""verl's arguments for vLLM's server, of every model from the hub, read by vLLM's own parser; no server is started."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")
pytest.importorskip("vllm", reason="vLLM is not installed; containers/vllm_cpu/install makes its environment")

from support.studies import hub_models

from bapo.engines.verl import verl_config
from bapo.experiments import compose as configuration

#: what fits onto CPU cores, and how it is asked for
SMALL, ON_CPU = "smollm2-135m-instruct", ["scale=pocket", "task=countdown", "method=bapo", "engine=verl", "device=cpu"]


def arguments(verl: Any) -> Any:
    """What vLLM's engine is built from."""
    from transformers import PretrainedConfig
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.rollout.vllm_rollout.vllm_async_server import AsyncEngineArgs, vLLMHttpServer

    found = []

    class Server(vLLMHttpServer):
        def __init__(self) -> None:
            self.config = omega_conf_to_dataclass(verl.actor_rollout_ref.rollout)
            lora: dict[str, Any] = {}
            self.model_config = SimpleNamespace(
                lora_rank=0,
                lora=lora,
                trust_remote_code=False,
                local_path="model",
                generation_config=None,
                hf_config=PretrainedConfig(),  # whose quantisation verl looks at
            )
            self.replica_rank = self.node_rank = 0
            self.nnodes, self._disaggregation_role = 1, "null"

        def _should_profile(self) -> bool:
            return False

        async def run_server(self, args: Any) -> None:
            found.append(AsyncEngineArgs.from_cli_args(args))

    asyncio.run(Server().launch_server())
    return found[0]


@pytest.mark.parametrize(("scale", "task", "model"), hub_models())
def test_vllm_reads_what_verl_gives_it(scale: str, task: str, model: str) -> None:
    config = configuration.compose_config([f"scale={scale}", f"task={task}", f"model={model}", "method=bapo"])
    found = arguments(verl_config.resolve(config, device="cuda"))
    assert_fits(found, config)
    assert found.dtype == "bfloat16" and found.enable_sleep_mode
    assert found.gpu_memory_utilization == (0.4 if scale == "single_gpu" else 0.5)
    assert found.tensor_parallel_size == (2 if config.model.parameters > 6e9 else 1)


def test_vllm_on_cpu_cores_reads_it_too() -> None:
    config = configuration.compose_config([f"model={SMALL}", *ON_CPU, "verl.rollout=vllm"])
    found = arguments(verl_config.resolve(config, device="cpu"))
    assert_fits(found, config)
    # it cannot sleep there; float32, or nothing could be compared with the trainer
    assert found.dtype == "float32" and found.enforce_eager and not found.enable_sleep_mode


def assert_fits(found: Any, config: Any) -> None:
    row = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    assert (found.max_model_len, found.seed) == (row, config.seed)
