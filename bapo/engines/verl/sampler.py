"""``bapo.methods.Sampler`` on verl: rollouts, expert solutions and scores while a method builds its batch."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.utils.model import get_generation_config
from verl.workers.utils.padding import response_from_nested

from bapo import seeds, tasks
from bapo.algorithm.rollouts import FRESH, REEVALUATED, Group, Prompt, Samples
from bapo.engines.shared import data, models
from bapo.engines.shared.demonstrations import demonstrate
from bapo.engines.shared.sampler import SamplingParameters
from bapo.engines.torch.rollout import unfinished
from bapo.engines.verl import embeddings
from bapo.engines.verl.batches import Rows
from bapo.engines.verl.prompts import Beginning
from bapo.engines.verl.rows import TRAIN, Asked, samples_of
from bapo.experiments.identity import base_identity

if TYPE_CHECKING:
    from bapo.engines.verl.trainer import MethodTrainer


class StepSampler:
    """One training step's sampler. What it generates and scores is charged to the trainer's ledger."""

    def __init__(self, trainer: MethodTrainer, step: int, budget: int | None) -> None:
        """budget: of tokens, for a response of this step's rollout and one that is resumed."""
        self.trainer, self.step, self.budget = trainer, step, budget
        self._drawn: set[str] = set()
        self._calls = 0

    @cached_property
    def parameters(self) -> SamplingParameters:
        t, s = self.trainer, self.trainer.run.sampling
        generation = generation_config(t.config.actor_rollout_ref.model.path)  # vLLM ends responses by it, too
        eos_ids, pad_id = models.special_tokens(t.tokenizer, generation)
        return SamplingParameters(s.temperature, s.top_p, s.top_k, s.max_response_tokens, eos_ids, pad_id)

    def draw(self, count: int) -> list[Prompt]:
        prompts = self.trainer.source.stream.draw(count)
        self._drawn.update(p.id for p in prompts)
        return prompts

    # ------------------------------------------------------------------ rollouts
    def regenerate(self, prompts: list[Prompt], group_size: int | None = None) -> list[Group]:
        """Prompts drawn in this step count as fresh rollouts (DAPO's further batches), all others as regenerated."""
        self._calls += 1
        if not prompts:
            return []
        origin = FRESH if all(p.id in self._drawn for p in prompts) else REEVALUATED
        begun, size = time.perf_counter(), group_size or self.trainer.run.train.group_size
        meta, asked = self._generate(prompts, size, ("regenerate", self._calls))
        groups = self.received(meta, asked, origin, self.step - 1)
        self.trainer.seconds["rollout" if origin == FRESH else "regenerate"] += time.perf_counter() - begun
        return groups

    def _generate(
        self,
        prompts: list[Prompt],
        size: int,
        purpose: tuple[object, ...],
        max_tokens: list[int | None] | None = None,
        beginnings: list[Beginning] | None = None,
    ) -> tuple[KVBatchMeta, Asked]:
        """Finished rows of responses from the current policy."""
        t = self.trainer
        t.load(self.step - 1, self.step - 1)
        rows = t.source.batch(prompts, size, self.step, purpose, max_tokens, beginnings)
        asked = Asked(dict(zip(list(rows["uid"]), prompts, strict=True)), size)
        t._submit_batch_to_rollout(rows)
        meta, _ = t.replay_buffer.collect(self.step, TRAIN, len(prompts))
        return meta, asked

    def received(self, meta: KVBatchMeta, asked: Asked, origin: str, version: int) -> list[Group]:
        """The groups of finished rows, charged to the ledger."""
        t = self.trainer
        groups, seconds = t.rows.groups(meta, asked, self.step, version, origin)
        t.seconds["reward"] += seconds
        t.ledger.add(groups, origin, sum(t.rows.prompt_tokens(g) for g in groups))
        return groups

    def fresh(self, meta: KVBatchMeta, asked: Asked, version: int) -> list[Group]:
        """The groups of the step's own rollout."""
        groups = self.received(meta, asked, FRESH, version)
        return [self._marked(g) for g in groups] if self.budget else groups

    def resume(self, groups: list[Group]) -> list[Group]:
        """One row a response, which comes back whole: what it had, and what the current policy put behind it."""
        self._calls += 1
        begun, t = time.perf_counter(), self.trainer
        open_rows = [np.zeros(g.size, dtype=bool) if g.unfinished is None else g.unfinished for g in groups]
        index = [(n, int(i)) for n, rows in enumerate(open_rows) for i in np.flatnonzero(rows)]
        grown: dict[tuple[int, int], Group] = {}
        if index:
            beginnings = [beginning(groups[n].samples, i) for n, i in index]
            prompts, limits = [groups[n].prompt for n, _ in index], [self.budget] * len(index)
            meta, asked = self._generate(prompts, 1, ("resume", self._calls), limits, beginnings)
            found, seconds = t.rows.groups(meta, asked, self.step, self.step - 1, FRESH)
            before = sum(len(b.tokens) for b in beginnings)
            t.ledger.generated_tokens += sum(int(g.samples.lengths[0]) for g in found) - before
            t.ledger.prompt_tokens += sum(t.rows.prompt_tokens(g) for g in found) + before
            t.seconds["reward"] += seconds
            grown = dict(zip(index, found, strict=True))
        t.seconds["rollout"] += time.perf_counter() - begun
        return [
            self._marked(with_grown(group, {i: g for (m, i), g in grown.items() if m == n}))
            for n, group in enumerate(groups)
        ]

    def _marked(self, group: Group) -> Group:
        """The group with its unfinished responses marked; verl has graded them, but their reward is not known yet."""
        group.unfinished = unfinished(group.samples, self.parameters)
        group.rewards[group.unfinished] = 0.0
        return group

    # ------------------------------------------------------------------ without a rollout
    def demonstrate(self, prompts: list[Prompt]) -> list[Group | None]:
        begun, t = time.perf_counter(), self.trainer
        task = tasks.get(t.run.task.name)
        found = demonstrate([self._with_tokens(p) for p in prompts], t.tokenizer, task, self.parameters, self.step)
        t.seconds["regenerate"] += time.perf_counter() - begun
        return [
            None if group is None else replace(group, prompt=prompt, samples=Rows.of(group.samples))
            for prompt, group in zip(prompts, found, strict=True)
        ]

    def _with_tokens(self, prompt: Prompt) -> Prompt:
        """The same prompt with the torch engine's row."""
        tokens, images = self.trainer.rows.prompt_of(prompt)
        truth = self.trainer.source.ground_truths[prompt.row.index]
        return Prompt(prompt.id, data.Row(tokens, truth, images))

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        found = [np.zeros(g.samples.tokens.shape, dtype=np.float32) for g in groups]
        if not groups:
            return found
        begun, t = time.perf_counter(), self.trainer
        t.rest()
        # rows of their own: what is scored need not be trained on, and verl writes into the rows
        entries = [entry for g in groups for entry in t.rows.put(g)]
        keys, tags = [k for k, _ in entries], [tag for _, tag in entries]
        batch = upsample_batch_to_divisible_size(
            KVBatchMeta(partition_id=TRAIN, keys=keys, tags=tags), t.ranks(), t.tokenizer.eos_token_id
        )
        batch.extra_info = {
            "calculate_entropy": False,
            "compute_loss": False,
            "temperature": t.run.sampling.temperature,
        }
        t.actor_rollout_wg.compute_log_prob(batch)
        scored = tq.kv_batch_get(keys=keys, partition_id=TRAIN, select_fields=["log_probs", "response_mask"])
        values = response_from_nested(scored["log_probs"], scored["response_mask"])
        t.rows.discard(batch.keys)
        places = ((n, i) for n, group in enumerate(groups) for i in range(group.size))
        for row, (n, i) in enumerate(places):
            length = groups[n].samples.lengths[i]
            found[n][i, :length] = values[row][:length].numpy()
        t.ledger.forwards += sum(tag["seq_len"] for tag in tags)
        t.seconds["regenerate"] += time.perf_counter() - begun
        return found

    def embed(self, prompts: list[Prompt]) -> np.ndarray:
        """All training prompts are embedded at once."""
        begun, t = time.perf_counter(), self.trainer
        if t.embedder is None:
            t.embedder = embeddings.StoredEmbedder(
                t.folder / embeddings.FILE,
                base_identity(t.run),
                list(t.source.by_id.values()),
                self._with_tokens,
                self._start_model,
                t._say,
            )
            if self.step == 1:  # a method embeds from there on; a resumed run has paid
                t.ledger.forwards += t.embedder.tokens
        vectors = t.embedder(prompts)
        t.seconds["regenerate"] += time.perf_counter() - begun
        return vectors

    def _start_model(self) -> Any:
        t = self.trainer
        config = OmegaConf.merge(t.run, {"model": {"attention": "sdpa"}})  # others may need a GPU
        path = t.config.actor_rollout_ref.model.path  # a name on the hub has no folder
        return models.load(path if t.run.model.kind == "pretrained" else Path(path), config, torch.device("cpu"))[0]


generation_config = lru_cache(get_generation_config)  # asked for in every step


def beginning(samples: Samples, response: int) -> Beginning:
    """One response so far."""
    n = int(samples.lengths[response])
    return Beginning(samples.tokens[response, :n].tolist(), samples.logprobs[response, :n].tolist(), response)


def with_grown(group: Group, grown: dict[int, Group]) -> Group:
    """A copy of the group with some responses replaced by what they have become, each a group of one."""
    parts = [grown[i].samples if i in grown else group.samples.select([i]) for i in range(group.size)]
    tokens = [p.tokens[0, : p.lengths[0]] for p in parts]
    logprobs = [p.logprobs[0, : p.lengths[0]] for p in parts]
    rewards = [grown[i].rewards[0] if i in grown else reward for i, reward in enumerate(group.rewards)]
    samples = Rows.of(samples_of(tokens, logprobs), [p.keys[0] for p in parts])
    return replace(group, rewards=np.array(rewards, dtype=np.float32), samples=samples)
