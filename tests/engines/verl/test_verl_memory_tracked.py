"""The sums of ``memory.py`` against torch's own memory tracker: tensors without content, ranks without processes.

The update is the one that ``gpu-check`` makes on a card (micro_batch.py), of two micro-batches. What flash-attn saves,
torch's attention on CPU cores saves too.
"""

from __future__ import annotations

import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch
import torch.distributed as dist
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from bapo.engines.verl import memory, micro_batch
from bapo.experiments import compose as configuration

SMALL, LARGE = ("single_gpu", "mathematics"), ("paper", "mathematics")
QWEN2_1_5B = {"num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": False}
CELLS = {
    "qwen2.5-0.5b-instruct": ("Qwen2", {"num_attention_heads": 14, "num_key_value_heads": 2}, SMALL, 1, 12_288),
    "qwen3-0.6b": ("Qwen3", {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}, SMALL, 1, 2048),
    "smollm2-135m-instruct": ("Llama", {"num_attention_heads": 9, "num_key_value_heads": 3}, SMALL, 1, 8192),
    "deepseek-r1-distill-qwen-1.5b": ("Qwen2", QWEN2_1_5B, LARGE, 8, 20_480),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CELLS)
def test_the_sum_is_never_below_the_tracker_and_not_far_above(name: str) -> None:
    family, heads, (scale, task), ranks, tokens = CELLS[name]
    config = configuration.run_config(scale, task, name, "bapo", 1)
    sizes = config.model.sizes
    shape = {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.width,
        "num_hidden_layers": sizes.layers,
        "intermediate_size": sizes.mlp,
    }
    described = getattr(transformers, f"{family}Config")(**{"tie_word_embeddings": True, **shape, **heads})
    found = tracked(described, ranks, tokens)
    expected = memory.memory_of(config, ranks).training(tokens) - memory.BESIDE
    assert found <= expected <= 1.15 * found


def tracked(config: transformers.PretrainedConfig, ranks: int, tokens: int) -> int:
    """Return the peak of bytes on one of ``ranks`` GPUs in an update of two micro-batches of ``tokens``."""
    config._attn_implementation = "sdpa"
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _tracked(config, mesh, tokens)
    finally:
        dist.destroy_process_group()


def _tracked(config: transformers.PretrainedConfig, mesh: DeviceMesh, tokens: int) -> int:
    model = micro_batch.sharded(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32), mesh)
    optimizer, ids = micro_batch.optimiser_of(model), torch.zeros(1, tokens, dtype=torch.long)
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((ids,))
    with tracker:
        for number in range(2):
            if number:
                tracker.reset_mod_stats()
            micro_batch.pass_through(model, ids)
        optimizer.zero_grad()
    return sum(device["Total"] for device in tracker.get_tracker_snapshot("peak").values())
