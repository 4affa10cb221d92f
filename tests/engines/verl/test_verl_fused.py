"""verl's forward pass as a GPU has it (packed rows, torch's attention, fused log-probabilities) against padded rows."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from support.training import model
from support.verl_rows import PROMPTS, Engine, as_batch, record, verl_rows
from torch.distributed.device_mesh import init_device_mesh
from transformers import PreTrainedModel
from verl.models.transformers.monkey_patch import patch_forward_with_backends
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import entropy_from_logits, entropy_from_logits_with_chunking

from bapo.algorithm.rollouts import FRESH
from bapo.engines.verl import micro_batch

CHUNK = 512  # tokens whose logits are there at a time
ROWS = verl_rows([record(prompt, step, 0, FRESH) for prompt in PROMPTS for step in (1, 2, 3)])


def forward(
    policy: PreTrainedModel, packed: bool, fused: bool, chunked: bool = False
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """(log-probabilities, entropies) of all tokens of ROWS, and the parameters' gradients of a sum of both.

    chunked: entropies are computed of some tokens at a time, once more in the backward pass, as with whole logits
    """
    policy = copy.deepcopy(policy)
    policy.__class__ = type("Policy", (type(policy),), {})  # verl patches the class
    patch_forward_with_backends(policy, use_fused_kernels=fused, fused_kernels_backend="torch")
    policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    data = as_batch(ROWS, calculate_entropy=True)
    tu.assign_non_tensor(data, use_remove_padding=packed, use_fused_kernels=fused)
    engine = Engine(policy.train())
    keys = ("entropy_checkpointing", "entropy_from_logits_with_chunking")
    engine.engine_config = OmegaConf.create(dict.fromkeys(keys, chunked))
    chunks = partial(entropy_from_logits_with_chunking, chunk_size=CHUNK)
    engine.compute_entropy_from_logits = chunks if chunked else entropy_from_logits
    inputs, arguments = engine.prepare_model_inputs(data)
    output = policy(**inputs, use_cache=False)
    found = engine.prepare_model_outputs(output, arguments, data, None)
    logprobs, entropies = found["log_probs"].values(), found["entropy"].values()
    weights = torch.linspace(-1, 1, len(logprobs))
    (weights * logprobs - 0.1 * entropies).sum().backward()
    return logprobs.detach(), entropies.detach(), [p.grad for p in policy.parameters()]


@pytest.mark.parametrize("family", ["Qwen2", "Llama", "Qwen3"])
def test_packed_rows_with_fused_log_probabilities_are_padded_rows(family: str) -> None:
    policy = model(family, attn_implementation="sdpa")
    assert sum(len(row["input_ids"]) for row in ROWS) > CHUNK
    logprobs, entropies, gradients = forward(policy, packed=True, fused=True)
    for packed, chunked in ((False, False), (True, False), (True, True)):
        expected_logprobs, expected_entropies, expected = forward(policy, packed, fused=False, chunked=chunked)
        torch.testing.assert_close(logprobs, expected_logprobs, rtol=0, atol=1e-5)
        torch.testing.assert_close(entropies, expected_entropies, rtol=0, atol=1e-5)
        for own, theirs in zip(gradients, expected, strict=True):
            torch.testing.assert_close(own, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize(("family", "offloaded"), [("Qwen2", False), ("Llama", False), ("Qwen3", True)])
def test_bfloat16_passes_through_fsdp2_are_float32_ones_to_rounding(
    family: str, offloaded: bool, tmp_path: Path
) -> None:
    """Float32 weights, sharded by layer over one rank of gloo: what a GPU's update is but for its kernels."""
    policy = model(family, attn_implementation="sdpa").train()
    tokens = torch.cat([row["input_ids"] for row in ROWS])[None]
    distribution = torch.distributions.Categorical(logits=policy(tokens).logits)
    expected = -(distribution.log_prob(tokens) - 0.001 * distribution.entropy()).sum()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        own = micro_batch.sharded(copy.deepcopy(policy), init_device_mesh("cpu", (1,)), offloaded)
        loss = micro_batch.pass_through(own, tokens)
        gradients = [p.grad.full_tensor() for p in own.parameters()]
        micro_batch.optimiser_of(own).step()
    finally:
        dist.destroy_process_group()
    expected.backward()
    assert float(loss) == pytest.approx(float(expected.detach()), rel=2e-3)
    for gradient, parameter in zip(gradients, policy.parameters(), strict=True):
        assert gradient.dtype == torch.float32
        # bfloat16 has eight bits: 0.4% of a number
        assert (gradient - parameter.grad).norm() < 0.03 * parameter.grad.norm()
