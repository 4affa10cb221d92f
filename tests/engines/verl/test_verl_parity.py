"""The same recorded groups give the same batch, advantages, loss and gradients in both engines."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch
from omegaconf import OmegaConf
from support.training import SECTION, tiny
from tensordict import TensorDict
from transformers import Qwen2ForCausalLM
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.padding import response_from_nested, response_to_nested

from bapo import methods
from bapo.algorithm.batch import mini_batches
from bapo.algorithm.rollouts import DEMONSTRATED, FRESH, ORIGINS, REEVALUATED, REPLAYED, Group, Prompt, Samples
from bapo.engines.shared.prompts import Row
from bapo.engines.shared.records import effective_sample_size
from bapo.engines.torch.learner import Learner
from bapo.engines.torch.rollout import continued
from bapo.engines.verl.batches import LAYOUT, counts_of, lay_out, spread
from bapo.engines.verl.sampler import with_grown
from bapo.engines.verl.worker import divergence, policy_loss

VOCABULARY, END, G, B, MINI, STEPS, SEED = 24, 1, 4, 8, 4, 6, 3
LONGEST = 9  # tokens of a response
TEMPERATURE = 0.9
TRAIN = SECTION | {"batch_size": B, "mini_batch_size": MINI, "group_size": G, "learning_rate": 1e-4}
COMMON = {"kl_coef": 0.05, "entropy_coef": 0.01}
BAPO = {"m": 3, "c2_range": [0.2, 0.3], "c3_range": [0.5, 0.8], **COMMON}  # a range that groups of 4 can hit
METHODS = {
    "grpo": COMMON,
    "dapo": {},
    "grpo_delayed": {"v": 5, **COMMON},
    "repo": {"capacity": 8, "min_cached": 8, "replays": 5, "off_policy_weight": 0.7, "entropy_coef": 0.01},
    "bapo": BAPO,
    "bapo, a sum of two expectations": {"algorithm": "bapo", "expectations": "separate", **BAPO},
    # parts of groups, ratios and KL to the step's policy, advantages by the buffer
    "bapo_code": {"x2_weight": 3.0, **BAPO},
    "bapo_without_x2": BAPO,
    "bapo_without_x3": BAPO,
    "bapo_duplicates": BAPO,
    "bapo_shuffled": BAPO,
    "grpo_random_reward": COMMON,
    "gspo": {"clip_low": 0.1, "clip_high": 0.1, "entropy_coef": 0.01},
    "mopps": {"entropy_coef": 0.01},
    "arpo": COMMON,
    "dots_rr": {"first_steps": 1, **COMMON},
    "areal": {"staleness": 1, **COMMON},
    "m2po": {"staleness": 1, "threshold": 0.1, "entropy_coef": 0.01},
    "bapo_xi": {"staleness": 1, "entropy_coef": 0.01},
    "mu_grpo": {"veto": 0.6, "clip_low": 0.4, "clip_high": 1.0, "entropy_coef": 0.01},
    "rl_zvp": {"entropy_coef": 0.01},
    "freshper": COMMON,
    "fifo_replay": COMMON,
    "grpo, truncated sequence weights": {"algorithm": "grpo", "sequence_weights": "truncate", **COMMON},
    "bapo, masked sequence weights": {"algorithm": "bapo", "sequence_weights": "mask", **BAPO},
    "remix": {"switch_step": 2, **COMMON},
    "luffy": {"entropy_coef": 0.01},
    "exgrpo": {"start_reward": 0.1, "entropy_coef": 0.01},
    "dots": {"first_steps": 1, **COMMON},
    "partial_rollouts": {"segments": "current", **COMMON},
    "relift": {"buffer_share": 0.4, "entropy_coef": 0.01},
}
PROMPTS = [Prompt(f"p{i}", Row(tuple(2 + (i * 7 + j) % 20 for j in range(3 + i % 3)), "")) for i in range(B)]


def record(prompt: Prompt, step: int, call: int, origin: str, group_size: int = G) -> Group:
    """A group that depends on its arguments only; log-probabilities near those of a tiny model."""
    rng = np.random.default_rng([int(prompt.id[1:]), step, call])
    lengths = rng.integers(1, 7, group_size).astype(np.int32)
    tokens = np.zeros((group_size, int(lengths.max())), dtype=np.int32)
    logprobs = np.zeros(tokens.shape, dtype=np.float32)
    for i, n in enumerate(lengths):
        tokens[i, :n] = rng.integers(2, VOCABULARY, n)
        logprobs[i, :n] = -3.2 + rng.normal(0, 0.4, n)
    # p0 and p1 are hard until they are looked at again; the others are of every accuracy
    chance = 0.0 if int(prompt.id[1:]) < 2 and not call else rng.choice([0.0, 0.25, 0.5, 1.0])
    rewards = (rng.random(group_size) < chance).astype(np.float32)
    if call and group_size > 1:
        rewards[0], rewards[1] = 1.0, 0.0
    return Group(prompt, rewards, step, step - 1, Samples(tokens, lengths, logprobs), origin)


class RecordedSampler:
    def __init__(self, step: int) -> None:
        self.step, self.calls = step, 0

    def draw(self, count: int) -> list[Prompt]:
        return [PROMPTS[i % B] for i in range(count)]

    def regenerate(self, prompts: list[Prompt], group_size: int | None = None, policy: str = "current") -> list[Group]:
        self.calls += 1
        return [record(p, self.step, self.calls, REEVALUATED, group_size or G) for p in prompts]

    def demonstrate(self, prompts: list[Prompt]) -> list[Group | None]:
        """One right response, whose log-probabilities are 0; the expert knows nothing of p3."""
        found = []
        for prompt in prompts:
            group = record(prompt, self.step, 9, DEMONSTRATED, 1)
            group.rewards[:], group.samples.logprobs[:] = 1.0, 0.0
            found.append(None if prompt.id == "p3" else group)
        return found

    def embed(self, prompts: list[Prompt]) -> np.ndarray:
        return np.stack([np.random.default_rng(int(p.id[1:])).normal(size=5) for p in prompts]).astype(np.float32)

    def resume(self, groups: list[Group]) -> list[Group]:
        """Three more tokens, and then all have ended; each engine has its own way to put them behind the others."""
        found = []
        for group in groups:
            more = record(group.prompt, self.step, 5, FRESH)
            # all three tokens of a response that goes on
            added = {
                int(i): Samples(
                    more.samples.tokens[[i], :1].repeat(3, 1),
                    np.array([3]),
                    more.samples.logprobs[[i], :1].repeat(3, 1),
                )
                for i in np.flatnonzero(group.unfinished)
            }
            rewards = np.where(group.unfinished, more.rewards, group.rewards)
            samples = continued(group.samples, added)
            verl = with_grown(group, {i: replace(more.select([i]), samples=samples.select([i])) for i in added}).samples
            np.testing.assert_array_equal(verl.tokens, samples.tokens[:, : verl.tokens.shape[1]])
            np.testing.assert_array_equal(verl.logprobs, samples.logprobs[:, : verl.tokens.shape[1]])
            np.testing.assert_array_equal(verl.lengths, samples.lengths)
            found.append(replace(group, rewards=rewards, samples=samples, unfinished=np.zeros(G, dtype=bool)))
        return found

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        return [np.where(g.samples.logprobs != 0, -1.0 - g.samples.tokens / 10, 0).astype(np.float32) for g in groups]


def batches(name: str) -> tuple[methods.Method, list[list[Group]]]:
    """The method after STEPS steps, and the groups of each step's batch."""
    method = methods.build({"algorithm": name, **METHODS[name]}, batch_size=B, seed=SEED)
    made = []
    for step in range(1, STEPS + 1):
        sampler = RecordedSampler(step)
        prompts = method.draw_prompts(step, sampler)
        fresh = [record(p, step, 0, FRESH) for p in prompts]
        budget = method.rollout_budget(step, LONGEST)
        for group in fresh if budget else []:
            group.unfinished = group.samples.lengths >= budget
            group.rewards[group.unfinished] = 0.0
        made.append(method.build_batch(step, fresh, sampler).groups)
    return method, made


def torch_learner(method: methods.Method, model: Qwen2ForCausalLM, reference: Qwen2ForCausalLM) -> Learner:
    config = OmegaConf.create(
        {"model": {"kind": "scratch"}, "train": TRAIN, "sampling": {"temperature": TEMPERATURE}, "seed": SEED}
    )
    return Learner(copy.deepcopy(model), reference, config, method)


# ------------------------------------------------------------------------------------------------ verl's side


class Engine(FSDPEngineWithLMHead):
    """verl's own forward pass and log-probabilities, without its process groups."""

    def __init__(self, model: Qwen2ForCausalLM) -> None:
        self.module, self.pad_to_length, self.use_ulysses_sp = model, False, False
        self.engine_config = OmegaConf.create({"entropy_checkpointing": False})
        self._autocast_dtype = torch.float32

    def get_data_parallel_group(self):
        return None


def nested(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)


def verl_rows(groups: list[Group]) -> list[dict[str, torch.Tensor]]:
    """One row a response with the fields that verl's agent loop writes."""
    rows = []
    for group in groups:
        prompt = torch.tensor(group.prompt.row.tokens)
        for i in range(group.size):
            n = int(group.samples.lengths[i])
            response = torch.from_numpy(group.samples.tokens[i, :n].astype(np.int64))
            ids, mask, scores = torch.cat([prompt, response]), torch.ones(n, dtype=torch.int64), torch.zeros(n)
            scores[-1] = float(group.rewards[i])
            rows.append(
                {
                    "prompts": prompt,
                    "responses": response,
                    "input_ids": ids,
                    "position_ids": torch.arange(len(ids)),
                    "response_mask": mask,
                    "loss_mask": mask,
                    "rm_scores": scores,
                    "rollout_log_probs": torch.from_numpy(group.samples.logprobs[i, :n].copy()),
                }
            )
    return rows


def as_batch(rows: list[dict[str, torch.Tensor]], **more: object) -> TensorDict:
    data = TensorDict({name: nested([row[name] for row in rows]) for name in rows[0]}, batch_size=len(rows))
    tu.assign_non_tensor(data, temperature=TEMPERATURE, use_remove_padding=False, **more)
    return data


def verl_logprobs(model: Qwen2ForCausalLM, data: TensorDict) -> torch.Tensor:
    with torch.no_grad():
        _, output = Engine(model).forward_step(data, loss_function=None, forward_only=True)
    return response_from_nested(output["model_output"]["log_probs"], data["response_mask"])


def accumulated(engine: type, model: torch.nn.Module, shares: list[list[dict]], function) -> tuple[float, dict, dict]:
    """Loss, gradients and sums of metrics of one mini-batch, in two micro-batches of different size on each rank."""
    total, gradients, sums = 0.0, {}, {}
    for mine in shares:
        own = copy.deepcopy(model)
        cut = max(1, len(mine) // 3)
        for part in (p for p in (mine[:cut], mine[cut:]) if p):
            micro = as_batch(part, dp_size=len(shares), calculate_entropy=True)
            loss, output = engine(own).forward_step(micro, function, forward_only=False)
            loss.backward()
            total += float(loss.detach()) / len(shares)
            for key, metric in output["metrics"].items():
                name = key.removeprefix("bapo/")
                sums[name] = sums.get(name, 0.0) + metric.aggregate()
        for key, parameter in own.named_parameters():
            gradients[key] = gradients.get(key, 0.0) + parameter.grad / len(shares)
    return total, gradients, sums


def verl_update(
    method: methods.Method,
    groups: list[Group],
    model: Qwen2ForCausalLM,
    reference: Qwen2ForCausalLM,
    ranks: int,
    step: int,
) -> tuple[float, list[torch.Tensor], torch.Tensor]:
    """(loss, gradients, advantages [N, T] of the real rows) of one mini-batch on ``ranks`` data-parallel ranks."""
    layout = lay_out(method, [groups], OmegaConf.create(TRAIN), ranks, step)
    rows = verl_rows(groups)
    template, _ = construct_minimal_padding_template(rows[0], {}, END)
    template = {name: template[name] for name in rows[0]}
    rows += [template] * (len(layout.order) - len(rows))
    rows = [rows[i] for i in layout.order]

    whole = as_batch(rows)
    estimated = spread(layout.advantages, whole.select("response_mask").to_padded_tensor()["response_mask"])
    whole["advantages"] = response_to_nested(estimated, whole["response_mask"])
    whole["old_log_probs"] = verl_logprobs(model, whole) if method.needs_step_policy else whole["rollout_log_probs"]
    whole["ref_log_prob"] = verl_logprobs(reference, whole)
    whole[LAYOUT] = nested(list(torch.from_numpy(layout.columns)))
    fields = [n for n in whole.keys() if isinstance(whole[n], torch.Tensor)]  # noqa: SIM118
    rows = [{name: whole[name][i] for name in fields} for i in range(len(rows))]

    share = len(rows) // ranks
    shares = [rows[rank * share : (rank + 1) * share] for rank in range(ranks)]
    total, gradients, _ = accumulated(Engine, model, shares, partial(policy_loss, method=method))
    places = torch.tensor([i for i, row in enumerate(layout.order) if row < layout.rows])
    order = torch.tensor([row for row in layout.order if row < layout.rows])
    return total, list(gradients.values()), estimated[places][torch.argsort(order)]


# ------------------------------------------------------------------------------------------------ tests


#: what the batches of the methods hold beside fresh groups, so that all of it is compared
HOLDS = {
    "repo": {FRESH, REPLAYED},
    "bapo": set(ORIGINS),
    "bapo, a sum of two expectations": set(ORIGINS),
    "bapo_code": set(ORIGINS),
    "bapo_without_x2": {FRESH, REPLAYED},
    "bapo_without_x3": {FRESH, REEVALUATED},
    "bapo_duplicates": set(ORIGINS),
    "bapo_shuffled": set(ORIGINS),
    "dots_rr": {FRESH, REPLAYED},
    "dots": {FRESH, REPLAYED},
    "areal": {FRESH, REPLAYED},
    "m2po": {FRESH, REPLAYED},
    "bapo_xi": {FRESH, REPLAYED},
    "freshper": {FRESH, REPLAYED},
    "fifo_replay": {FRESH, REPLAYED},
    "bapo, masked sequence weights": set(ORIGINS),
    "remix": {FRESH, REPLAYED},
    "relift": {FRESH, DEMONSTRATED},
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_advantages_losses_and_gradients_agree(name: str, ranks: int) -> None:
    model, reference = tiny(0), tiny(1)
    method, made = batches(name)
    assert {g.origin for groups in made for g in groups} == HOLDS.get(name, {FRESH})
    mixed = any(g.off_policy is not None for groups in made for g in groups)
    assert mixed == (name in ("arpo", "luffy", "exgrpo"))
    # a step whose batch has as many origins as the method ever mixes, and as many responses of other policies
    step = max(
        range(STEPS),
        key=lambda i: (len({g.origin for g in made[i]}), len(made[i]), sum(g.replayed.sum() for g in made[i])),
    )
    if name in ("partial_rollouts", "m2po", "freshper"):  # what it says of tokens or groups is of its last batch
        step = STEPS - 1
        assert any(g.step < STEPS for g in made[step])
    for part in mini_batches(method, OmegaConf.create(TRAIN), SEED, step + 1, made[step]):
        learner = torch_learner(method, model, reference)
        noted: dict[str, float] = {}
        step_logprobs = learner._step_logprobs(part) if method.needs_step_policy else None
        learner._one_update(
            step + 1, part, step_logprobs, None, lambda key, value, _, noted=noted: noted.update({key: value})
        )
        loss, gradients, advantage = verl_update(method, part, model, reference, ranks, step + 1)
        own = [values for g in part for values in method.advantages(g)]
        lengths = np.concatenate([g.samples.lengths for g in part])
        for values, row, n in zip(own, advantage.numpy(), lengths, strict=True):
            np.testing.assert_allclose(
                row[:n], np.broadcast_to(values, (n,)) if values.ndim == 0 else values[:n], atol=1e-5
            )
        assert loss == pytest.approx(noted["loss"], abs=1e-5)
        assert max(float(g.abs().max()) for g in gradients) > 1e-3
        for gradient, parameter in zip(gradients, learner.parameters, strict=True):
            torch.testing.assert_close(gradient, parameter.grad, atol=1e-5, rtol=1e-5)


def test_the_terms_of_the_bound_are_the_same_in_both_engines() -> None:
    """TV, the surrogate of eq. 22, clips and ratios by origin: three responses with whole ratios 2, 1/2 and 1 (X3)."""
    logprobs = torch.log(torch.tensor([[2.0, 1.0], [0.25, 2.0], [1.0, 7.0]]))
    mask = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])  # the last response has one token
    advantages, origins = torch.tensor([1.0, -3.0, 0.5]), [FRESH, FRESH, REPLAYED]
    clipped = torch.tensor([0.5, 0.0, 1.0])
    rows = SimpleNamespace(behaviour_logprobs=torch.zeros(3, 2), origins=origins)
    noted: dict[str, tuple[float, float]] = {}
    Learner._note_divergence(
        logprobs, rows, advantages, mask, clipped, lambda name, value, weight: noted.update({name: (value, weight)})
    )
    # |2 - 1| / 2 and |1/2 - 1| / 2; 2 * 1 and 1/2 * -3; the replayed one: 0 and 1 * 0.5
    expected = {"tv_x1": (0.375, 2), "tv_x3": (0.0, 1), "surrogate_x1": (0.25, 2), "surrogate_x3": (0.5, 1)}
    expected |= {"clipped_x1": (0.25, 2), "clipped_x3": (1.0, 1), "ratio_x1": (1.25, 2), "ratio_x3": (1.0, 1)}
    assert noted == expected | {"ratio_squared_x1": (2.125, 2), "ratio_squared_x3": (1.0, 1)}
    values = {name: value for name, (value, _) in noted.items()}
    assert effective_sample_size(values, 1) == pytest.approx(2.5**2 / (2 * 4.25))
    assert effective_sample_size(values, 3) == 1.0 and math.isnan(effective_sample_size(values, 2))
    number = torch.tensor([ORIGINS.index(origin) for origin in origins])
    found = divergence(logprobs, torch.zeros(3, 2), mask, number, advantages[:, None] * mask, clipped)
    for name, (value, weight) in noted.items():
        assert float(found[f"{name}_count"]) == weight
        assert float(found[f"{name}_sum"]) == pytest.approx(value * weight)
    assert float(found["surrogate_x2_count"]) == 0.0
    assert not any(n.startswith("surrogate") for n in divergence(logprobs, logprobs, mask, number, None, clipped))


def test_mini_batches_of_other_sizes_keep_their_rows_and_flags_apart() -> None:
    """Three mixed groups of four, then two single solutions: the second mini-batch is mostly padding."""
    mixed = [record(PROMPTS[i], 1, 0, FRESH) for i in range(3)]
    for group in mixed:
        group.off_policy = np.array([False, False, False, True])
    solutions = [record(PROMPTS[i], 1, 9, DEMONSTRATED, group_size=1) for i in range(2)]
    method = methods.build({"algorithm": "grpo"}, batch_size=B, seed=SEED)
    layout = lay_out(method, [mixed, solutions], OmegaConf.create(TRAIN), ranks=2, step=7)
    assert (layout.rows, layout.rows_per_update, len(layout.order)) == (14, 12, 24)
    columns = layout.columns[np.argsort(layout.order)]  # rows of the groups, then padding
    origin, replayed = columns[:, 0].tolist(), columns[:, 2].tolist()
    assert origin == [0, 0, 0, 3] * 3 + [3, 3] + [-1] * 10
    assert replayed == [0, 0, 0, 1] * 3 + [1, 1] + [1] * 10  # padding of a supervised mini-batch looks like the rest
    lengths = [g.samples.lengths for g in mixed]
    assert counts_of(torch.from_numpy(columns[:1])) == {
        "step": 7,
        "nominal_sequences": MINI * G,
        "fresh_sequences": 9,
        "replayed_sequences": 3,
        "fresh_tokens": sum(int(n[:3].sum()) for n in lengths),
        "replayed_tokens": sum(int(n[3]) for n in lengths),
        "token_advantages": 0,
        "phase": 0,
    }
    second = counts_of(torch.from_numpy(columns[12:13]))
    assert (second["fresh_sequences"], second["replayed_sequences"], second["fresh_tokens"]) == (0, 2, 0)
    half = layout.rows_per_update // 2
    for rank in range(2):  # each rank: six rows of the first mini-batch, then one solution and padding
        run = [row for row in layout.order[rank * 2 * half : (rank + 1) * 2 * half]]
        assert all(row < 12 for row in run[:half]) and sum(row in (12, 13) for row in run[half:]) == 1
    found = layout.advantages[np.argsort(layout.order)]
    np.testing.assert_allclose(found[:4], method.advantages(mixed[0]))
    assert not found[14:].any()


def test_metrics_are_sums_over_the_mini_batch() -> None:
    """However verl cuts a mini-batch, entropy and clip fraction come out as token means."""
    from bapo.engines.verl.recorder import update_metrics

    method, made = batches("grpo")
    model = tiny(0)
    rows = verl_rows(made[0][:MINI])
    for row in rows:
        row["old_log_probs"], row["advantages"] = row["rollout_log_probs"], torch.ones(len(row["responses"]))
        row["ref_log_prob"] = row["rollout_log_probs"]
        row[LAYOUT] = torch.tensor([0, 1, 0, 1, 16, 16, 0, 40, 0, 0, 0], dtype=torch.float64)

    def metrics(cuts: list[int]) -> dict[str, float]:
        loss_function = partial(policy_loss, method=method)
        sums = {"actor/grad_norm": 1.0}
        for part in np.split(np.arange(len(rows)), cuts):
            micro = as_batch([rows[i] for i in part], dp_size=1, calculate_entropy=True)
            with torch.no_grad():
                _, output = Engine(model).forward_step(micro, loss_function, forward_only=True)
            for key, metric in output["metrics"].items():
                sums[f"actor/{key}"] = sums.get(f"actor/{key}", 0.0) + metric.aggregate()
        return update_metrics(sums)

    whole, cut = metrics([]), metrics([3, 10])
    assert set(whole) >= {"loss", "clip_fraction", "kl", "entropy", "tv_x1"}
    assert whole == pytest.approx(cut, rel=1e-5)
    assert 0 < whole["clip_fraction"] < 1
    assert whole["entropy"] > 0.1
    # an expert's rows (3: none of X1, X2, X3) are left out of both, as where they were not there
    fresh = rows[:5]
    for row in rows[5:]:
        row[LAYOUT] = row[LAYOUT].clone()
        row[LAYOUT][0] = 3
    mixed = metrics([])
    rows[:] = fresh
    own = metrics([])
    assert all(mixed[n] == pytest.approx(own[n], rel=1e-5) for n in ("clip_fraction", "kl", "entropy"))
    assert mixed["entropy"] != pytest.approx(whole["entropy"], rel=1e-6)
