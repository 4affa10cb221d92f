"""The verl engine's side of the ``Sampler`` that methods see: verl's processes roll out and score."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from bapo.engines.verl.transfer_rows import TRAIN, StepRows
from bapo.engines.verl.worker import CURRENT, DELAYED
from bapo.store.files import Json

#: the log-probabilities of one group in COMPARED are compared between the two engines: 16 of the paper's 256
COMPARED = 16


class RolloutWeights:
    """Knows which weights the rollout engine holds, and pushes others. An engine that sleeps holds none.

    workers: the processes that train the policy and keep alpha beside it
    manager: verl's, which pushes weights from the workers to the rollout engine
    sleeps: whether the rollout engine can sleep (verl's ``free_cache_engine``)
    """

    def __init__(self, workers: RayWorkerGroup, manager: CheckpointEngineManager, sleeps: bool) -> None:
        self.workers, self.manager, self.sleeps = workers, manager, sleeps
        self.version: int | None = None  # None: the engine sleeps, or has no weights yet

    def load(self, version: int, current: int) -> None:
        """Push the weights of ``version`` unless the rollout engine has them. current: the version of pi_theta."""
        if self.version == version:
            return
        if self.version is not None:
            self.manager.sleep_replicas()  # verl only pushes to engines that sleep
        self.workers.act_as(CURRENT if version == current else DELAYED)
        self.manager.update_weights(version)
        self.workers.act_as(CURRENT)
        self.version = version

    def sleep(self) -> None:
        """Put the rollout engine to sleep where it can, so that its memory is free for the training engine."""
        if self.sleeps and self.version is not None:
            self.manager.sleep_replicas()
            self.version = None  # vLLM drops its weights when it sleeps


@dataclass(frozen=True)
class VerlSetup(SamplingSetup):
    """Holds what the samplers of all steps of a run share on verl.

    source: makes rows of prompts for verl
    rows: those of the running step in TransferQueue
    weights: those of the rollout engine
    submit: hands rows to the rollout engine
    collect: waits for a number of prompts of a step and a partition
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
        """budget: the most tokens that this step may add to a response; None: no limit."""
        super().__init__(setup, step, budget)
        self._fresh: list[Group] = []

    # ------------------------------------------------------------------ rollouts
    def fresh(self, meta: KVBatchMeta, submission: Submission) -> list[Group]:
        """Return the groups of the step's own rollout."""
        rows, version = self.setup.rows, self.rollout_version
        groups = rows.groups(meta, submission, self.step, version, FRESH, self.costs)
        self._fresh = self.paid(groups, FRESH)
        return [self._mark_unfinished(g) for g in groups] if self.budget else groups

    def _generate(
        self, prompts: list[Prompt], group_size: int, purpose: Purpose, version: int, origin: str
    ) -> list[Group]:
        with self.costs.timed("rollout" if origin == FRESH else "regenerate"):
            rollout = self._roll_out(prompts, group_size, purpose, version)
            return self.setup.rows.groups(*rollout, self.step, version, origin, self.costs)

    def _roll_out(
        self,
        prompts: list[Prompt],
        group_size: int,
        purpose: Purpose,
        version: int,
        max_tokens: int | None = None,
        beginnings: list[Json] | None = None,
    ) -> tuple[KVBatchMeta, Submission]:
        """Return the finished rows of responses, and the prompts that they answer.

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
        """Submit one row a response, which comes back whole: its beginning, and what the current policy added."""
        continued: dict[int, dict[int, Group]] = defaultdict(dict)
        if index:
            beginnings: list[Json] = []
            for n, i in index:
                samples, length = groups[n].samples, int(groups[n].samples.lengths[i])
                tokens, logprobs = samples.tokens[i, :length].tolist(), samples.logprobs[i, :length].tolist()
                beginnings.append({"tokens": tokens, "logprobs": logprobs, "number": i})
            prompts, version = [groups[n].prompt for n, _ in index], self.step - 1
            with self.costs.timed("rollout"):
                rollout = self._roll_out(prompts, 1, purpose, version, self.budget, beginnings)
                singles = self.setup.rows.groups(*rollout, self.step, version, FRESH, self.costs)
            for (n, i), single in zip(index, singles, strict=True):
                continued[n][i] = single
        return [self._mark_unfinished(with_continued(group, continued[n])) for n, group in enumerate(groups)]

    def _mark_unfinished(self, group: Group) -> Group:
        """Mark the group's unfinished responses and take back verl's rewards for them. Returns the group."""
        group.unfinished = unfinished(group.samples, self.setup.parameters)
        group.grade(np.where(group.unfinished, 0.0, group.rewards))
        return group

    def _prompt_tokens(self, prompt: Prompt) -> int:
        return self.setup.rows.prompt_tokens[prompt.id]

    def _with_tokens(self, prompt: Prompt) -> Prompt:
        return self.setup.with_tokens(prompt)

    # ------------------------------------------------------------------ scores
    def mismatch(self, delayed: bool) -> dict[str, float]:
        """Compare the rollout engine's log-probabilities of some fresh responses with the training engine's.

        One group in COMPARED is scored, about a hundredth of a step's work, which is not charged to the method.
        delayed: whether alpha, which sampled the responses, differs from the current policy.
        """
        groups = [g for g in self._fresh if g.unfinished is None]
        groups = groups[: math.ceil(len(groups) / COMPARED)]
        if not groups:
            return {}
        workers = self.setup.weights.workers
        workers.act_as(DELAYED if delayed else CURRENT)
        scores, _ = self._score(groups)
        workers.act_as(CURRENT)
        pairs = [(g.samples, logprobs) for g, logprobs in zip(groups, scores, strict=True)]
        values = np.concatenate([np.abs(s.logprobs - logprobs)[s.mask] for s, logprobs in pairs])
        return {"mismatch_mean": float(values.mean()), "mismatch_max": float(values.max())}

    def _score(self, groups: list[Group]) -> tuple[list[np.ndarray], int]:
        """Score copies of the rows, because verl writes into what it scores, and not all of it is trained on."""
        logprobs = [np.zeros(g.samples.tokens.shape, dtype=np.float32) for g in groups]
        s = self.setup
        s.weights.sleep()
        keys, tags = map(list, zip(*s.rows.put(groups), strict=True))
        batch = upsample_batch_to_divisible_size(
            KVBatchMeta(partition_id=TRAIN, keys=keys, tags=tags), s.ranks(), s.tokenizer.eos_token_id
        )
        temperature = s.parameters.temperature
        batch.extra_info = {"calculate_entropy": False, "compute_loss": False, "temperature": temperature}
        s.weights.workers.compute_log_prob(batch)
        data = tq.kv_batch_get(keys=keys, partition_id=TRAIN, select_fields=["log_probs", "response_mask"])
        # unbind, because reading a single row of a nested tensor goes through all of them
        values = response_from_nested(data["log_probs"], data["response_mask"]).unbind()
        s.rows.discard(batch.keys)
        for row, (n, i) in enumerate(index_of(groups)):
            length = groups[n].samples.lengths[i]
            logprobs[n][i, :length] = values[row][:length].numpy()
        return logprobs, sum(tag["seq_len"] for tag in tags)


def with_continued(group: Group, continued: dict[int, Group]) -> Group:
    """Return a copy of the group with some responses replaced. continued: groups of one response, by its number."""
    return group.with_responses_of([continued.get(i) or group.select([i]) for i in range(group.size)])
