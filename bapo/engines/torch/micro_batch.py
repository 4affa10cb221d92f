"""An update with the micro-batch of a run, from random weights, by which ``bapo.gpucheck`` sees whether it fits.

The device holds what it holds while the run trains: optimiser, reference, delayed rollout policy and critic. Images are
left out.
"""

from __future__ import annotations

import copy
import itertools
import time

import numpy as np
import torch

from bapo import methods
from bapo.algorithm.rollouts import Group, Prompt, Samples
from bapo.engines.shared import models
from bapo.engines.shared.prompts import PromptTokens
from bapo.engines.torch.learner import Critic, Learner
from bapo.experiments.schema import Config


def groups_of(config: Config, vocabulary: int) -> list[Group]:
    """Return groups for two micro-batches, or for a mini-batch that is not cut, with rows of the longest length."""
    t, s = config.train, config.sampling
    most = t.mini_batch_size * t.group_size
    rows = min(most, 2 * (t.micro_batch_size or most))
    draw, keeps_step_logprobs = np.random.default_rng(0), methods.of_run(config).keeps_step_logprobs

    def group(number: int) -> Group:
        prompt = Prompt(
            str(number), PromptTokens(tuple(draw.integers(1, vocabulary, s.max_prompt_tokens).tolist()), "")
        )
        shape = (t.group_size, s.max_response_tokens)
        tokens = draw.integers(1, vocabulary, shape, dtype=np.int32)
        behaviour = np.full(shape, -np.log(vocabulary), dtype=np.float32)
        samples = Samples(tokens, np.full(t.group_size, s.max_response_tokens), behaviour)
        rewards, step_logprobs = np.arange(t.group_size) % 2, behaviour if keeps_step_logprobs else None
        return Group(prompt, rewards, step=1, version=0, samples=samples, step_logprobs=step_logprobs)

    return [group(number) for number in range(-(-rows // t.group_size))]


def update(config: Config) -> str:
    """Make the update; return its memory and time in one line. Raises UserError without the device or model sizes."""
    models.prepare_process(config.threads)
    device, method, t = models.device_of(config), methods.of_run(config), config.train
    model = models.blank(config)
    torch.nn.Module.to(model, device)
    reference = copy.deepcopy(model).requires_grad_(False) if method.needs_reference else None
    rollout = copy.deepcopy(model) if method.delays_rollout_policy else model
    critic = Critic(copy.deepcopy(model), config, method) if method.uses_critic else None
    learner = Learner(model, reference, config, method, critic)
    groups = groups_of(config, model.config.get_text_config().vocab_size)
    start = time.perf_counter()
    step = next(step for step in itertools.count(1) if method.trains_policy(step))  # after a critic's warm-up
    metrics = learner.update(step, groups)
    assert rollout is not None and metrics["updates"] >= 1  # one for each pass
    rows = min(t.micro_batch_size or len(groups) * t.group_size, len(groups) * t.group_size)
    row = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    text = f"{rows} rows of {row} tokens, {config.model.name}"
    if device.type == "cuda":
        torch.cuda.synchronize()
        reserved, total = torch.cuda.max_memory_reserved(), torch.cuda.get_device_properties(device).total_memory
        text += f", {reserved / 1e9:.1f} of {total / 1e9:.1f} GB"
    return f"{text}, {time.perf_counter() - start:.1f} s an update of {len(groups) * t.group_size} rows"
