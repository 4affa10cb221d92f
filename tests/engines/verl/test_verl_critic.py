"""The same groups and the same critic give the same values, advantages, losses and gradients in both engines."""

from __future__ import annotations

import copy
from collections import defaultdict

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch
from omegaconf import OmegaConf
from support.training import tiny
from support.verl_rows import (
    SEED,
    TRAIN,
    Engine,
    accumulated,
    as_batch,
    batches,
    fullest,
    nested,
    padded_rows,
    rows_of,
    torch_learner,
    verl_logprobs,
)
from verl.trainer.ppo.core_algos import compute_gae_advantage_return, compute_value_loss
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead
from verl.workers.utils.padding import response_from_nested

from bapo import methods
from bapo.algorithm.batch import mini_batches
from bapo.algorithm.rollouts import FRESH, ORIGINS
from bapo.engines.torch.learner import Critic, MetricMeans
from bapo.engines.verl import cpu, verl_config
from bapo.engines.verl import critic as verl_critic
from bapo.engines.verl.batch_layout import LAYOUT, lay_out
from bapo.engines.verl.learner import policy_loss
from bapo.experiments import compose as configuration

OPTIONS = {
    "ppo": {"kl_coef": 0.05, "entropy_coef": 0.01, "gae_lambda": 0.9, "gamma": 0.95},
    "ba_ppo": dict(kl_coef=0.05, m=3, c2_range=[0.2, 0.3], c3_range=[0.5, 0.8], bad_capacity=8, value_clip=0.05),
}


def torch_critic(method: methods.Method) -> Critic:
    """With a head that is not 0, or every value would be."""
    critic = Critic(tiny(2), OmegaConf.create({"model": {"kind": "scratch"}, "train": TRAIN}), method)
    torch.manual_seed(5)
    with torch.no_grad():
        critic.model.lm_head.weight.normal_(0, 0.3)
        critic.model.lm_head.bias.fill_(0.2)
    return critic


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("base")
    tiny(2).save_pretrained(folder)
    return folder


def classifier(critic: Critic, folder) -> torch.nn.Module:
    """verl's critic from the same base, with the same head."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, num_labels=1, classifier_dropout=0.0)
    model = cpu.load_value_model(str(folder), torch.float32, config, False).eval()
    model.score.load_state_dict(critic.model.lm_head.state_dict())
    return model


class ValueEngine(Engine, FSDPEngineWithValueHead):
    """verl's own forward pass and values, without its process groups."""


def verl_values(model: torch.nn.Module, data) -> torch.Tensor:
    with torch.no_grad():
        _, output = ValueEngine(model).forward_step(data, loss_function=None, forward_only=True)
    return response_from_nested(output["model_output"]["values"], data["response_mask"])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", OPTIONS)
def test_values_advantages_losses_and_gradients_agree(name: str, ranks: int, checkpoint) -> None:
    method, made = batches({"algorithm": name, **OPTIONS[name]})
    groups, step = made[fullest(made)].groups, fullest(made) + 1
    assert {g.origin for g in groups} == (set(ORIGINS) if name == "ba_ppo" else {FRESH})
    critic = torch_critic(method)
    start = copy.deepcopy(critic.model)
    estimation = MetricMeans()
    parts = mini_batches(method, OmegaConf.create(TRAIN), SEED, step, critic.with_estimates(groups, estimation))

    # verl's side: the rows of the whole batch, padded for the ranks
    layout = lay_out(method, parts, OmegaConf.create(TRAIN), ranks, step)
    model = classifier(critic, checkpoint)
    whole = as_batch(padded_rows([g for part in parts for g in part], layout))
    whole["values"] = verl_values(model, whole)
    estimated, metrics = verl_critic.advantages(method, whole.select("rm_scores", "response_mask", "values"))
    whole["advantages"], whole["returns"] = estimated["advantages"], estimated["returns"]

    places = torch.argsort(torch.tensor(layout.order))[: layout.rows]  # where each real row went
    expected = [(g, i) for part in parts for g in part for i in range(g.size)]
    for field in ("values", "returns", "advantages"):
        nested_rows = whole[field].unbind()
        for place, (g, i) in zip(places, expected, strict=True):
            n = int(g.samples.lengths[i])
            np.testing.assert_allclose(nested_rows[place].numpy(), getattr(g.estimates, field)[i, :n], atol=1e-5)
    assert metrics["bapo/explained_variance"] == pytest.approx(estimation.means()["explained_variance"], abs=1e-4)
    flat = np.concatenate([g.estimates.advantages[i, : g.samples.lengths[i]] for g, i in expected])
    assert abs(flat.mean()) < 1e-5 and flat.std(ddof=1) == pytest.approx(1.0, abs=1e-4)

    # each mini-batch from the same weights: the critic's loss and gradients, then the policy's
    policy, reference = tiny(0), tiny(1)
    whole["ref_log_prob"], whole["old_log_probs"] = verl_logprobs(reference, whole), whole["rollout_log_probs"]
    whole[LAYOUT] = nested(list(torch.from_numpy(layout.columns)))
    rows = rows_of(whole)
    share, width = len(rows) // ranks, layout.rows_per_update // ranks
    for number, part in enumerate(parts):
        own = torch_critic(method)
        own.model.load_state_dict(start.state_dict())
        metrics = MetricMeans()
        own.update(step, part, metrics)
        means = metrics.means()
        mine = [rows[r * share + number * width : r * share + (number + 1) * width] for r in range(ranks)]
        function = verl_critic.partial(verl_critic.value_loss, method=method)
        loss, gradients, sums = accumulated(ValueEngine, model, mine, function)
        assert loss == pytest.approx(means["value_loss"], abs=1e-5)
        assert sums["value_clip_fraction_sum"] / sums["value_clip_fraction_count"] == pytest.approx(
            metrics.means()["value_clip_fraction"], abs=1e-6
        )
        named = dict(own.model.named_parameters())
        for key, gradient in gradients.items():
            twin = named[key.replace("score.", "lm_head.")].grad
            torch.testing.assert_close(gradient, twin, atol=1e-5, rtol=1e-5)
        assert max(float(g.abs().max()) for g in gradients.values()) > 1e-3

        learner = torch_learner(method, policy, reference, own)
        learner._one_update(step, part, 0, metrics, defaultdict(list))
        function = verl_critic.partial(policy_loss, method=method)
        loss, gradients, _ = accumulated(Engine, policy, mine, function)
        assert loss == pytest.approx(metrics.means()["loss"], abs=1e-5)
        named = dict(learner.model.named_parameters())
        for key, gradient in gradients.items():
            torch.testing.assert_close(gradient, named[key].grad, atol=1e-5, rtol=1e-5)


def test_our_formulas_are_verls() -> None:
    """GAE with whitening and the clipped value loss against verl's own functions, on ragged responses."""
    rng = np.random.default_rng(0)
    mask = (np.arange(6) < rng.integers(1, 7, (8, 1))).astype(np.float32)
    rewards, values = rng.random((8, 6)) * mask, rng.normal(size=(8, 6)) * mask
    method = methods.build({"algorithm": "ppo", "gamma": 0.9, "gae_lambda": 0.8}, 4, seed=1)
    found, returns = method.token_advantages(rewards, values, mask)
    tensors = [torch.tensor(a, dtype=torch.float64) for a in (rewards, values, mask)]
    expected, expected_returns = compute_gae_advantage_return(*tensors, gamma=0.9, lam=0.8)
    np.testing.assert_allclose(found, expected.numpy() * mask, atol=1e-5)
    np.testing.assert_allclose(returns, expected_returns.numpy() * mask, atol=1e-5)

    from bapo.algorithm.losses import ValueInputs

    new = tensors[1] + torch.tensor(rng.normal(size=(8, 6)))
    loss, metrics = methods.build({"algorithm": "ppo", "aggregation": "token-mean"}, 4, seed=1).value_loss(
        ValueInputs(new, tensors[1], expected_returns, tensors[2])
    )
    theirs, clipped = compute_value_loss(new, expected_returns, tensors[1], tensors[2], cliprange_value=0.5)
    assert loss.item() == pytest.approx(theirs.item(), abs=1e-9)
    assert metrics["value_clip_fraction"].item() == pytest.approx(float(clipped), abs=1e-6)
    assert 0 < float(clipped) < 1


def test_the_policy_waits_for_the_critic() -> None:
    words = ["scale=paper", "task=countdown", "method=ppo"]
    compose = configuration.compose_config
    verl, warm = (verl_config.resolve(compose([*words, f"method.critic_warmup={steps}"])) for steps in (0, 3))
    assert verl.critic.optim.lr == pytest.approx(1e-5) and verl.critic.cliprange_value == 0.5
    assert warm.trainer.critic_warmup == verl.trainer.critic_warmup + 3 == 4  # verl updates the policy from here on
