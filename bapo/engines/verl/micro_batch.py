"""Tries an update with the micro-batch of a run as verl makes it, from random weights, to see whether it fits.

``bapo.gpucheck`` calls it. One GPU stands for any of the run's ranks. Where there are several, collectives are
pretended, so that memory and kernels are those of a rank, and the numbers mean nothing.
"""

from __future__ import annotations

import os
import tempfile
import time
from types import MethodType
from typing import TYPE_CHECKING

from bapo.engines.verl import memory, verl_config
from bapo.errors import UserError
from bapo.experiments.schema import Config

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedModel


def sharded(model: PreTrainedModel, mesh: DeviceMesh, offloaded: bool = False) -> PreTrainedModel:
    """Return a float32 model as verl's engine has it: FSDP2 by layer, bfloat16 passes, fused log-probabilities.

    model: may lie in host memory, from which a layer at a time comes to the mesh's devices; offloaded: whether its
    weights, gradients and optimiser stay there, as with verl's ``offload_policy``.
    """
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    from verl.models.transformers.dense_common import forward_with_torch_backend

    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.forward = MethodType(forward_with_torch_backend, model)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=True)
    # verl only pins memory for GPUs
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offloaded else OffloadPolicy()
    tied = model.config.tie_word_embeddings
    for module in [*model.model.layers, *([] if tied else [model.model.embed_tokens]), model]:
        fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True, offload_policy=policy)
    return model


def optimiser_of(model: PreTrainedModel) -> torch.optim.Optimizer:
    """Return AdamW with moments, as after an update."""
    import torch

    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, foreach=True)
    for parameter in model.parameters():
        moments = ("exp_avg", "exp_avg_sq")
        optimiser.state[parameter] = {name: torch.zeros_like(parameter) for name in moments}
        optimiser.state[parameter]["step"] = torch.tensor(1.0)
    return optimiser


def pass_through(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Go forward and backward with one packed micro-batch [1, N]; return its loss."""
    output = model(input_ids=tokens, use_cache=False, return_dict=True, shift_labels=tokens)
    loss = -(output.log_probs - 0.001 * output.entropy).sum()
    loss.backward()
    return loss.detach()


def update(config: Config) -> str:
    """Make an update of two micro-batches and describe its time and memory. Raises UserError for images or a critic."""
    device = verl_config.device_of(config)
    os.environ.update(verl_config.environment(device))
    if not memory.fused(config):
        raise UserError("the micro-batch of critics and of models that read images is not tried; name another run")
    verl = verl_config.resolve(config, device)
    tokens, ranks = verl.bapo.tokens, verl.bapo.gpus
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from bapo.engines.shared import models

    config.model.dtype = "float32"  # what verl trains
    with tempfile.NamedTemporaryFile() as file:
        if ranks > 1:
            dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
        else:
            backend = "gloo" if device == "cpu" else "nccl"
            dist.init_process_group(backend, init_method=f"file://{file.name}", rank=0, world_size=1)
        try:
            mesh = init_device_mesh(device, (ranks,))
            model = sharded(models.blank(config), mesh, memory.in_host_memory(config))
            optimiser, ids = optimiser_of(model), torch.randint(1, 50, (1, tokens), device=device)
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()  # whole layers were on the GPU
            start = time.perf_counter()
            losses = [pass_through(model, ids) for _ in range(2)]
            optimiser.step()
            if ranks == 1 and not all(loss.isfinite() for loss in losses):
                raise UserError("the loss of a random model is not finite; a kernel is wrong on this machine")
            return f"{text_of(config, device, ranks, tokens)}, {(time.perf_counter() - start) / 2:.1f} s each"
        finally:
            dist.destroy_process_group()


def text_of(config: Config, device: str, ranks: int, tokens: int) -> str:
    """Describe an update of ``tokens`` on one of ``ranks``: its size, and on a GPU its memory, taken and planned."""
    import torch

    text = f"{tokens:,} tokens, {config.model.name}, a rank of {ranks}"
    if device == "cpu":
        return text
    torch.cuda.synchronize()
    text += f", {torch.cuda.max_memory_allocated() / 1e9:.1f} GB of tensors"
    planned = memory.memory_of(config, ranks)
    return text if planned is None else f"{text} ({(planned.training(tokens) - memory.BESIDE) / 1e9:.1f} planned)"
