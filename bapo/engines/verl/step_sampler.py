"""``bapo.methods.Sampler`` on verl: rollouts, expert solutions and scores while a method builds its batch."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.workers.utils.padding import response_from_nested

from bapo import tasks
from bapo.algorithm.rollouts import FRESH, REEVALUATED, Group, Prompt
from bapo.engines.shared.batch_tensors import index_of, index_of_unfinished
from bapo.engines.shared.costs import StepCosts
from bapo.engines.shared.responses import demonstrate
from bapo.engines.shared.sampling import unfinished
from bapo.engines.verl.rollout import Asked
from bapo.engines.verl.transfer_rows import TRAIN, samples_of
from bapo.engines.verl.worker import CURRENT, DELAYED
from bapo.store.files import Json

if TYPE_CHECKING:
    from bapo.engines.verl.trainer import MethodTrainer

#: of so many groups of a step one has its log-probabilities compared between the engines
COMPARED = 16


class StepSampler:
    """One training step's sampler. ledger: what it generated and scored, and the time that took by phase."""

    def __init__(self, trainer: MethodTrainer, step: int, budget: int | None) -> None:
        """budget: of tokens, for a response of this step's rollout and one that is resumed."""
        self.trainer, self.step, self.budget = trainer, step, budget
        self.ledger = StepCosts()
        self.rollout_version = step - 1  # alpha's, once the step has settled it
        self._drawn: set[str] = set()
        self._fresh: list[Group] = []
        self._calls, self._embedded = 0, False

    def draw(self, count: int) -> list[Prompt]:
        prompts = self.trainer.source.stream.next_prompts(count)
        self._drawn.update(p.id for p in prompts)
        return prompts

    # ------------------------------------------------------------------ rollouts
    def regenerate(self, prompts: list[Prompt], group_size: int | None = None, policy: str = "current") -> list[Group]:
        """Prompts drawn in this step count as fresh rollouts (DAPO's further batches), all others as regenerated."""
        self._calls += 1
        if not prompts:
            return []
        origin = FRESH if all(p.id in self._drawn for p in prompts) else REEVALUATED
        size = group_size or self.trainer.run.train.group_size
        version = self.rollout_version if policy == "rollout" else self.step - 1
        with self.ledger.timed("rollout" if origin == FRESH else "regenerate"):
            return self.received(*self._generate(prompts, size, "regenerate", version), origin, version)

    def _generate(
        self,
        prompts: list[Prompt],
        size: int,
        purpose: str,
        version: int,
        max_tokens: int | None = None,
        beginnings: list[Json] | None = None,
    ) -> tuple[KVBatchMeta, Asked]:
        """Return finished rows of responses from the policy of ``version``."""
        trainer = self.trainer
        trainer.load(version, self.step - 1)
        rows, asked = trainer.source.batch(prompts, size, self.step, (purpose, self._calls), max_tokens, beginnings)
        trainer._submit_batch_to_rollout(rows)
        meta, _ = trainer.replay_buffer.collect(self.step, TRAIN, len(prompts))
        return meta, asked

    def received(self, meta: KVBatchMeta, asked: Asked, origin: str, version: int) -> list[Group]:
        """Return the groups of finished rows, charged to the ledger."""
        rows = self.trainer.rows
        groups = rows.groups(meta, asked, self.step, version, origin, self.ledger)
        self.ledger.add(groups, origin, sum(rows.prompt_tokens(g) for g in groups))
        return groups

    def fresh(self, meta: KVBatchMeta, asked: Asked, version: int) -> list[Group]:
        """Return the groups of the step's own rollout."""
        groups = self._fresh = self.received(meta, asked, FRESH, version)
        return [self._marked(g) for g in groups] if self.budget else groups

    def resume(self, groups: list[Group]) -> list[Group]:
        """One row a response, which comes back whole: what it had, and what the current policy put behind it."""
        self._calls += 1
        rows, index = self.trainer.rows, index_of_unfinished(groups)
        grown: dict[int, dict[int, Group]] = defaultdict(dict)
        if index:
            beginnings: list[Json] = []
            for n, i in index:
                samples, length = groups[n].samples, int(groups[n].samples.lengths[i])
                tokens, logprobs = samples.tokens[i, :length].tolist(), samples.logprobs[i, :length].tolist()
                beginnings.append({"tokens": tokens, "logprobs": logprobs, "number": i})
            prompts, version = [groups[n].prompt for n, _ in index], self.step - 1
            with self.ledger.timed("rollout"):
                generated = self._generate(prompts, 1, "resume", version, self.budget, beginnings)
                singles = rows.groups(*generated, self.step, version, FRESH, self.ledger)
            before = sum(len(b["tokens"]) for b in beginnings)
            self.ledger.generated_tokens += sum(int(g.samples.lengths[0]) for g in singles) - before
            self.ledger.prompt_tokens += sum(rows.prompt_tokens(g) for g in singles) + before
            for (n, i), single in zip(index, singles, strict=True):
                grown[n][i] = single
        return [self._marked(with_grown(group, grown[n])) for n, group in enumerate(groups)]

    def _marked(self, group: Group) -> Group:
        """Mark the group's unfinished responses; verl has graded them, but their reward is not known yet."""
        group.unfinished = unfinished(group.samples, self.trainer.parameters)
        group.rewards[group.unfinished] = 0.0
        return group

    # ------------------------------------------------------------------ without a rollout
    def demonstrate(self, prompts: list[Prompt]) -> list[Group | None]:
        trainer = self.trainer
        with self.ledger.timed("regenerate"):
            task, tokenised = tasks.get(trainer.run.task.name), [trainer.with_tokens(p) for p in prompts]
            groups = demonstrate(tokenised, trainer.tokenizer, task, trainer.parameters, self.step)
        return [
            None if group is None else replace(group, prompt=prompt)
            for prompt, group in zip(prompts, groups, strict=True)
        ]

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        if not groups:
            return []
        with self.ledger.timed("regenerate"):
            logprobs, tokens = self._scored(groups)
        self.ledger.forwards += tokens
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
        self.trainer.actor_rollout_wg.act_as(DELAYED if delayed else CURRENT)
        scored, _ = self._scored(groups)
        self.trainer.actor_rollout_wg.act_as(CURRENT)
        gaps = [np.abs(g.samples.logprobs - own) for g, own in zip(groups, scored, strict=True)]
        real = [np.arange(gap.shape[1]) < g.samples.lengths[:, None] for g, gap in zip(groups, gaps, strict=True)]
        values = np.concatenate([gap[inside] for gap, inside in zip(gaps, real, strict=True)])
        return {"mismatch_mean": float(values.mean()), "mismatch_max": float(values.max())}

    def _scored(self, groups: list[Group]) -> tuple[list[np.ndarray], int]:
        """Return the log-probabilities of every token, and how many tokens went forward."""
        logprobs = [np.zeros(g.samples.tokens.shape, dtype=np.float32) for g in groups]
        trainer = self.trainer
        trainer.rest()
        # rows of their own: what is scored need not be trained on, and verl writes into the rows
        keys, tags = map(list, zip(*trainer.rows.put(groups), strict=True))
        batch = upsample_batch_to_divisible_size(
            KVBatchMeta(partition_id=TRAIN, keys=keys, tags=tags), trainer.ranks(), trainer.tokenizer.eos_token_id
        )
        temperature = trainer.run.sampling.temperature
        batch.extra_info = {"calculate_entropy": False, "compute_loss": False, "temperature": temperature}
        trainer.actor_rollout_wg.compute_log_prob(batch)
        scored = tq.kv_batch_get(keys=keys, partition_id=TRAIN, select_fields=["log_probs", "response_mask"])
        # a nested tensor looks through all its rows for each that is asked for
        values = response_from_nested(scored["log_probs"], scored["response_mask"]).unbind()
        trainer.rows.discard(batch.keys)
        for row, (n, i) in enumerate(index_of(groups)):
            length = groups[n].samples.lengths[i]
            logprobs[n][i, :length] = values[row][:length].numpy()
        return logprobs, sum(tag["seq_len"] for tag in tags)

    def embed(self, prompts: list[Prompt]) -> np.ndarray:
        """All training prompts are embedded at once; a method that embeds does so from step 1, which pays for them."""
        with self.ledger.timed("regenerate"):
            embedder = self.trainer.embedder
            if self.step == 1 and not self._embedded:
                self.ledger.forwards += embedder.tokens
                self._embedded = True
            return embedder(prompts)


def with_grown(group: Group, grown: dict[int, Group]) -> Group:
    """Return a copy of the group with some responses replaced by what they have become, each a group of one."""
    parts = [grown[i].samples if i in grown else group.samples.select([i]) for i in range(group.size)]
    tokens = [p.tokens[0, : p.lengths[0]] for p in parts]
    logprobs = [p.logprobs[0, : p.lengths[0]] for p in parts]
    rewards = [grown[i].rewards[0] if i in grown else reward for i, reward in enumerate(group.rewards)]
    return replace(group, rewards=np.array(rewards, dtype=np.float32), samples=samples_of(tokens, logprobs))
