"""verl's arguments for vLLM's server, without a server, and what describes the models without their weights."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bapo.experiments.schema import Config
from bapo.validate import plain

QWEN2, QWEN3 = "Qwen2ForCausalLM", "Qwen3ForCausalLM"
#: model -> its type in transformers, heads, heads of keys and values, whether its head is its embedding, and what else
#: its files say of its layers of text
FAMILIES: dict[str, tuple[str, int, int, bool, dict[str, Any]]] = {
    "deepseek-r1-distill-qwen-1.5b": ("qwen2", 12, 2, False, {}),
    "qwen2.5-0.5b-instruct": ("qwen2", 14, 2, True, {}),
    "qwen2.5-1.5b": ("qwen2", 12, 2, True, {}),
    "qwen2.5-math-1.5b": ("qwen2", 12, 2, True, {}),
    "qwen2.5-math-7b": ("qwen2", 28, 4, False, {}),
    "qwen2.5-vl-3b": ("qwen2_5_vl", 16, 2, True, {}),
    "qwen2.5-vl-7b": ("qwen2_5_vl", 28, 4, False, {}),
    "qwen3-0.6b": ("qwen3", 16, 8, True, {"head_dim": 128}),
    "qwen3-4b": ("qwen3", 32, 8, True, {"head_dim": 128}),
    "qwen3-8b": ("qwen3", 32, 8, False, {"head_dim": 128}),
    "smollm2-135m-instruct": ("llama", 9, 3, True, {}),
}


def layers_of(config: Config) -> dict[str, Any]:
    """What the files of a model of the hub say of its layers of text."""
    _, heads, pairs, _, more = FAMILIES[config.model.name]
    sizes = config.model.sizes
    return more | {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.width,
        "num_hidden_layers": sizes.layers,
        "intermediate_size": sizes.mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": pairs,
        "max_position_embeddings": config.model.context_length,
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

    if config.model.sizes:
        kind, _, _, tied, _ = FAMILIES[config.model.name]
        shape = {"model_type": kind, "tie_word_embeddings": tied, **layers_of(config)}
    else:
        shape = plain(config.model.architecture)
    made = AutoConfig.for_model(**shape)
    made.architectures = [QWEN3 if made.model_type == "qwen3" else QWEN2]
    made.dtype = config.model.dtype
    place = folder / config.model.name
    made.save_pretrained(place)
    return place
