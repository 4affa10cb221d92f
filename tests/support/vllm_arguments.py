"""verl's arguments for vLLM's server, without a server, and what describes the models without their weights."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bapo.experiments.schema import Config
from bapo.validate import plain

#: text model -> its architecture in transformers, heads, heads of keys and values, and what else its files say
QWEN2, QWEN3 = "Qwen2ForCausalLM", "Qwen3ForCausalLM"
FAMILIES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "deepseek-r1-distill-qwen-1.5b": (QWEN2, 12, 2, {}),
    "qwen2.5-0.5b-instruct": (QWEN2, 14, 2, {"tie_word_embeddings": True}),
    "qwen2.5-1.5b": (QWEN2, 12, 2, {"tie_word_embeddings": True}),
    "qwen2.5-math-1.5b": (QWEN2, 12, 2, {"tie_word_embeddings": True}),
    "qwen2.5-math-7b": (QWEN2, 28, 4, {}),
    "qwen3-0.6b": (QWEN3, 16, 8, {"head_dim": 128, "tie_word_embeddings": True}),
    "qwen3-4b": (QWEN3, 32, 8, {"head_dim": 128, "tie_word_embeddings": True}),
    "qwen3-8b": (QWEN3, 32, 8, {"head_dim": 128}),
}


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


def described(config: Config, folder: Path) -> Path:
    """Write the ``config.json`` of a text model; return its folder."""
    from transformers import AutoConfig

    if sizes := config.model.sizes:
        architecture, heads, pairs, more = FAMILIES[config.model.name]
        shape = more | {
            "model_type": {QWEN2: "qwen2", QWEN3: "qwen3"}[architecture],
            "vocab_size": sizes.vocabulary,
            "hidden_size": sizes.width,
            "num_hidden_layers": sizes.layers,
            "intermediate_size": sizes.mlp,
            "num_attention_heads": heads,
            "num_key_value_heads": pairs,
            "max_position_embeddings": config.model.context_length,
        }
    else:
        architecture, shape = QWEN2, plain(config.model.architecture)
    made = AutoConfig.for_model(**shape)
    made.architectures, made.dtype = [architecture], config.model.dtype
    place = folder / config.model.name
    made.save_pretrained(place)
    return place
