"""Micro-batches: the whole mini-batch's gradient, of the hand-written forward and of the library's."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from support.late import LATE
from support.studies import hub_models
from support.training import groups, learner, llama

from bapo import methods
from bapo.algorithm.rollouts import FRESH, REEVALUATED, REPLAYED, Group
from bapo.engines.shared import shortcut
from bapo.experiments.compose import compose_config

if LATE:
    import torch

    from bapo.engines.shared import models
    from bapo.engines.torch import micro_batch
    from bapo.engines.torch.learner import Learner


TERMS = {"kl_coef": 0.05, "entropy_coef": 0.01}
METHODS = {
    "grpo, sequence-mean": ("grpo", TERMS),
    "grpo, token-mean": ("grpo", TERMS | {"aggregation": "token-mean"}),
    "dapo": ("dapo", {}),
    "gspo": ("gspo", {}),
    "bapo": ("bapo", TERMS),
    "bapo, pi_k": ("bapo_code", TERMS),
}


def mini_batch() -> list[Group]:
    """Responses behind prompts with a common head; fresh, re-evaluated and replayed groups, the last one not full."""
    made = groups((4, 4, 4, 3), 400, (1, 10), head=(7, 3, 9, 4, 4, 8))
    origins = (FRESH, FRESH, REEVALUATED, REPLAYED)
    return [replace(group, origin=origin) for group, origin in zip(made, origins, strict=True)]


def learner_of(name: str, fast: bool, size: int | None) -> Learner:
    shape = {"vocab_size": 400, "intermediate_size": 96, "num_hidden_layers": 6, "initializer_range": 0.1}
    model, (algorithm, options) = llama(**shape, attention_bias=not fast), METHODS[name]
    assert (shortcut("scoring", model) is not None) == fast
    reference = copy.deepcopy(model).requires_grad_(False)
    how = {"temperature": 0.9, "betas": [0.9, 0.99], "micro_batch_size": size}
    return learner(model, {"algorithm": algorithm, **options}, reference, **how)


def gradients(one: Learner, made: list[Group]) -> dict[str, torch.Tensor]:
    one.update(1, made)
    assert one.updates == 1
    return {name: p.grad for name, p in one.model.named_parameters()}


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "library"])
@pytest.mark.parametrize("name", METHODS)
def test_the_gradient_is_that_of_the_whole_mini_batch(name: str, fast: bool) -> None:
    """Also of a mini-batch that is not full, whose denominators are nominal."""
    made = mini_batch()
    whole, cut = (learner_of(name, fast, size) for size in (None, 4))
    assert [len(list(one.micro_batches(made))) for one in (whole, cut)] == [1, 4]
    expected = gradients(whole, made)
    for key, found in gradients(cut, made).items():
        largest = float(expected[key].abs().max())
        assert largest > 0
        torch.testing.assert_close(found, expected[key], rtol=1e-4, atol=2e-6 * max(1.0, largest), msg=key)


@pytest.mark.parametrize(("scale", "task", "model"), hub_models())
def test_a_blank_model_is_as_large_as_the_runs(scale: str, task: str, model: str) -> None:
    """gpu-check's, without a download. What reads pictures lacks its tower."""
    config = compose_config([f"scale={scale}", f"task={task}", f"model={model}"])
    with torch.device("meta"):
        made = models.blank(config)
    least = 0.75 if task == "geometry" else 0.9
    assert least < made.num_parameters() / config.model.parameters < 1.1
    assert next(made.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "words",
    [*([f"method={name}"] for name in methods.names()), ["method.passes=2"], ["method=ppo", "method.critic_warmup=3"]],
)
def test_gpu_check_makes_an_update_of_every_method(words: list[str]) -> None:
    assert "an update of 64 rows" in micro_batch.update(compose_config(["scale=smoke", *words]))
