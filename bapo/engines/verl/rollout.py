"""A rollout on verl: makes rows of prompts, samples and grades one response, and waits for finished prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import ray
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.utils.profiler import simple_timer

from bapo import seeds, tasks
from bapo.algorithm.rollouts import Prompt
from bapo.engines.shared.models import chats
from bapo.engines.shared.prompts import training_stream
from bapo.engines.verl import images
from bapo.engines.verl.plugin import CPU_ROLLOUT
from bapo.experiments.schema import Config
from bapo.graders.verdict import OVERLOADED
from bapo.store.files import Json
from bapo.tasks.base import Problem

#: seconds between two looks at TransferQueue (2 in verl), and between two looks at the workers
POLL, LOOK = 0.05, 5.0


@dataclass(frozen=True)
class Submission:
    """Holds prompts whose responses are under way.

    prompts: by verl's uid, in the order of their submission
    group_size: responses to each
    """

    prompts: dict[str, Prompt]
    group_size: int

    def by_uid(self, keys: Iterable[str]) -> dict[str, list[str]]:
        """Return the keys of finished rows by their prompts' uids, responses in order.

        Raises RuntimeError if a response is missing, because verl drops those whose rollout failed.
        """
        by_uid: dict[str, list[str]] = {uid: [] for uid in self.prompts}
        for key in keys:
            by_uid[key.split("_")[0]].append(key)
        for uid, prompt in self.prompts.items():
            if len(by_uid[uid]) != self.group_size:
                raise RuntimeError(f"problem {prompt.id}: {len(by_uid[uid])} of {self.group_size} responses arrived")
        return {uid: sorted(rows, key=lambda key: int(key.split("_")[1])) for uid, rows in by_uid.items()}


class PromptSource:
    """Draws prompts from verl's training set in the torch engine's seeded order, and makes rows of them.

    The ``row`` of a prompt is its index in the training set.
    """

    def __init__(self, dataset: RLHFDataset, problems: Sequence[Problem], config: Config) -> None:
        """problems: those in the dataset's file, in its order."""
        self.dataset, self.seed = dataset, config.seed
        self.ground_truths = [p.ground_truth for p in problems]
        prompts = [Prompt(p.id, i) for i, p in enumerate(problems)]
        self.by_id = {p.id: p for p in prompts}
        self.stream = training_stream(config, prompts, self.ground_truths, tasks.get(config.task.name))

    def batch(
        self,
        prompts: list[Prompt],
        group_size: int,
        step: int,
        purpose: tuple[object, ...],
        max_tokens: int | None = None,
        beginnings: list[Json] | None = None,
    ) -> tuple[TensorDict, Submission]:
        """Return one row a prompt for verl's agent loop, with the torch engine's keys of random numbers.

        Args:
            prompts: at least one
            group_size: responses to each
            step: the training step
            purpose: names the draw within the step
            max_tokens: the most new tokens of a response; None: as many as sampling.max_response_tokens leaves
            beginnings: where each row continues a response, the tokens, logprobs and number of that response
        """
        columns = collate_fn([self.dataset[p.row] for p in prompts])
        count = len(prompts)
        # verl makes row keys of it, {uid}_{session}_{index}, so it must not contain "_"
        columns["uid"] = np.array([uuid4().hex for _ in prompts], dtype=object)
        columns["draw_key"] = np.array([seeds.key64(self.seed, *purpose, step)] * count, dtype=object)
        columns["prompt_key"] = np.array(seeds.prompt_keys(p.id for p in prompts), dtype=object)
        columns["__rollout_n__"] = np.array([group_size] * count, dtype=object)
        columns["part"] = np.array([{"max_tokens": max_tokens, **b} for b in beginnings or [{}] * count], dtype=object)
        rows = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(rows, "global_steps", step)
        return rows, Submission(dict(zip(columns["uid"], prompts, strict=True)), group_size)


class SeededSingleTurn(AgentLoopBase):
    """Samples and grades one response to one prompt, or continues one that an earlier step cut off.

    ``draw_key`` and ``part`` come with the prompt (see :meth:`PromptSource.batch`). Validation prompts have neither.
    They use one key in every step, so that changes of their accuracy come from the policy. Only the CPU rollout reads
    keys.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        chats.prepare(self.tokenizer, self.config.bapo.config)

    async def run(self, sampling_params: Json, **row: Any) -> AgentLoopOutput:
        """Sample and grade a response to the prompt of ``row``, whose length ``images.require_lengths`` checks."""
        longest = self.rollout_config.response_length
        prompt_ids, pictures = await self.loop.run_in_executor(
            None, images.encode, self.tokenizer, self.processor, row["raw_prompt"]
        )
        part = row.get("part") or {}
        beginning, logprobs = list(part.get("tokens", ())), list(part.get("logprobs", ()))
        parameters = self._parameters(sampling_params, row)
        if beginning or part.get("max_tokens"):
            room = longest - len(beginning)
            parameters["max_tokens"] = min(room, part.get("max_tokens") or room)
        metrics: Json = {}
        with simple_timer("generate_sequences", metrics):
            output = await self.server_manager.generate(
                request_id=uuid4().hex,
                prompt_ids=[*prompt_ids, *beginning],
                sampling_params=parameters,
                image_data=pictures or None,
            )
        metrics["num_preempted"] = -1 if output.num_preempted is None else output.num_preempted
        tokens = images.end_at_mark([*beginning, *output.token_ids][:longest], self.processor, self.tokenizer)
        reward, record = await self.loop.run_in_executor(
            None, self.grade, tokens, row["reward_model"]["ground_truth"], row["extra_info"]["id"]
        )
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=tokens,
            response_mask=[1] * len(tokens),
            response_logprobs=[*logprobs, *output.log_probs][: len(tokens)] if output.log_probs else None,
            multi_modal_data={"images": pictures} if pictures else {},
            reward_score=reward,  # verl's own reward workers have nothing left to do
            num_turns=2,
            metrics=AgentLoopMetrics(**metrics),
            extra_fields={**output.extra_fields, "turn_scores": [], "tool_rewards": [], "reward_extra_info": record},
        )

    def grade(self, tokens: list[int], ground_truth: str, problem: str) -> tuple[float, Json]:
        """Return the reward of a response by the task's verifier, 0 or 1, and what is recorded beside it."""
        start, text = time.perf_counter(), self.tokenizer.decode(tokens, skip_special_tokens=True)
        verdict = tasks.get(self.config.bapo.config.task.name).verify(text, ground_truth)
        overloaded, seconds = int(verdict.reason == OVERLOADED), time.perf_counter() - start
        return float(verdict.correct), {"problem": problem, "overloaded": overloaded, "seconds": seconds}

    def _parameters(self, sampling_params: Json, row: Json) -> Json:
        parameters = dict(sampling_params)
        if ends := chats.more_ends(self.tokenizer):
            parameters["stop_token_ids"] = list(ends)
        if self.rollout_config.name == CPU_ROLLOUT:
            key = row.get("draw_key") or seeds.key64(self.config.bapo.config.seed, "probe", row["data_source"], 0)
            prompt_key = int(row.get("prompt_key") or seeds.key64(row["extra_info"]["id"]))
            number = int({"number": row["session_id"], **(row.get("part") or {})}["number"])
            parameters["draw"] = (int(key), prompt_key, number)
        return parameters


class MethodReplayBuffer(ReplayBuffer):
    """Takes training batches from the method in place of verl's own, and notices when a worker has died.

    ``build_batch`` waits for the step's rollout and returns the batch to train on, of any size.
    """

    def __init__(self, build_batch: Callable[[], KVBatchMeta]) -> None:
        super().__init__("sync", {}, None, "drop", {}, poll_interval=POLL)
        self.build_batch = build_batch
        self.watched: list[ray.actor.ActorHandle] = []
        self._last_look = time.monotonic()

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        if partition_id != "train":
            return self.collect(global_steps, partition_id, batch_size)
        return self.build_batch(), {}

    def collect(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        """Wait until ``batch_size`` prompts of a partition are finished, and return their rows."""
        return super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        if time.monotonic() - self._last_look > LOOK:
            self._last_look = time.monotonic()
            ready, _ = ray.wait(
                [w.__ray_ready__.remote() for w in self.watched], num_returns=len(self.watched), timeout=1
            )
            # raises RayActorError with the reason where a worker has died, whose prompts would never finish
            ray.get(ready)
        return super()._wait_for_next_poll(partition_id, last_debug_time)
