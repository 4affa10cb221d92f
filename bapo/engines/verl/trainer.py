"""verl's synchronous trainer, driven by a method's hooks.

=====================  ====================================================================================
``Method`` hook        where it is called
=====================  ====================================================================================
resets_reference       ``_add_batch_to_generate``, before the prompts are drawn
draw_prompts           ``_add_batch_to_generate``: verl asks for prompts
rollout_budget         ``_add_batch_to_generate``: the rollout's limit for each response
syncs_rollout_policy   ``on_init_end``, ``on_step_end``: verl pushes weights for the coming rollout
build_batch            ``replay_buffer.sample``: fresh groups with rewards are in TransferQueue (``step_sampler.py``)
units, separate        ``_balance_batch``: verl orders the rows (``batch_layout.lay_out``)
advantages             ``_balance_batch``, written into the rows by ``_compute_advantage``
token_advantages       ``_compute_advantage``, from the values of verl's critic (``critic.py``)
loss, value_loss       in the workers (``learner.py``, ``critic.py``)
trains_policy          ``trainer.critic_warmup`` of verl's configuration
=====================  ====================================================================================
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from transformers import PreTrainedModel
from verl.experimental.agent_loop.agent_loop import AgentLoopManager
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.utils import Role
from verl.utils.debug import marked_timer
from verl.utils.model import get_generation_config
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_to_nested

from bapo import tasks
from bapo.algorithm.batch import mini_batches
from bapo.algorithm.rollouts import Group, Prompt
from bapo.engines.shared import hooks, models, records
from bapo.engines.shared.models import chats
from bapo.engines.shared.prompts import Embedder, PromptTokens
from bapo.engines.shared.sampling import SamplingParameters, cut_off
from bapo.engines.shared.schedule import learning_rate
from bapo.engines.verl import critic, images
from bapo.engines.verl.batch_layout import LAYOUT, advantages_by_token, kept_step_logprobs, lay_out
from bapo.engines.verl.launch import STOP
from bapo.engines.verl.recorder import VerlRecorder, update_metrics
from bapo.engines.verl.resumable import ResumableTrainer
from bapo.engines.verl.rollout import MethodReplayBuffer, PromptSource
from bapo.engines.verl.rollout_window import RolloutWindow
from bapo.engines.verl.step_sampler import RolloutWeights, VerlSetup, VerlStepSampler
from bapo.engines.verl.transfer_rows import StepRows
from bapo.engines.verl.worker import GPUMethodWorker
from bapo.experiments import budgets
from bapo.methods import Batch
from bapo.store.files import STEPS
from bapo.store.progress import Tracking
from bapo.tasks.files import read_problems

#: the file of the prompts' vectors, in the run's folder until the run has finished
EMBEDDINGS = "embeddings.npy"


class Stopped(Exception):
    """Raised between two steps, after a checkpoint, when the budget is used up or the run was asked to stop."""


class MethodTrainer(ResumableTrainer):
    """Trains one run. ``config.bapo`` holds its configuration in this project's keys, and its folder."""

    total_training_steps: int  # verl's
    steps_per_epoch: int

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        # the sampler, the groups of the rollout and the batch of the running step
        self.sampler: VerlStepSampler
        self.fresh: list[Group] = []
        self.batch = Batch([])
        self.compared_delayed = False

    # ------------------------------------------------------------------ set-up
    def _build_replay_buffer(self) -> MethodReplayBuffer:
        return MethodReplayBuffer(self._build_batch)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        policy, values = GPUMethodWorker, critic.CriticWorker
        if self.config.trainer.device == "cpu":
            from bapo.engines.verl.cpu import CPUCriticWorker as values
            from bapo.engines.verl.cpu import CPUMethodWorker as policy
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(values if role == Role.Critic else policy)

    def _setup(self) -> None:
        super()._setup()
        if self.use_critic:
            self.critic_wg.prepare(self.config.actor_rollout_ref.bapo)
            self.critic_parameters = self.critic_wg.parameter_count()[0]

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        problems = read_problems(Path(self.config.data.train_files))
        self.source = PromptSource(self.train_dataset, problems, self.run)
        chats.prepare(self.tokenizer, self.run)
        for dataset in (self.train_dataset, self.val_dataset):
            images.require_lengths(dataset, self.tokenizer, self.processor, self.run.sampling.max_prompt_tokens)
        self.rows = StepRows(self.train_dataset, self.tokenizer, self.processor)
        budget = budgets.of(self.run, self.total_training_steps, self.config.bapo.get("budget"))
        self.recorder = VerlRecorder(self.run, self.method, budget)
        self.window = RolloutWindow(self.source, self._submit_batch_to_rollout, self.replay_buffer.collect)
        # the stream repeats the problems without end, and verl counts epochs only to end its loop
        self.total_training_steps, self.steps_per_epoch = budget.most, max(1, self.steps_per_epoch)
        with open_dict(self.config):
            self.config.trainer.total_epochs = budget.most + 1

    @cached_property
    def sampling(self) -> VerlSetup:
        """Return what the samplers of all steps share. verl must have made its workers."""
        s, rollout = self.run.sampling, self.config.actor_rollout_ref.rollout
        start = self.config.actor_rollout_ref.model.path
        generation = get_generation_config(start)  # vLLM also takes end tokens from it
        ends = models.end_tokens(self.tokenizer, generation)
        return VerlSetup(
            stream=self.source.stream,
            tokenizer=self.tokenizer,
            task=tasks.get(self.run.task.name),
            parameters=SamplingParameters(s.temperature, s.top_p, s.top_k, s.max_response_tokens, ends),
            group_size=self.run.train.group_size,
            embedder=lambda: self.embedder,
            source=self.source,
            rows=self.rows,
            weights=RolloutWeights(self.actor_rollout_wg, self.checkpoint_manager, rollout.free_cache_engine),
            submit=self._submit_batch_to_rollout,
            collect=self.replay_buffer.collect,
            ranks=self.ranks,
            with_tokens=self.with_tokens,
        )

    @cached_property
    def embedder(self) -> Embedder:
        """Return the embedder, which runs on the cores of this process, as the driver of Ray has no GPU."""

        def load() -> PreTrainedModel:
            torch.set_num_threads(len(os.sched_getaffinity(0)))  # Ray gives its workers one thread
            config, start = self.run.copy(), self.config.actor_rollout_ref.model.path  # the model before training
            config.model.attention = "sdpa"  # other implementations may need a GPU
            return models.load(Path(start), config, torch.device("cpu"))[0]

        return Embedder(load, [self.with_tokens(p) for p in self.source.by_id.values()], self.folder / EMBEDDINGS)

    def with_tokens(self, prompt: Prompt) -> Prompt:
        """Return the prompt with its ``PromptTokens``, as the torch engine has it."""
        messages = self.train_dataset[prompt.row]["raw_prompt"]
        tokens, pictures = images.encode(self.tokenizer, self.processor, messages)
        inputs = images.prepare(self.processor, pictures)
        return Prompt(prompt.id, PromptTokens(tuple(tokens), self.source.ground_truths[prompt.row], inputs))

    def fit(self, agent_loop_manager: AgentLoopManager) -> None:
        self.replay_buffer.watched = list(agent_loop_manager.agent_loop_workers)
        self.actor_parameters = self.actor_rollout_wg.parameter_count()[0]
        self.tracker = Tracking(self.run, self.folder, self.identity, self.recorder.rows[STEPS])
        if self.recorder.finished(self.global_steps):  # the run was killed after its last checkpoint
            self.total_training_steps = self.global_steps
        try:
            super().fit(agent_loop_manager)
        finally:
            try:
                self._end_commit()
            finally:
                self.tracker.finish()
            if self.recorder.finished(self.global_steps):
                (self.folder / EMBEDDINGS).unlink(missing_ok=True)  # it is large, and only a resumed run reads it

    # ------------------------------------------------------------------ before the rollout
    def on_init_end(self) -> None:
        self._load_rollout_policy(self.global_steps + 1)

    def on_step_end(self) -> None:
        with marked_timer("update_weights", self.timing_raw):
            self._load_rollout_policy(self.global_steps + 1)

    def _load_rollout_policy(self, step: int) -> None:
        """Give the rollout engine the alpha of ``step``, the coming one (Algorithm 1, lines 3-5)."""
        current = step - 1
        if self.method.syncs_rollout_policy(step):
            self.rollout_version = current
            if self.method.delays_rollout_policy:
                self.actor_rollout_wg.snapshot_rollout_policy()
        elif self.rollout_version == 0 and step == 1:
            self.actor_rollout_wg.snapshot_rollout_policy()  # the initial policy serves until the first sync
        self._prepare_rollout(step)

    def _prepare_rollout(self, step: int) -> None:
        """Give the rollout engine alpha, or let it sleep where the step has its rollout already."""
        if step in self.window:
            self.sampling.weights.sleep()
        else:
            self.sampling.weights.load(self.rollout_version, step - 1)

    def on_sample_end(self) -> None:
        self.sampling.weights.sleep()

    def on_validate_begin(self) -> None:
        if self.recorder.probes:
            self.sampling.weights.load(self.global_steps, self.global_steps)

    def on_validate_end(self) -> None:
        if self.recorder.probes:
            self._prepare_rollout(self.global_steps + 1)

    def _add_batch_to_generate(self) -> None:
        step = self.global_steps
        self.rows.begin_step()
        budget = self.method.rollout_budget(step, self.run.sampling.max_response_tokens)
        self.sampler = VerlStepSampler(self.sampling, step, budget)
        if self.method.resets_reference(step) and self.method.needs_reference:
            self.actor_rollout_wg.reset_reference()
            self.reference_moved = True
        self.prompts = self.method.draw_prompts(step, self.sampler)
        self._prepare_rollout(step)  # again, because the method may have put the engine to sleep to score responses
        if step not in self.window:
            self.window.submit({step: self.prompts} | self._coming_prompts(), self.run.train.group_size, budget)

    def _coming_prompts(self) -> dict[int, list[Prompt]]:
        """Return the prompts, by step, of the coming steps that have the same alpha as this one.

        There are none without ``verl.rollout_window`` or where alpha is not the current policy. There are none for
        images, whose pixels would fill the memory, nor where the method's prompts or the run's budget depend on later
        results. The stream is left where it was, as each step draws its prompts again.
        """
        step, method, stream = self.global_steps, self.method, self.source.stream
        foreseen = method.draws_next_prompts and self.recorder.budget.unit == "steps" and not self.sampling.task.images
        shared = method.delays_rollout_policy and self.rollout_version == step - 1
        if not (self.run.verl.rollout_window and foreseen and shared):
            return {}
        position, prompts = stream.position, dict[int, list[Prompt]]()
        for coming in range(step + 1, self.total_training_steps + 1):
            if method.syncs_rollout_policy(coming):
                break
            prompts[coming] = stream.next_prompts(method.batch_size)
        stream.position = position
        return prompts

    # ------------------------------------------------------------------ after the rewards
    def _build_batch(self) -> KVBatchMeta:
        """Wait for the step's rollout, and return the rows of the batch to train on."""
        rollout, costs = self.window.take(self.global_steps, self.prompts), self.sampler.costs
        self.charged = rollout.seconds - rollout.passed
        costs.seconds["rollout"] += rollout.seconds
        self.sampler.rollout_version = self.rollout_version
        with costs.timed("rollout"):
            self.fresh = self.sampler.fresh(rollout.meta, rollout.submission)
        self.batch = self.method.build_batch(self.global_steps, self.fresh, self.sampler)
        # verl's step needs rows: for an empty batch it gets one group, with which _update_actor does nothing
        groups = self.batch.groups or self.fresh[:1]
        self.mismatch = {}
        delayed = self.rollout_version != self.global_steps - 1
        # a delayed alpha is compared once a job, to see that its push arrives, as this copies all weights. Later steps
        # of a window are not compared, because their rollouts are of the weights of its first step
        if rollout.passed and not (delayed and self.compared_delayed):
            self.compared_delayed |= delayed
            with marked_timer("compare", self.timing_raw):
                self.mismatch = self.sampler.mismatch(delayed)
        self.parts = mini_batches(self.method, self.run.train, self.run.seed, self.global_steps, groups)
        return self.rows.batch([g for part in self.parts for g in part])

    # ------------------------------------------------------------------ the update
    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *_: object, **__: object) -> KVBatchMeta:
        """Order and pad the rows so that each mini-batch is balanced over the ranks. verl would mix mini-batches."""
        self.layout = layout = lay_out(
            self.method, self.parts, self.run.train, self.ranks(), self.global_steps, self.batch.phase
        )
        batch = upsample_batch_to_divisible_size(batch, len(layout.order), self.tokenizer.eos_token_id)
        batch.reorder(layout.order)
        columns = TensorDict({LAYOUT: torch.from_numpy(layout.columns)}, batch_size=len(batch.keys))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=columns)
        return batch

    def ranks(self) -> int:
        """Count the data-parallel ranks of the policy."""
        group = self.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return max(group._dispatch_info["actor"]) + 1

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Replace verl's log-probabilities by those that the method keeps, if it does; padding keeps verl's."""
        batch = super()._compute_old_log_prob(batch, metrics)
        if self.method.keeps_step_logprobs:
            logprobs, order = kept_step_logprobs(self.parts), self.layout.order
            rows = [(key, logprobs[i]) for key, i in zip(batch.keys, order, strict=True) if i < len(logprobs)]
            fields = list_of_dict_to_tensordict([{"old_log_probs": values} for _, values in rows])
            tq.kv_batch_put(keys=[key for key, _ in rows], partition_id=batch.partition_id, fields=fields)
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Write the advantages into the rows: the critic's, or those that the method has put into the layout."""
        fields = ["response_mask", *(["rm_scores", "values"] if self.use_critic else [])]
        rows = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        if self.use_critic:
            estimated, critic_metrics = critic.advantages(self.method, rows)
            metrics.update(critic_metrics)
        else:
            assert self.layout.advantages is not None
            padded_mask = rows.to_padded_tensor()["response_mask"]
            values = response_to_nested(advantages_by_token(self.layout.advantages, padded_mask), rows["response_mask"])
            estimated = TensorDict({"advantages": values, "returns": values}, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=estimated)

    def _update_critic(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if not self.batch.groups:
            return batch
        batch.extra_info["rows_per_update"] = self.layout.rows_per_update
        batch = super()._update_critic(batch, metrics)
        self._require_finite(metrics, "critic", "value_loss")
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if not self.batch.groups:
            return batch
        self.updates += len(self.parts)
        batch.extra_info["rows_per_update"] = self.layout.rows_per_update
        batch = super()._update_actor(batch, metrics)
        self._require_finite(metrics, "actor", "loss")
        return batch

    def _require_finite(self, metrics: dict, part: str, hook: str) -> None:
        """Raise RuntimeError for a gradient that is not finite; verl would skip the update and only log it.

        part: the model; hook: the method's loss that trains it.
        """
        if not np.isfinite(metrics.get(f"{part}/grad_norm", 0.0)):
            fault = hooks.not_finite(self.method, hook, float(metrics.get(f"{part}/bapo/{hook}", 0.0)))
            raise RuntimeError(f"step {self.global_steps}: {fault}")

    # ------------------------------------------------------------------ what is recorded
    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Run verl's step and record its costs, which decide whether a run with a budget ends."""
        batch = super().step(metrics, timing_raw)
        trained = bool(self.batch.groups) and self.method.trains_policy(self.global_steps)
        update = update_metrics(metrics) if trained else {}
        update |= {"updates": len(self.parts) if trained else 0, **self.mismatch}
        update["cut_off"] = cut_off(records.ended(self.fresh, self.batch), self.sampling.parameters)
        t, costs = self.run.train, self.sampler.costs
        update["learning_rate"] = learning_rate(t.learning_rate, t.warmup_updates, max(1, self.updates))
        tokens = sum(t["seq_len"] for t in batch.tags if not t.get("is_padding")) if self.batch.groups else 0
        if self.use_critic and self.batch.groups:
            update |= critic.update_metrics(metrics)
        critic_tokens, values = (tokens, self.critic_parameters) if self.use_critic else (0, 0)
        trained_tokens = tokens if trained else 0
        scored_tokens = trained_tokens if self.method.needs_step_policy else 0  # the rows of every pass
        costs.add_update(self.method, trained_tokens, scored_tokens, critic_tokens, values)
        self.recorder.begin_row(
            self.global_steps, self.used_version, self.fresh, self.batch, self.actor_parameters, costs, update
        )
        return batch

    def _validate(self) -> dict[str, float]:
        return super()._validate() if self.recorder.probes else {}

    def _val_metrics_update(
        self, data_sources: list, sample_uids: list, reward_extra_infos_dict: dict, *args: object, **kwargs: object
    ) -> dict[str, float]:
        """Record the accuracy of the probed prompts, whose samples verl hands over all at once."""
        infos = dict(reward_extra_infos_dict)
        infos.pop("seconds", None)
        records.warn(int(sum(infos.pop("overloaded", ()))), f"step {self.global_steps}, validation", self._say)
        entries = zip(data_sources, infos["problem"], infos["reward"], strict=True)
        self.recorder.add_probe(self.global_steps, entries, len(self.val_dataset))
        return super()._val_metrics_update(data_sources, sample_uids, infos, *args, **kwargs)

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int
    ) -> None:
        self._end_commit(wait=False)
        timing_raw["step"] += self.charged  # this step pays its share of the rollout time of its window
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        row = self.recorder.end_step(global_steps, self.batch, self.sampler.costs.seconds, timing_raw, metrics)
        numbers = {f"verl/{k}": float(v) for k, v in metrics.items() if isinstance(v, int | float | np.number)}
        self.tracker.log(row | numbers)
        self._say(
            f"step {global_steps}/{self.total_training_steps}  reward {row['reward_mean']:.3f}  "
            f"batch {row['x1']}+{row['x2']}+{row['x3']}  {row['seconds_total']:.1f} s"
        )
        records.warn(row["overloaded"], f"step {global_steps}", self._say)
        finished = self.recorder.finished(global_steps)
        saves, stop = self.clock.step_ended(global_steps, finished, (self.folder / STOP).exists())
        if saves:
            self._save_checkpoint()
        if stop or (finished and global_steps < self.total_training_steps):
            raise Stopped

    def on_step_begin(self) -> None:
        super().on_step_begin()
        if not self.clock.longest_step:  # the validation before the first step is not part of a step
            self.clock.start()
        self.used_version = self.rollout_version
