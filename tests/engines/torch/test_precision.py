"""Training a model in bfloat16: float32 weights in the optimiser."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
from support.late import LATE
from support.training import learner, llama

from bapo.algorithm.rollouts import Group, Prompt, Samples
from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory, run_directory
from bapo.store.files import STEPS

if LATE:
    import torch
    from safetensors.torch import load_file
    from support.resumed import assert_resumes_bit_for_bit
    from transformers import PreTrainedModel

    from bapo.engines.shared import models
    from bapo.engines.shared.prompts import PromptTokens
    from bapo.engines.torch.learner import masters_of, round_into
    from bapo.engines.torch.trainer import train


def groups_of(model: PreTrainedModel) -> list[Group]:
    """Random responses with the model's own log-probabilities, half of each group right."""
    rng, made = np.random.default_rng(3), []
    for n in range(4):
        prompt, counts = tuple(rng.integers(2, 40, 3 + n).tolist()), rng.integers(2, 7, 4).astype(np.int32)
        tokens = np.zeros((4, counts.max()), dtype=np.int32)
        for row, count in zip(tokens, counts, strict=True):
            row[:count] = rng.integers(2, 40, count)
        ids = torch.tensor([[*prompt, *row] for row in tokens.tolist()])
        with torch.no_grad():
            scored = models.score(model, ids, torch.full((4,), len(prompt)), tokens.shape[1]).logprobs
        samples = Samples(tokens, counts, scored.numpy())
        made.append(Group(Prompt(f"p{n}", PromptTokens(prompt, "")), np.arange(4) % 2, 1, 0, samples))
    return made


def vector(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([w.detach().float().flatten() for w in weights.values()])


def test_steps_follow_those_of_float32() -> None:
    """After four updates the float32 weights have moved as a float32 model's, up to bfloat16's noise in gradients.

    That is 2^-8 in every product: the movements have a cosine of 0.99 and lengths within 2%. Adam turns gradients of
    nothing but noise into steps of full size, so single weights differ by more.
    """
    start = llama()
    with torch.no_grad():  # a bfloat16 model's weights, so that both start from the same
        for parameter in start.parameters():
            parameter.copy_(parameter.bfloat16())
    made, moved = groups_of(start), {}
    for dtype in (torch.float32, torch.bfloat16):
        how = {"micro_batch_size": 5, "betas": [0.9, 0.99], "grad_clip": 1.0}
        one = learner(copy.deepcopy(start).to(dtype), {"algorithm": "grpo", "kl_coef": 0.0, "entropy_coef": 0.0}, **how)
        before = vector(one.masters).clone()
        for step in range(1, 5):
            metrics = one.update(step, made)
            assert metrics["updates"] == 1
        moved[dtype] = vector(one.masters) - before
        assert all(m.dtype == torch.float32 for m in one.masters.values())
    one, other = moved[torch.float32], moved[torch.bfloat16]
    assert one.abs().max() > 1e-3
    assert torch.nn.functional.cosine_similarity(one, other, dim=0) > 0.99
    assert other.norm() / one.norm() == pytest.approx(1, abs=0.02)


def test_small_steps_add_up() -> None:
    """300 steps of a millionth of each weight: 3e-4 in float32, and less than the last bit of bfloat16."""
    model = torch.nn.Linear(4, 4, bias=False).bfloat16()
    torch.nn.init.constant_(model.weight, 1.0)
    copies = masters_of(model)
    (master,) = copies.values()
    optimizer = torch.optim.AdamW([master], lr=1e-6, weight_decay=0.0, fused=True)
    for _ in range(300):
        optimizer.zero_grad()
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        round_into(model, copies)
    torch.testing.assert_close(master, torch.full((4, 4), 1 - 3e-4), atol=1e-5, rtol=0)
    assert model.weight.dtype == torch.bfloat16 and (model.weight == 1).all()
    master.sub_(0.01)
    round_into(model, copies)
    assert torch.equal(model.weight, master.bfloat16()) and (model.weight < 1).all()


def test_gradients_are_summed_in_float32() -> None:
    """One large gradient, then many small ones: bfloat16 would keep the large one."""
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    (master,) = masters_of(model).values()
    for size in (1.0, *[2**-10] * 64):
        (model(torch.ones(1, 1, dtype=torch.bfloat16)) * size).sum().backward()
    assert float(master.grad) == 1 + 64 * 2**-10
    assert model.weight.grad is None


@pytest.fixture(scope="module")
def narrow(tiny_world: list[str]) -> list[str]:
    """A run in bfloat16 from the tiny world's base, taken as a pretrained model."""
    start = base_directory(compose_config(tiny_world)) / "checkpoint"
    model = ["model.kind=pretrained", f"model.path={start}", "model.name=narrow", "model.dtype=bfloat16"]
    return [*tiny_world, *model]


@pytest.mark.parametrize("method", [["method=bapo", "method.v=2", "method.m=2"], ["method=ppo"]], ids=str)
def test_a_run_in_bfloat16_resumes_bit_for_bit(narrow: list[str], method: list[str]) -> None:
    overrides = [*narrow, *method, "seed=4"]
    config = compose_config(overrides)
    summary = train(config)
    folder = run_directory(config)
    checkpoint = folder / summary["checkpoint"]
    exported = load_file(checkpoint / "model.safetensors")
    optimizer = load_file(checkpoint / "trainer" / "optimizer.safetensors")
    assert pd.read_parquet(folder / STEPS)["updates"].sum() > 6
    assert {t.dtype for t in exported.values()} == {torch.bfloat16}
    kept = {name.removeprefix("master/"): t for name, t in optimizer.items() if name.startswith("master/")}
    assert set(kept) <= set(exported) and len(kept) >= len(exported) - 1  # a tied head
    assert all(t.dtype == torch.float32 and torch.equal(t.bfloat16(), exported[n]) for n, t in kept.items())
    assert any(not torch.equal(t, exported[n].float()) for n, t in kept.items())
    assert_resumes_bit_for_bit(folder, overrides)
