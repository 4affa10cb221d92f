"""The sums of ``memory.py`` against torch's own memory tracker: tensors without content, ranks without processes.

The update is the one that ``gpu-check`` makes on a card (micro_batch.py): a micro-batch whose gradients add to those of
an earlier one. What flash-attn saves, torch's attention on CPU cores saves too, without the mask of all tokens.
"""

from __future__ import annotations

from types import MethodType

import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch
import torch.distributed as dist
import transformers
from support.vllm_arguments import FAMILIES, layers_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_outputs import CausalLMOutput
from verl.utils.fsdp_utils import apply_fsdp2
from verl.utils.torch_functional import entropy_from_logits_with_chunking

from bapo.engines.verl import memory, micro_batch
from bapo.experiments import compose as configuration

SMALL, LARGE, COUNTDOWN = ("single_gpu", "mathematics"), ("paper", "mathematics"), ("paper", "countdown")
#: of both towers that read images
TOWER = {"depth": 32, "hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420}
FEW = ("train.micro_batch_size=8",)
#: how many times the tracker's peak the sum is: small models' head and layers are not at their peaks at one time
CELLS = [
    ("qwen2.5-0.5b-instruct", *SMALL, "bapo", (), 1.01),
    ("qwen3-0.6b", *SMALL, "bapo", (), 1.00),
    ("smollm2-135m-instruct", *SMALL, "bapo", (), 1.06),
    ("qwen2.5-1.5b", "single_gpu", "countdown", "bapo", (), 1.04),
    ("qwen2.5-math-1.5b", *COUNTDOWN, "bapo", (), 1.02),
    ("deepseek-r1-distill-qwen-1.5b", *LARGE, "bapo", (), 1.12),
    ("qwen3-4b", *LARGE, "bapo", (), 1.03),
    ("qwen2.5-math-7b", *COUNTDOWN, "bapo", (), 1.03),
    ("qwen2.5-math-7b", *COUNTDOWN, "bapo", FEW, 1.03),
    ("qwen3-8b", *LARGE, "bapo", (), 1.05),
    ("qwen3-8b", *LARGE, "bapo", FEW, 1.01),
    ("qwen3-4b", *LARGE, "ppo", (), 1.15),
    ("qwen2.5-vl-3b", "single_gpu", "geometry", "bapo", (), 1.06),
    pytest.param("qwen2.5-vl-3b", "paper", "geometry", "bapo", (), 1.11, marks=pytest.mark.full),
    pytest.param("qwen2.5-vl-7b", "paper", "geometry", "bapo", (), 1.09, marks=pytest.mark.full),
]
#: GB of the card that the micro-batch is planned for
CARD = 80


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "scale", "task", "method", "words", "ratio"), CELLS, ids=str)
def test_the_sum_is_never_below_the_tracker_and_as_far_above_as_known(
    name: str, scale: str, task: str, method: str, words: tuple[str, ...], ratio: float
) -> None:
    config = configuration.run_config(scale, task, name, method, 1, words)
    sizes, ranks = config.model.sizes, config.verl.gpus_per_node or 8
    tokens = memory.micro_batch_tokens(config, ranks, memory.asked_tokens(config, ranks), CARD)
    kind, _, _, tied, _ = FAMILIES[name]
    shape = layers_of(config)  # heads, which no sum depends on, among it
    if task == "geometry":
        rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
        tower = {**TOWER, "out_hidden_size": sizes.width}
        shape = {"text_config": {**shape, "rope_parameters": rope}, "vision_config": tower}
    described = transformers.AutoConfig.for_model(kind, tie_word_embeddings=tied, **shape)
    found = tracked(described, ranks, tokens, whole=not memory.fused(config))
    if method == "ppo":  # beside it lie the weights and moments of a model as large
        found += 12 * config.model.parameters / ranks
    if memory.in_host_memory(config):  # where the tracker's device is the host, too
        found -= 16 * config.model.parameters
    expected = memory.memory_of(config, ranks, CARD).training(tokens) - memory.BESIDE
    assert found <= expected == pytest.approx(ratio * found, rel=0.02)


def tracked(config: transformers.PretrainedConfig, ranks: int, tokens: int, whole: bool = False) -> float:
    """Return the peak of bytes on one of ``ranks`` GPUs in the second micro-batch of ``tokens`` of an update.

    whole: with whole logits instead of fused log-probabilities.
    """
    transformers.AttentionInterface.register("packed", sdpa_attention_forward)  # of this name no mask is known
    config._attn_implementation = "packed"
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _tracked(config, mesh, tokens, whole)
    finally:
        dist.destroy_process_group()


def _tracked(config: transformers.PretrainedConfig, mesh: DeviceMesh, tokens: int, whole: bool) -> float:
    if reads := hasattr(config, "vision_config"):
        model = _reader(config, mesh, tokens)
    else:
        model = micro_batch.sharded(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32), mesh)
        if whole:
            model.forward = MethodType(type(model).forward, model)
    optimizer, ids = micro_batch.optimiser_of(model), torch.zeros(1, tokens, dtype=torch.long)
    pixels = {"pixel_values": torch.zeros(4 * tokens, 1176)} if reads else {}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((ids, *pixels.values()))
    with tracker:
        (_pass_whole if whole else micro_batch.pass_through)(model, ids, **pixels)
    return sum(device["Total"] for device in tracker.get_tracker_snapshot("peak").values())


def _reader(config: transformers.PretrainedConfig, mesh: DeviceMesh, tokens: int) -> transformers.PreTrainedModel:
    """Return a model whose ``tokens`` are one image's, as verl shards it. Tensors without content have no places."""
    model = transformers.Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=torch.float32)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    transformers.AttentionInterface.register("flash_packed", sdpa_attention_forward)
    model.model.visual.config._attn_implementation_internal = "flash_packed"  # all patches at once
    bounds, merged = torch.zeros(2, dtype=torch.int32), torch.zeros(tokens, dtype=torch.long)
    patches = {"position_ids": torch.zeros(4 * tokens, 2, dtype=torch.long), "window_index": merged}
    patches |= {"cu_seqlens": bounds, "cu_window_seqlens": bounds, "grid_thw": torch.ones(1, 3, dtype=torch.long)}

    def forward(self, input_ids: Tensor, pixel_values: Tensor, use_cache: bool) -> CausalLMOutput:
        image = self.model.visual(pixel_values.type(self.model.visual.dtype), **patches).pooler_output
        words = self.model.get_input_embeddings()(input_ids)
        read = torch.where(torch.ones_like(words, dtype=torch.bool), image.to(words.dtype), words)
        places = torch.zeros(3, *input_ids.shape, dtype=torch.long)
        state = self.model.language_model(inputs_embeds=read, position_ids=places, use_cache=use_cache)[0]
        return CausalLMOutput(logits=self.lm_head(state))

    model.forward = MethodType(forward, model)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=True)
    apply_fsdp2(model, {"mesh": mesh, "mp_policy": precision, "reshard_after_forward": True}, {})
    return model


class CrossEntropy(torch.autograd.Function):
    """Takes and keeps what flash-attn's does: the logits, and a gradient of its own."""

    @staticmethod
    def forward(ctx, logits: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(logits)
        return logits.new_zeros(len(labels), dtype=torch.float32)

    @staticmethod
    def backward(ctx, *_: Tensor) -> tuple[Tensor, None]:
        return torch.empty_like(ctx.saved_tensors[0]), None


def _pass_whole(model: transformers.PreTrainedModel, tokens: Tensor, **pixels: Tensor) -> None:
    """Go forward and backward as verl's engine does with whole logits (FSDPEngineWithLMHead)."""
    logits = model(input_ids=tokens, use_cache=False, **pixels).logits.squeeze(0)
    entropy = torch.utils.checkpoint.checkpoint(entropy_from_logits_with_chunking, logits, use_reentrant=True)
    (CrossEntropy.apply(logits, tokens[0]) - 0.001 * entropy).sum().backward()
