"""Samplers of the torch engine's steps, for tests of methods and engines."""

from __future__ import annotations

from typing import Any

from bapo.engines.shared.sampling import SamplingParameters
from bapo.engines.shared.step_sampler import SamplingSetup
from bapo.engines.torch.rollout import ResponseGenerator
from bapo.engines.torch.step_sampler import TorchStepSampler


def step_sampler(
    model: Any,
    generator: ResponseGenerator | None,
    step: int,
    group_size: int = 8,
    budget: int | None = None,
    rows: int | None = None,
    embedder: Any = None,
) -> TorchStepSampler:
    """The sampler of a step without a stream of prompts. rows, budget: as in ``TorchStepSampler``."""
    parameters = SamplingParameters() if generator is None else generator.parameters
    tokenizer, task = (None, None) if generator is None else (generator.tokenizer, generator.task)
    setup = SamplingSetup(None, tokenizer, task, parameters, group_size, lambda: embedder)
    return TorchStepSampler(setup, step, budget, generator, model, rows)
