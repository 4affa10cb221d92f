"""``bapo.methods.Sampler`` on verl: rollouts, expert solutions and scores while a method builds its batch."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.utils.model import get_generation_config
from verl.workers.utils.padding import response_from_nested

from bapo import tasks
from bapo.algorithm.rollouts import FRESH, REEVALUATED, Group, Prompt, Samples
from bapo.engines.shared import models
from bapo.engines.shared.prompts import Row, demonstrate, parameters_of
from bapo.engines.shared.records import Ledger
from bapo.engines.shared.rows import index_of, index_of_unfinished
from bapo.engines.shared.sampling import SamplingParameters, unfinished
from bapo.engines.verl import embeddings
from bapo.engines.verl.batches import Rows
from bapo.engines.verl.prompts import Beginning, PromptSource
from bapo.engines.verl.rows import TRAIN, Asked, StepRows, samples_of
from bapo.engines.verl.worker import CURRENT, DELAYED
from bapo.experiments.identity import base_identity

#: of so many groups of a step one has its log-probabilities compared between the engines
COMPARED = 16


@dataclass
class Services:
    """The trainer's side of sampling, the same for all steps of a run.

    run: the project's configuration; model_path: of the model before training; folder: the run's; load: has the rollout
    engine hold the weights of a version (its second argument is the current one); rest: puts that engine to sleep;
    submit, collect: send prompts to it and wait for their finished rows; score: writes log-probabilities of rows under
    the policy that score_as has chosen, CURRENT at first; ranks: data-parallel ranks of the policy; say: prints a line
    for the user.
    """

    run: DictConfig
    model_path: str
    folder: Path
    tokenizer: Any
    source: PromptSource
    rows: StepRows
    load: Callable[[int, int], None]
    rest: Callable[[], None]
    submit: Callable[[TensorDict], Any]
    collect: Callable[[int, str, int], tuple[KVBatchMeta, dict]]
    score: Callable[[KVBatchMeta], Any]
    score_as: Callable[[str], Any]
    ranks: Callable[[], int]
    say: Callable[[str], None]

    @cached_property
    def parameters(self) -> SamplingParameters:
        s, generation = self.run.sampling, get_generation_config(self.model_path)  # vLLM ends responses by it, too
        return parameters_of(self.tokenizer, s.temperature, s.top_p, s.top_k, s.max_response_tokens, generation)

    @cached_property
    def embedder(self) -> embeddings.StoredEmbedder:
        return embeddings.StoredEmbedder(
            self.folder / embeddings.FILE,
            base_identity(self.run),
            list(self.source.by_id.values()),
            self.with_tokens,
            self._start_model,
            self.say,
        )

    def with_tokens(self, prompt: Prompt) -> Prompt:
        """Return the same prompt with the torch engine's row."""
        tokens, images = self.rows.prompt_of(prompt)
        return Prompt(prompt.id, Row(tokens, self.source.ground_truths[prompt.row.index], images))

    def _start_model(self) -> Any:
        config = self.run.copy()
        config.model.attention = "sdpa"  # others may need a GPU
        return models.load(Path(self.model_path), config, torch.device("cpu"))[0]


class StepSampler:
    """One training step's sampler. ledger, seconds: what it generated and scored, and the time that took by phase."""

    def __init__(self, services: Services, step: int, budget: int | None) -> None:
        """budget: of tokens, for a response of this step's rollout and one that is resumed."""
        self.services, self.step, self.budget = services, step, budget
        self.ledger, self.seconds = Ledger(), defaultdict(float)
        self.rollout_version = step - 1  # alpha's, once the step has settled it
        self._drawn: set[str] = set()
        self._fresh: list[Group] = []
        self._calls, self._embedded = 0, False

    def draw(self, count: int) -> list[Prompt]:
        prompts = self.services.source.stream.draw(count)
        self._drawn.update(p.id for p in prompts)
        return prompts

    # ------------------------------------------------------------------ rollouts
    def regenerate(self, prompts: list[Prompt], group_size: int | None = None, policy: str = "current") -> list[Group]:
        """Prompts drawn in this step count as fresh rollouts (DAPO's further batches), all others as regenerated."""
        self._calls += 1
        if not prompts:
            return []
        origin = FRESH if all(p.id in self._drawn for p in prompts) else REEVALUATED
        begun, size = time.perf_counter(), group_size or self.services.run.train.group_size
        version = self.rollout_version if policy == "rollout" else self.step - 1
        meta, asked = self._generate(prompts, size, ("regenerate", self._calls), version=version)
        groups = self.received(meta, asked, origin, version)
        self.seconds["rollout" if origin == FRESH else "regenerate"] += time.perf_counter() - begun
        return groups

    def _generate(
        self,
        prompts: list[Prompt],
        size: int,
        purpose: tuple[object, ...],
        max_tokens: list[int | None] | None = None,
        beginnings: list[Beginning] | None = None,
        version: int | None = None,
    ) -> tuple[KVBatchMeta, Asked]:
        """Return finished rows of responses from the current policy, or from alpha, whose ``version`` is another."""
        services = self.services
        services.load(self.step - 1 if version is None else version, self.step - 1)
        rows = services.source.batch(prompts, size, self.step, purpose, max_tokens, beginnings)
        asked = Asked(dict(zip(list(rows["uid"]), prompts, strict=True)), size)
        services.submit(rows)
        meta, _ = services.collect(self.step, TRAIN, len(prompts))
        return meta, asked

    def received(self, meta: KVBatchMeta, asked: Asked, origin: str, version: int) -> list[Group]:
        """Return the groups of finished rows, charged to the ledger."""
        rows = self.services.rows
        groups, seconds, overloaded = rows.groups(meta, asked, self.step, version, origin)
        self.seconds["reward"] += seconds
        self.ledger.overloaded += overloaded
        self.ledger.add(groups, origin, sum(rows.prompt_tokens(g) for g in groups))
        return groups

    def fresh(self, meta: KVBatchMeta, asked: Asked, version: int) -> list[Group]:
        """Return the groups of the step's own rollout."""
        groups = self._fresh = self.received(meta, asked, FRESH, version)
        return [self._marked(g) for g in groups] if self.budget else groups

    def resume(self, groups: list[Group]) -> list[Group]:
        """One row a response, which comes back whole: what it had, and what the current policy put behind it."""
        self._calls += 1
        begun, rows, index = time.perf_counter(), self.services.rows, index_of_unfinished(groups)
        grown: dict[int, dict[int, Group]] = defaultdict(dict)
        if index:
            beginnings = [beginning(groups[n].samples, i) for n, i in index]
            prompts, limits = [groups[n].prompt for n, _ in index], [self.budget] * len(index)
            meta, asked = self._generate(prompts, 1, ("resume", self._calls), limits, beginnings)
            singles, seconds, overloaded = rows.groups(meta, asked, self.step, self.step - 1, FRESH)
            self.ledger.overloaded += overloaded
            before = sum(len(b.tokens) for b in beginnings)
            self.ledger.generated_tokens += sum(int(g.samples.lengths[0]) for g in singles) - before
            self.ledger.prompt_tokens += sum(rows.prompt_tokens(g) for g in singles) + before
            self.seconds["reward"] += seconds
            for (n, i), single in zip(index, singles, strict=True):
                grown[n][i] = single
        self.seconds["rollout"] += time.perf_counter() - begun
        return [self._marked(with_grown(group, grown[n])) for n, group in enumerate(groups)]

    def _marked(self, group: Group) -> Group:
        """Mark the group's unfinished responses; verl has graded them, but their reward is not known yet."""
        group.unfinished = unfinished(group.samples, self.services.parameters)
        group.rewards[group.unfinished] = 0.0
        return group

    # ------------------------------------------------------------------ without a rollout
    def demonstrate(self, prompts: list[Prompt]) -> list[Group | None]:
        begun, services = time.perf_counter(), self.services
        task, tokenised = tasks.get(services.run.task.name), [services.with_tokens(p) for p in prompts]
        groups = demonstrate(tokenised, services.tokenizer, task, services.parameters, self.step)
        self.seconds["regenerate"] += time.perf_counter() - begun
        return [
            None if group is None else replace(group, prompt=prompt, samples=Rows.of(group.samples))
            for prompt, group in zip(prompts, groups, strict=True)
        ]

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        if not groups:
            return []
        begun = time.perf_counter()
        logprobs, tokens = self._scored(groups)
        self.ledger.forwards += tokens
        self.seconds["regenerate"] += time.perf_counter() - begun
        return logprobs

    def mismatch(self, delayed: bool) -> dict[str, float]:
        """Compare the rollout engine's log-probabilities of some fresh responses with the training engine's.

        delayed: alpha, which sampled them, is not the current policy. Of one group in COMPARED, 16 of the paper's 256:
        their scoring is about a hundredth of a step's work. No cost of the method's, and not in the ledger.
        """
        groups = [g for g in self._fresh if g.unfinished is None]
        groups = groups[: math.ceil(len(groups) / COMPARED)]
        if not groups:
            return {}
        self.services.score_as(DELAYED if delayed else CURRENT)
        try:
            scored, _ = self._scored(groups)
        finally:
            self.services.score_as(CURRENT)
        return mismatch_of((g.samples.logprobs, own, g.samples.lengths) for g, own in zip(groups, scored, strict=True))

    def _scored(self, groups: list[Group]) -> tuple[list[np.ndarray], int]:
        """Return the log-probabilities of every token, and how many tokens went forward."""
        logprobs = [np.zeros(g.samples.tokens.shape, dtype=np.float32) for g in groups]
        services = self.services
        services.rest()
        # rows of their own: what is scored need not be trained on, and verl writes into the rows
        entries = services.rows.put(groups)
        keys, tags = [k for k, _ in entries], [tag for _, tag in entries]
        batch = upsample_batch_to_divisible_size(
            KVBatchMeta(partition_id=TRAIN, keys=keys, tags=tags), services.ranks(), services.tokenizer.eos_token_id
        )
        batch.extra_info = {
            "calculate_entropy": False,
            "compute_loss": False,
            "temperature": services.run.sampling.temperature,
        }
        services.score(batch)
        scored = tq.kv_batch_get(keys=keys, partition_id=TRAIN, select_fields=["log_probs", "response_mask"])
        # a nested tensor looks through all its rows for each that is asked for
        values = response_from_nested(scored["log_probs"], scored["response_mask"]).unbind()
        services.rows.discard(batch.keys)
        for row, (n, i) in enumerate(index_of(groups)):
            length = groups[n].samples.lengths[i]
            logprobs[n][i, :length] = values[row][:length].numpy()
        return logprobs, sum(tag["seq_len"] for tag in tags)

    def embed(self, prompts: list[Prompt]) -> np.ndarray:
        """All training prompts are embedded at once; a method that embeds does so from step 1, which pays for them."""
        begun, embedder = time.perf_counter(), self.services.embedder
        if self.step == 1 and not self._embedded:
            self.ledger.forwards += embedder.tokens
            self._embedded = True
        vectors = embedder(prompts)
        self.seconds["regenerate"] += time.perf_counter() - begun
        return vectors


def mismatch_of(entries: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Return the mean and the maximum of |difference| over all tokens.

    entries: (log-probabilities [G, T], others [G, T], lengths [G]) of each group.
    """
    parts = [
        np.abs(one[i, :length].astype(np.float64) - other[i, :length])
        for one, other, lengths in entries
        for i, length in enumerate(lengths)
    ]
    values = np.concatenate(parts) if parts else np.zeros(0)
    return {"mismatch_mean": float(values.mean()), "mismatch_max": float(values.max())} if len(values) else {}


def beginning(samples: Samples, response: int) -> Beginning:
    """Return one response so far."""
    n = int(samples.lengths[response])
    return Beginning(samples.tokens[response, :n].tolist(), samples.logprobs[response, :n].tolist(), response)


def with_grown(group: Group, grown: dict[int, Group]) -> Group:
    """Return a copy of the group with some responses replaced by what they have become, each a group of one."""
    parts = [grown[i].samples if i in grown else group.samples.select([i]) for i in range(group.size)]
    tokens = [p.tokens[0, : p.lengths[0]] for p in parts]
    logprobs = [p.logprobs[0, : p.lengths[0]] for p in parts]
    rewards = [grown[i].rewards[0] if i in grown else reward for i, reward in enumerate(group.rewards)]
    samples = Rows.of(samples_of(tokens, logprobs), [p.keys[0] for p in parts])
    return replace(group, rewards=np.array(rewards, dtype=np.float32), samples=samples)
