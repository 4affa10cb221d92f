"""The verl engine's side of the ``Sampler`` that methods see: verl's processes roll out and score."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.workers.utils.padding import response_from_nested

from bapo.algorithm.rollouts import FRESH, Group, Prompt
from bapo.engines.shared.batch_tensors import ResponsePlace, index_of
from bapo.engines.shared.sampling import unfinished
from bapo.engines.shared.step_sampler import Purpose, SamplingSetup, StepSampler
from bapo.engines.verl.rollout import PromptSource, Submission
from bapo.engines.verl.transfer_rows import TRAIN, StepRows, samples_of
from bapo.engines.verl.worker import CURRENT, DELAYED
from bapo.store.files import Json

#: one group in so many of a step has its log-probabilities compared between the engines
COMPARED = 16


class RolloutWeights:
    """The weights that the rollout engine holds; asleep it holds none.

    workers: the processes that train the policy, and keep alpha beside it
    manager: verl's, which pushes weights from them to the rollout engine
    sleeps: whether the rollout engine does (verl's ``free_cache_engine``)
    """

    def __init__(self, workers: RayWorkerGroup, manager: CheckpointEngineManager, sleeps: bool) -> None:
        self.workers, self.manager, self.sleeps = workers, manager, sleeps
        self.version: int | None = None  # None: the engine sleeps, or has not been given any

    def load(self, version: int, current: int) -> None:
        """Have the rollout engine hold the weights of ``version``; ``current`` is pi_theta's."""
        if self.version == version:
            return
        if self.version is not None:
            self.manager.sleep_replicas()  # verl pushes to sleeping engines only
        self.workers.act_as(CURRENT if version == current else DELAYED)
        self.manager.update_weights(version)
        self.workers.act_as(CURRENT)
        self.version = version

    def rest(self) -> None:
        """Put a rollout engine that sleeps to sleep: its memory is free for the training engine."""
        if self.sleeps and self.version is not None:
            self.manager.sleep_replicas()
            self.version = None  # vLLM throws its weights away when it sleeps


@dataclass(frozen=True)
class VerlSetup(SamplingSetup):
    """What the samplers of all steps of a run share, on verl.

    source: makes rows for verl of prompts
    rows: those of the running step in TransferQueue
    weights: those that the rollout engine holds
    submit: hands rows to the rollout engine
    collect: waits for so many prompts of a step and partition to be finished
    ranks: counts the data-parallel processes of the policy
    with_tokens: returns a prompt with its ``PromptTokens``
    """

    source: PromptSource
    rows: StepRows
    weights: RolloutWeights
    submit: Callable[[TensorDict], object]
    collect: Callable[[int, str, int], tuple[KVBatchMeta, Json]]
    ranks: Callable[[], int]
    with_tokens: Callable[[Prompt], Prompt]


class VerlStepSampler(StepSampler):
    """Answers what a method asks for in one training step, by verl's processes."""

    setup: VerlSetup

    def __init__(self, setup: VerlSetup, step: int, budget: int | None) -> None:
        """budget: tokens that a response of this step's rollout, or one that goes on, may grow by; None: no limit."""
        super().__init__(setup, step, budget)
        self._fresh: list[Group] = []

    # ------------------------------------------------------------------ rollouts
    def fresh(self, meta: KVBatchMeta, submission: Submission) -> list[Group]:
        """Return the groups of the step's own rollout."""
        rows, version = self.setup.rows, self.rollout_version
        groups = rows.groups(meta, submission, self.step, version, FRESH, self.costs)
        self._fresh = self.paid(groups, FRESH)
        return [self._marked(g) for g in groups] if self.budget else groups

    def _generate(
        self, prompts: list[Prompt], group_size: int, purpose: Purpose, version: int, origin: str
    ) -> list[Group]:
        with self.costs.timed("rollout" if origin == FRESH else "regenerate"):
            finished = self._roll_out(prompts, group_size, purpose, version)
            return self.setup.rows.groups(*finished, self.step, version, origin, self.costs)

    def _roll_out(
        self,
        prompts: list[Prompt],
        group_size: int,
        purpose: Purpose,
        version: int,
        max_tokens: int | None = None,
        beginnings: list[Json] | None = None,
    ) -> tuple[KVBatchMeta, Submission]:
        """Return finished rows of responses, and what they are responses to.

        Args:
            prompts: at least one
            group_size: responses to each
            purpose: names the draw within the step
            version: of the policy that samples
            max_tokens, beginnings: as in :meth:`PromptSource.batch`
        """
        s = self.setup
        s.weights.load(version, self.step - 1)
        rows, submission = s.source.batch(prompts, group_size, self.step, purpose, max_tokens, beginnings)
        s.submit(rows)
        meta, _ = s.collect(self.step, TRAIN, len(prompts))
        return meta, submission

    def _continue(self, groups: list[Group], index: Sequence[ResponsePlace], purpose: Purpose) -> list[Group]:
        """One row a response, which comes back whole: what it had, and what the current policy put behind it."""
        grown: dict[int, dict[int, Group]] = defaultdict(dict)
        if index:
            beginnings: list[Json] = []
            for n, i in index:
                samples, length = groups[n].samples, int(groups[n].samples.lengths[i])
                tokens, logprobs = samples.tokens[i, :length].tolist(), samples.logprobs[i, :length].tolist()
                beginnings.append({"tokens": tokens, "logprobs": logprobs, "number": i})
            prompts, version = [groups[n].prompt for n, _ in index], self.step - 1
            with self.costs.timed("rollout"):
                finished = self._roll_out(prompts, 1, purpose, version, self.budget, beginnings)
                singles = self.setup.rows.groups(*finished, self.step, version, FRESH, self.costs)
            for (n, i), single in zip(index, singles, strict=True):
                grown[n][i] = single
        return [self._marked(with_grown(group, grown[n])) for n, group in enumerate(groups)]

    def _marked(self, group: Group) -> Group:
        """Mark the group's unfinished responses; verl has graded them, but their reward is not known yet."""
        group.unfinished = unfinished(group.samples, self.setup.parameters)
        group.rewards[group.unfinished] = 0.0
        return group

    def _prompt_tokens(self, prompt: Prompt) -> int:
        return self.setup.rows.prompt_tokens[prompt.id]

    def _with_tokens(self, prompt: Prompt) -> Prompt:
        return self.setup.with_tokens(prompt)

    # ------------------------------------------------------------------ scores
    def mismatch(self, delayed: bool) -> dict[str, float]:
        """Compare the rollout engine's log-probabilities of some fresh responses with the training engine's.

        delayed: alpha, which sampled them, is not the current policy. Of one group in COMPARED, 16 of the paper's 256:
        their scoring is about a hundredth of a step's work. The method does not pay for it.
        """
        groups = [g for g in self._fresh if g.unfinished is None]
        groups = groups[: math.ceil(len(groups) / COMPARED)]
        if not groups:
            return {}
        workers = self.setup.weights.workers
        workers.act_as(DELAYED if delayed else CURRENT)
        scored, _ = self._score(groups)
        workers.act_as(CURRENT)
        gaps = [np.abs(g.samples.logprobs - logprobs) for g, logprobs in zip(groups, scored, strict=True)]
        real = [np.arange(gap.shape[1]) < g.samples.lengths[:, None] for g, gap in zip(groups, gaps, strict=True)]
        values = np.concatenate([gap[inside] for gap, inside in zip(gaps, real, strict=True)])
        return {"mismatch_mean": float(values.mean()), "mismatch_max": float(values.max())}

    def _score(self, groups: list[Group]) -> tuple[list[np.ndarray], int]:
        """Score rows of their own: what is scored need not be trained on, and verl writes into the rows."""
        logprobs = [np.zeros(g.samples.tokens.shape, dtype=np.float32) for g in groups]
        s = self.setup
        s.weights.rest()
        keys, tags = map(list, zip(*s.rows.put(groups), strict=True))
        batch = upsample_batch_to_divisible_size(
            KVBatchMeta(partition_id=TRAIN, keys=keys, tags=tags), s.ranks(), s.tokenizer.eos_token_id
        )
        temperature = s.parameters.temperature
        batch.extra_info = {"calculate_entropy": False, "compute_loss": False, "temperature": temperature}
        s.weights.workers.compute_log_prob(batch)
        scored = tq.kv_batch_get(keys=keys, partition_id=TRAIN, select_fields=["log_probs", "response_mask"])
        # a nested tensor looks through all its rows for each one that is read
        values = response_from_nested(scored["log_probs"], scored["response_mask"]).unbind()
        s.rows.discard(batch.keys)
        for row, (n, i) in enumerate(index_of(groups)):
            length = groups[n].samples.lengths[i]
            logprobs[n][i, :length] = values[row][:length].numpy()
        return logprobs, sum(tag["seq_len"] for tag in tags)


def with_grown(group: Group, grown: dict[int, Group]) -> Group:
    """Return a copy of the group with some responses replaced by what they have become, each a group of one."""
    parts = [grown[i].samples if i in grown else group.samples.select([i]) for i in range(group.size)]
    tokens = [p.tokens[0, : p.lengths[0]] for p in parts]
    logprobs = [p.logprobs[0, : p.lengths[0]] for p in parts]
    rewards = [grown[i].rewards[0] if i in grown else reward for i, reward in enumerate(group.rewards)]
    return replace(group, rewards=np.array(rewards, dtype=np.float32), samples=samples_of(tokens, logprobs))
