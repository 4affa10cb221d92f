"""The torch engine's critic: its values, its updates, and what a run records of it."""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf
from support import training
from support.late import LATE
from support.training import tiny

from bapo import methods
from bapo.algorithm.advantages import gae
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import Estimates, Group
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.places import run_directory
from bapo.store.files import MANIFEST, STEPS, read_json

if LATE:
    import torch
    from support import vision
    from torch import Tensor

    from bapo.engines.fast import scoring as scoring_qwen2
    from bapo.engines.shared.batch_tensors import Rows, collate, index_of
    from bapo.engines.torch.learner import Critic, MetricMeans, values_of, with_value_head
    from bapo.engines.torch.trainer import train


TRAIN = training.SECTION | {"mini_batch_size": 2}


def trained_head(model: torch.nn.Module) -> torch.nn.Module:
    """A value head that is not 0, with values of about 1: rounding stays far below the tests' tolerances."""
    with_value_head(model)
    torch.manual_seed(9)
    torch.nn.init.normal_(model.get_output_embeddings().weight, std=0.1)
    torch.nn.init.normal_(model.get_output_embeddings().bias, std=0.1)
    return model


def groups(seed: int = 3) -> list[Group]:
    return training.groups((4, 4, 4, 4), 24, seed=seed)


def critic(model: torch.nn.Module, train: dict | None = None, **options) -> Critic:
    config = OmegaConf.create({"model": {"kind": "scratch"}, "train": TRAIN | (train or {})})
    return Critic(model, config, methods.build({"algorithm": "ppo", **options}, 4, seed=1))


def all_rows(made: list[Group]):
    index = index_of(made)
    return index, collate(made, index, "cpu")


def test_a_value_belongs_to_the_state_before_its_token() -> None:
    model, made = trained_head(tiny(0)), groups()
    index, rows = all_rows(made)
    found = values_of(model, rows)
    for row, (g, i) in enumerate(index):
        prompt, n = made[g].prompt.row.tokens, int(made[g].samples.lengths[i])
        for t in range(n):
            prefix = torch.tensor([[*prompt, *made[g].samples.tokens[i, :t].tolist()]])
            state = model.model(input_ids=prefix).last_hidden_state[0, -1]
            expected = model.lm_head(state).item()
            assert found[row, t].item() == pytest.approx(expected, abs=1e-5)


def test_the_fast_way_and_the_librarys_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained_head(tiny(0))
    _, rows = all_rows(groups())
    assert scoring_qwen2.supports(model)
    fast = values_of(model, rows) * rows.mask
    gradient = torch.autograd.grad((fast**2).sum(), model.model.embed_tokens.weight)[0]
    monkeypatch.setattr(scoring_qwen2, "supports", lambda model: False)
    slow = values_of(model, rows) * rows.mask
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        gradient, torch.autograd.grad((slow**2).sum(), model.model.embed_tokens.weight)[0], atol=1e-4, rtol=1e-4
    )


def test_a_critic_sees_the_images(tokenizer, processor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts of equal tokens and different images have different values, as the library computes them."""
    model = trained_head(vision.build(tokenizer))
    prompts, own = vision.prepared(processor, "one image")
    assert prompts[0] == prompts[1]
    ids, starts, lengths, _, pictures, mask = vision.rows(prompts, own, [0, 1], [3, 3])
    ids[1] = ids[0]
    rows = Rows(ids, starts, lengths, mask, pictures)
    fast = values_of(model, rows)
    assert (fast[0] - fast[1]).abs().max() > 1e-3
    monkeypatch.setattr(scoring_qwen2, "supports", lambda model: False)
    torch.testing.assert_close(fast, values_of(model, rows), atol=1e-5, rtol=1e-5)


def test_a_new_critic_values_everything_at_0_and_all_of_it_is_trained() -> None:
    policy = tiny(0)
    fresh, names = critic(copy.deepcopy(policy)), dict(policy.named_parameters())
    assert not values_of(fresh.model, all_rows(groups())[1]).any()
    for part in (groups(), groups(seed=4)):  # from the second update on, when the head is no longer 0
        fresh.update(1, fresh.with_estimates(part, MetricMeans()), MetricMeans())
    body = {n: p for n, p in fresh.model.named_parameters() if "lm_head" not in n}
    assert len(body) == len(names) and not any(torch.equal(p, names[n]) for n, p in body.items())


def test_advantages_are_those_of_the_values_before_the_update() -> None:
    judge, made = critic(trained_head(tiny(0)), whiten_advantages=False, gae_lambda=0.7, gamma=0.9), groups()
    judge.model.set_output_embeddings(trained_head(tiny(0)).lm_head)  # with_value_head made it 0 again
    index, rows = all_rows(made)
    before = (values_of(judge.model, rows) * rows.mask).detach().numpy()
    rewards = np.zeros_like(before)
    for row, (g, i) in enumerate(index):
        rewards[row, made[g].samples.lengths[i] - 1] = made[g].rewards[i]
    expected, returns = gae(rewards, before, rows.mask.numpy(), 0.9, 0.7)
    metrics = MetricMeans()
    estimated = judge.with_estimates(made, metrics)
    tokens = sum(judge.update(1, part, metrics) for part in (estimated[:2], estimated[2:]))
    np.testing.assert_allclose(np.concatenate([g.estimates.advantages for g in estimated]), expected, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([g.estimates.values for g in estimated]), before, atol=1e-5)
    assert tokens == sum(len(g.prompt.row.tokens) * g.size + g.samples.lengths.sum() for g in made)
    assert judge.updates == 2
    inside = rows.mask.numpy() > 0
    explained = 1 - np.var((returns - before)[inside], ddof=1) / np.var(returns[inside], ddof=1)
    assert metrics.means()["explained_variance"] == pytest.approx(explained, abs=1e-3)
    assert set(metrics.means()) == {"explained_variance", "value_loss", "value_clip_fraction", "critic_gradient_norm"}


def test_micro_batches_change_nothing() -> None:
    made, found = groups(), []
    for size in (None, 3):
        one = critic(tiny(0), {"micro_batch_size": size})
        for _ in range(2):
            estimated = one.with_estimates(made, MetricMeans())
            for part in (estimated[:2], estimated[2:]):
                one.update(1, part, MetricMeans())
        found.append(values_of(one.model, all_rows(made)[1]).detach())
    assert found[0].abs().max() > 1e-3
    torch.testing.assert_close(*found, atol=2e-6, rtol=1e-4)


def test_the_policy_learns_from_the_tokens_own_advantages() -> None:
    """A token with a positive advantage becomes more probable, one with a negative less, within one response."""
    made, policy = training.groups((2,), 24), tiny(0)
    options = {"algorithm": "ppo", "kl_to": "none", "entropy_coef": 0.0}
    learner = training.learner(policy, options, critic=critic(tiny(seed=1)), mini_batch_size=2)
    advantages = np.where(np.arange(made[0].samples.tokens.shape[1]) % 2, -1.0, 1.0)[None].repeat(2, 0)
    _, rows = all_rows(made)
    score = scoring_qwen2.score(policy, rows.ids, rows.starts, rows.lengths)[0].detach()
    made[0].samples.logprobs[:] = score.numpy()
    estimates = Estimates(advantages, advantages, advantages.astype(np.float32))
    learner._one_update(1, [replace(made[0], estimates=estimates)], 0, MetricMeans(), defaultdict(list))
    change = (scoring_qwen2.score(policy, rows.ids, rows.starts, rows.lengths)[0] - score).detach()
    assert (change.numpy() * advantages)[rows.mask.numpy() > 0].mean() > 0
    gained = [(change.numpy()[rows.mask.numpy() * (advantages == sign) > 0]).mean() for sign in (1, -1)]
    assert gained[0] > 0 > gained[1]


def test_a_gradient_that_is_not_finite_is_named() -> None:
    one, made = critic(tiny(0)), groups()
    with torch.no_grad():
        one.model.lm_head.weight.fill_(float("inf"))
    with pytest.raises(
        UserError, match=r"^ppo: PPO.value_loss returned nan at step 7, update 1; .*method\.critic_rate"
    ):
        one.update(7, one.with_estimates(made, MetricMeans()), MetricMeans())


@pytest.mark.parametrize(
    ("factor", "fault"),
    [(float("nan"), "grpo: GRPO.loss returned nan"), (0.0, "the gradient of grpo: GRPO.loss is not")],
)
def test_a_loss_that_is_not_finite_is_told_from_its_gradient(factor: float, fault: str) -> None:
    learner = training.learner(tiny(0), {"algorithm": "grpo"})
    loss = learner.method.loss

    def broken(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        value, metrics = loss(inputs)
        return value + factor * torch.sqrt(0 * value), metrics  # the root has no slope at 0

    learner.method.loss = broken
    with pytest.raises(UserError, match=rf"^{fault}.* at step 3, update 1; .*lower train.learning_rate"):
        learner.update(3, training.groups((4, 4), 24))


def test_a_ba_ppo_run_records_its_critic(tiny_world: list[str]) -> None:
    ranges = ["method.c2_range=[0.125,0.125]", "method.c3_range=[0.625,0.625]", "method.high_admission=informative"]
    config = compose_config([*tiny_world, "method=ba_ppo", "method.v=2", "method.m=2", *ranges, "seed=11"])
    train(config)
    steps = pd.read_parquet(run_directory(config) / STEPS)
    assert steps["x1"].sum() > 0 and steps["x3"].sum() > 0 and steps["staleness"].max() > 0
    trained = steps["updates"] > 0
    for name in ("value_loss", "explained_variance", "critic_gradient_norm", "value_clip_fraction"):
        assert np.isfinite(steps.loc[trained, name]).all() and steps.loc[~trained, name].isna().all()
    assert steps.loc[trained, "value_loss"].gt(0).all()
    # forward and backward: the policy's tokens once each, the critic's twice and once, at 112 thousand parameters
    ratio = steps.loc[trained, "backward_flops"] / steps.loc[trained, "trained_tokens"] / 4
    parameters = read_json(run_directory(config) / MANIFEST)["parameters"]
    assert ratio.to_numpy() == pytest.approx(2 * parameters + 65)  # its head: 64 weights and a bias
    assert steps["backward_flops"][~trained].eq(0).all()
