"""Recorded groups, and verl's own forward pass over rows of them without Ray or process groups."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transformers import Qwen2ForCausalLM
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.padding import response_from_nested

from bapo import methods
from bapo.algorithm.rollouts import DEMONSTRATED, FRESH, Group, Prompt, Samples
from bapo.engines.shared.prompts import PromptTokens
from bapo.engines.torch.learner import Critic, Learner
from bapo.engines.torch.rollout import extend
from bapo.engines.verl.batch_layout import BatchLayout
from bapo.engines.verl.step_sampler import with_continued
from support.training import SECTION

VOCABULARY, END, G, B, MINI, STEPS, SEED = 24, 1, 4, 8, 4, 6, 3
LONGEST = 9  # tokens of a response
TEMPERATURE = 0.9
TRAIN = SECTION | {"batch_size": B, "mini_batch_size": MINI, "group_size": G, "learning_rate": 1e-4}
PROMPTS = [Prompt(f"p{i}", PromptTokens(tuple(2 + (i * 7 + j) % 20 for j in range(3 + i % 3)), "")) for i in range(B)]


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

    def regenerate(self, prompts: list[Prompt], origin: str, policy: str = "current") -> list[Group]:
        self.calls += 1
        return [record(p, self.step, self.calls, origin) for p in prompts]

    def demonstrate(self, prompts: list[Prompt]) -> list[Group | None]:
        """One right response, whose log-probabilities are 0; the expert knows nothing of p3."""
        found = []
        for prompt in prompts:
            group = record(prompt, self.step, 9, DEMONSTRATED, 1)
            group.grade(np.ones(group.size))
            group.samples.logprobs[:] = 0.0
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
            samples = extend(group.samples, added)
            singles = {i: replace(more.select([i]), samples=samples.select([i])) for i in added}
            verl = with_continued(group, singles).samples
            np.testing.assert_array_equal(verl.tokens, samples.tokens[:, : verl.tokens.shape[1]])
            np.testing.assert_array_equal(verl.logprobs, samples.logprobs[:, : verl.tokens.shape[1]])
            np.testing.assert_array_equal(verl.lengths, samples.lengths)
            found.append(replace(group, rewards=rewards, samples=samples, unfinished=np.zeros(G, dtype=bool)))
        return found

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        return [np.where(g.samples.logprobs != 0, -1.0 - g.samples.tokens / 10, 0).astype(np.float32) for g in groups]


def batches(options: dict[str, object]) -> tuple[methods.Method, list[methods.Batch]]:
    """A method of these options after STEPS steps, and each step's batch."""
    method = methods.build(options, batch_size=B, seed=SEED)
    made = []
    for step in range(1, STEPS + 1):
        sampler = RecordedSampler(step)
        prompts = method.draw_prompts(step, sampler)
        fresh = [record(p, step, 0, FRESH) for p in prompts]
        budget = method.rollout_budget(step, LONGEST)
        for group in fresh if budget else []:
            group.unfinished = group.samples.lengths >= budget
            group.grade(np.where(group.unfinished, 0.0, group.rewards))
        made.append(method.build_batch(step, fresh, sampler))
    return method, made


def fullest(made: list[methods.Batch]) -> int:
    """The batch with as many origins as the method ever mixes, and as many responses of other policies."""
    groups = [batch.groups for batch in made]
    return max(
        range(STEPS),
        key=lambda i: (len({g.origin for g in groups[i]}), len(groups[i]), sum(g.replayed.sum() for g in groups[i])),
    )


def torch_learner(
    method: methods.Method, model: Qwen2ForCausalLM, reference: Qwen2ForCausalLM, critic: Critic | None = None
) -> Learner:
    config = OmegaConf.create(
        {"model": {"kind": "scratch"}, "train": TRAIN, "sampling": {"temperature": TEMPERATURE}, "seed": SEED}
    )
    return Learner(copy.deepcopy(model), reference, config, method, critic)


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


def padded_rows(groups: list[Group], layout: BatchLayout) -> list[dict[str, torch.Tensor]]:
    """The groups' rows and verl's padding, in the order of a layout."""
    rows = verl_rows(groups)
    template, _ = construct_minimal_padding_template(rows[0], {}, END)
    rows += [{name: template[name] for name in rows[0]}] * (len(layout.order) - len(rows))
    return [rows[i] for i in layout.order]


def rows_of(batch: TensorDict) -> list[dict[str, torch.Tensor]]:
    """The rows of a batch, with every field that is a tensor."""
    fields = [n for n in batch.keys() if isinstance(batch[n], torch.Tensor)]  # noqa: SIM118
    return [{name: batch[name][i] for name in fields} for i in range(len(batch))]


def as_batch(rows: list[dict[str, torch.Tensor]], **more: object) -> TensorDict:
    data = TensorDict({name: nested([row[name] for row in rows]) for name in rows[0]}, batch_size=len(rows))
    tu.assign_non_tensor(data, temperature=TEMPERATURE, use_remove_padding=False, **more)
    return data


def verl_logprobs(model: Qwen2ForCausalLM, data: TensorDict) -> torch.Tensor:
    with torch.no_grad():
        _, output = Engine(model).forward_step(data, loss_function=None, forward_only=True)
    return response_from_nested(output["model_output"]["log_probs"], data["response_mask"])


def accumulated(
    engine: type, model: torch.nn.Module, shares: list[list[dict]], function, in_parts: bool = True
) -> tuple[float, dict, dict]:
    """Loss, gradients and sums of metrics of one mini-batch, in two micro-batches of different size on each rank."""
    total, gradients, sums = 0.0, {}, {}
    for mine in shares:
        own = copy.deepcopy(model)
        cut = max(1, len(mine) // 3) if in_parts else len(mine)
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
