"""verl's synchronous trainer, driven by a method's hooks.

=====================  ====================================================================================
``Method`` hook        where it is called
=====================  ====================================================================================
resets_reference       ``_next_train_batch``, before the prompts are drawn
draw_prompts           ``_next_train_batch``: verl asks for prompts
rollout_budget         ``_next_train_batch``: the rollout's limit for each response
syncs_rollout_policy   ``on_init_end``, ``on_step_end``: verl pushes weights for the coming rollout
build_batch            ``replay_buffer.sample``: fresh groups with rewards are in TransferQueue (``sampler.py``)
units, separate        ``_balance_batch``: verl orders the rows (``batches.lay_out``)
advantages             ``_balance_batch``, for the estimator that ``advantages.py`` registers
token_advantages       ``_compute_advantage``, from the values of verl's critic (``critic.py``)
loss, value_loss       in the workers (``worker.py``, ``losses.py``, ``critic.py``)
trains_policy          ``trainer.critic_warmup`` of verl's configuration
=====================  ====================================================================================
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf, open_dict
from safetensors.torch import save_file
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils.debug import marked_timer

from bapo import methods
from bapo.algorithm.batch import mini_batches
from bapo.algorithm.rollouts import Group
from bapo.engines.torch.checkpoints import pack_groups, unpack_groups
from bapo.engines.verl import advantages, checkpoints, critic, embeddings, losses, run_directory, settings
from bapo.engines.verl.batches import Rows, lay_out
from bapo.engines.verl.launch import PROGRESS, STOP
from bapo.engines.verl.prompts import PromptSource
from bapo.engines.verl.replay_buffer import MethodReplayBuffer
from bapo.engines.verl.rows import Asked, StepRows, put_columns
from bapo.engines.verl.sampler import StepSampler
from bapo.engines.verl.worker import CURRENT, DELAYED, GPUMethodWorker
from bapo.experiments import budgets
from bapo.methods import Batch
from bapo.store import records, tracking
from bapo.store.files import GROUPS, PROBE, STEPS, read_json, write_json

#: trainer states kept: the newest, and one to fall back on
KEPT = 2


class Stopped(Exception):
    """The budget is used up, or somebody asked the run to stop: raised between two steps, after a checkpoint."""


class MethodTrainer(PPOTrainerSync):
    """One run of one method. ``config.bapo`` holds the project's own configuration and the run's folder."""

    def __init__(self, config: DictConfig) -> None:
        self.run = config.bapo.config  # the configuration of bapo.experiments.compose
        self.folder, self.identity = Path(config.bapo.folder), config.bapo.identity
        self.method = methods.build(self.run.method, batch_size=self.run.train.batch_size, seed=self.run.seed)
        super().__init__(config)
        self.tables = records.Tables()
        self.updates = 0
        self.rollout_version = 0  # of alpha
        self.loaded: int | None = None  # version of the weights that the rollout engine holds
        self.reference_moved = False
        self.sampler: StepSampler | None = None
        self.embedder: embeddings.StoredEmbedder | None = None
        self.fresh: list[Group] = []
        self.batch = Batch([])
        self.ledger = records.Ledger()
        self.seconds: dict[str, float] = defaultdict(float)
        self.row: dict[str, Any] = {}  # of steps.parquet, the running step's
        self.spent, self.probe_due = 0.0, True  # the model before training is probed

    # ------------------------------------------------------------------ set-up
    def _build_replay_buffer(self) -> MethodReplayBuffer:
        return MethodReplayBuffer(self._build_batch, lambda: len(self.asked.prompts), self.config.bapo.stalled_after)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        worker = GPUMethodWorker
        if self.config.trainer.device == "cpu":
            from bapo.engines.verl.cpu.workers import CPUMethodWorker as worker
        for role in self.role_worker_mapping:
            if role != Role.Critic:
                self.role_worker_mapping[role] = ray.remote(worker)
        if Role.Critic in self.role_worker_mapping:
            critic_worker = critic.GPUCriticWorker
            if self.config.trainer.device == "cpu":
                from bapo.engines.verl.critic_cpu import CPUCriticWorker as critic_worker
            self.role_worker_mapping[Role.Critic] = ray.remote(critic_worker)

    def _setup(self) -> None:
        super()._setup()
        if self.use_critic:
            self.critic_wg.prepare(self.config.actor_rollout_ref.bapo)
            self.critic_parameters = self.critic_wg.parameter_count()[0]

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.source = PromptSource(self.train_dataset, self.run.seed)
        self.rows = StepRows(self.train_dataset, self.tokenizer, self.processor)
        self.budget = budgets.within(self.run, self.total_training_steps, self.config.bapo.get("budget"))
        # our stream goes through the problems again and again; verl counts epochs only to end the loop
        self.total_training_steps, self.steps_per_epoch = self.budget.most, max(1, self.steps_per_epoch)
        with open_dict(self.config):
            self.config.trainer.total_epochs = self.budget.most + 1

    def fit(self, agent_loop_manager: Any) -> None:
        self.replay_buffer.watched = list(agent_loop_manager.agent_loop_workers)
        self.parameters = self.actor_rollout_wg.parameter_count()[0]
        self.tracker = tracking.start(self.run, self.folder, self.identity)
        if self._finished():  # it was killed between its last checkpoint and its end
            self.total_training_steps = self.global_steps
        try:
            super().fit(agent_loop_manager)
        finally:
            self.tracker.finish()
            if self._finished():
                (self.folder / embeddings.FILE).unlink(missing_ok=True)  # large, and only a resumed run reads it

    # ------------------------------------------------------------------ before the rollout
    def on_init_end(self) -> None:
        self._load_rollout_policy(self.global_steps + 1)

    def on_step_end(self) -> None:
        with marked_timer("update_weights", self.timing_raw):
            self._load_rollout_policy(self.global_steps + 1)

    def _load_rollout_policy(self, step: int) -> None:
        """alpha of the coming step, in the rollout engine (Algorithm 1, lines 3-5)."""
        current = step - 1
        if self.method.syncs_rollout_policy(step) or not self.method.delays_rollout_policy:
            self.rollout_version = current
            if self.method.delays_rollout_policy:
                self.actor_rollout_wg.snapshot_rollout_policy()
        elif self.rollout_version == 0 and step == 1:
            self.actor_rollout_wg.snapshot_rollout_policy()  # the initial policy serves until the first sync
        self.load(self.rollout_version, current)

    def load(self, version: int, current: int) -> None:
        """Have the rollout engine hold the weights of ``version``; ``current`` is pi_theta's."""
        if self.loaded == version:
            return
        if self.loaded is not None:
            self.checkpoint_manager.sleep_replicas()  # verl pushes to sleeping engines only
        self.actor_rollout_wg.choose_rollout_policy(CURRENT if version == current else DELAYED)
        self.checkpoint_manager.update_weights(version)
        self.loaded = version

    def on_sample_end(self) -> None:
        self.rest()
        if self.curr_step_profile:
            self._stop_rollout_profiling()

    def rest(self) -> None:
        """The rollout engine sleeps: its memory is free for the training engine."""
        if self.loaded is not None:
            self.checkpoint_manager.sleep_replicas()
        self.loaded = None  # vLLM throws its weights away when it sleeps

    def on_validate_begin(self) -> None:
        if self._probes():
            self.load(self.global_steps, self.global_steps)

    def on_validate_end(self) -> None:
        if self._probes():
            self.load(self.rollout_version, self.global_steps)

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        step = self.global_steps
        self.ledger, self.seconds, self.rows.live = records.Ledger(), defaultdict(float), {}
        limit = self.method.rollout_budget(step, self.run.sampling.max_response_tokens)
        self.sampler = StepSampler(self, step, limit)
        if self.method.resets_reference(step) and self.method.needs_reference:
            self.actor_rollout_wg.reset_reference()
            self.reference_moved = True
        prompts = self.method.draw_prompts(step, self.sampler)
        self.load(self.rollout_version, step - 1)  # the method may have had something scored
        self.submitted = time.perf_counter()
        size = self.run.train.group_size
        rows = self.source.batch(prompts, size, step, ("rollout",), [limit] * len(prompts))
        self.asked = Asked(dict(zip(list(rows["uid"]), prompts, strict=True)), size)
        return rows

    # ------------------------------------------------------------------ after the rewards
    def _build_batch(self, meta: KVBatchMeta) -> tuple[KVBatchMeta, dict]:
        """The fresh groups of the step, as rows in TransferQueue, become the batch to train on."""
        self.fresh = self.sampler.fresh(meta, self.asked, self.rollout_version)
        self.seconds["rollout"] += time.perf_counter() - self.submitted
        self.batch = self.method.build_batch(self.global_steps, self.fresh, self.sampler)
        # an empty batch changes nothing; one group goes through verl's step, and _update_actor leaves it alone
        groups = self.batch.groups or self.fresh[:1]
        self.parts = mini_batches(self.method, self.run.train, self.run.seed, self.global_steps, groups)
        return self.rows.batch([g for part in self.parts for g in part]), {}

    # ------------------------------------------------------------------ the update
    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *_: Any, **__: Any) -> KVBatchMeta:
        """verl would mix the mini-batches to balance the ranks; here each mini-batch is balanced by itself."""
        method, step = self.method, self.global_steps
        layout = lay_out(self.parts, self.run.train, self.ranks(), step, method.weight, method.phase)
        batch = upsample_batch_to_divisible_size(batch, len(layout.order), self.tokenizer.eos_token_id)
        batch.reorder(layout.order)
        if not self.use_critic:
            advantages.use(advantages.of_rows(self.method, self.parts, layout))
        put_columns(batch.keys, {losses.LAYOUT: torch.from_numpy(layout.columns)})
        self.rows_per_update = layout.rows_per_update
        return batch

    def ranks(self) -> int:
        """Data-parallel ranks of the policy."""
        group = self.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return max(group._dispatch_info["actor"]) + 1

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if not self.use_critic:
            return super()._compute_advantage(batch, metrics)
        fields = ["response_mask", "rm_scores", "values"]
        rows = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        found, critic_metrics = critic.advantages(self.method, rows)
        metrics.update(critic_metrics)
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=found)

    def _update_critic(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if not self.batch.groups:
            return batch
        batch.extra_info["rows_per_update"] = self.rows_per_update
        batch = super()._update_critic(batch, metrics)
        self._require_finite(metrics, "critic")
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if not self.batch.groups:
            return batch
        self.updates += len(self.parts)
        batch.extra_info["rows_per_update"] = self.rows_per_update
        batch = super()._update_actor(batch, metrics)
        self._require_finite(metrics, "actor")
        return batch

    def _require_finite(self, metrics: dict, part: str) -> None:
        """verl leaves out an update whose gradient is not finite, with a line in its log."""
        norms = [metrics[name] for name in metrics if name.startswith(f"{part}/") and name.endswith("grad_norm")]
        if not np.isfinite(np.array(norms, dtype=np.float64)).all():
            raise RuntimeError(
                f"step {self.global_steps}: the {part}'s gradient is not finite; lower train.learning_rate, check the "
                "rewards"
            )

    # ------------------------------------------------------------------ what is recorded
    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """verl's step, and what it cost: with a budget that decides whether the run ends, and so on its probe."""
        batch = super().step(metrics, timing_raw)
        self.row = self._row(batch, metrics)
        before, self.spent = self.spent, self.spent + self.budget.spent([self.row])
        self.probe_due = self.budget.probes(before, self.spent, self.global_steps, self.run.probe.points)
        return batch

    def _finished(self) -> bool:
        return self.budget.finished(self.spent, self.global_steps)

    def _probes(self) -> bool:
        return bool(settings.validation_sets(self.run)) and self.probe_due

    def _validate(self) -> dict[str, float]:
        found = super()._validate() if self._probes() else {}
        self.tracker.log({name: float(value) for name, value in found.items()}, self.global_steps)
        return found

    def _val_metrics_update(
        self, data_sources: list, sample_uids: list, reward_extra_infos_dict: dict, *args: Any, **kwargs: Any
    ) -> dict[str, float]:
        """Accuracy of fixed prompts under the current policy; verl asks for all samples at once."""
        found = {name: values for name, values in reward_extra_infos_dict.items() if name != "seconds"}
        entries = list(zip(data_sources, found["problem"], found["reward"], strict=True))
        rows = run_directory.probe_rows(self.global_steps, entries)
        expected = settings.validation_sets(self.run)
        for row in rows:  # verl drops the samples of a rollout that failed
            if row["samples"] % expected[row["set"]][1]:
                raise RuntimeError(
                    f"step {self.global_steps}, validation on {row['set']}: problem {row['prompt_id']} has "
                    f"{row['samples']} samples instead of {expected[row['set']][1]}; a rollout failed"
                )
        if len(rows) != len(self.val_dataset):
            raise RuntimeError(
                f"step {self.global_steps}: {len(rows)} of {len(self.val_dataset)} problems were validated; a rollout "
                "failed"
            )
        self.tables.rows[PROBE] += rows
        return super()._val_metrics_update(data_sources, sample_uids, found, *args, **kwargs)

    def _row(self, batch: KVBatchMeta, metrics: dict) -> dict[str, Any]:
        """The step's row of ``steps.parquet``, without the time it took."""
        trained = bool(self.batch.groups) and self.method.trains_policy(self.global_steps)
        update = run_directory.update_metrics(metrics) if trained else {}
        update["updates"] = len(self.parts) if trained else 0
        warm = min(1.0, max(1, self.updates) / max(1, self.run.train.warmup_updates))
        update["learning_rate"] = self.run.train.learning_rate * warm
        tokens = sum(t["seq_len"] for t in batch.tags if not t.get("is_padding")) if self.batch.groups else 0
        if self.use_critic and self.batch.groups:
            update |= critic.update_metrics(metrics)
            self.ledger.critic_tokens, self.ledger.critic_parameters = tokens, self.critic_parameters
        tokens = tokens if trained else 0
        self.ledger.trained_tokens = tokens
        # beside what the method had scored
        self.ledger.forwards += tokens * (1 + self.method.needs_reference + self.method.needs_step_policy)
        phases = ("rollout", "regenerate", "reward", "update", "probe", "total")
        return records.step_row(
            self.global_steps,
            self.used_version,
            self.fresh,
            self.batch,
            self.method,
            self.parameters,
            self.ledger,
            update,
            dict.fromkeys(phases, 0.0),
        )

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        phases = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
        row = self.row | {
            "seconds_rollout": self.seconds["rollout"],
            "seconds_regenerate": self.seconds["regenerate"],
            # the verifier's own, over all workers: verl grades a response as soon as it is there, so it is no phase
            "seconds_reward": self.seconds["reward"],
            "seconds_update": sum(timing_raw.get(name, 0.0) for name in phases),
            "seconds_probe": timing_raw.get("testing", 0.0),
            "seconds_total": timing_raw["step"] + timing_raw.get("testing", 0.0),
        }
        self.tables.rows[STEPS].append(row)
        self.tables.rows[GROUPS] += records.group_rows(global_steps, self.batch)
        own = {k: v for k, v in row.items() if k != "step"}
        self.tracker.log(own | {f"verl/{k}": float(v) for k, v in metrics.items() if np.isscalar(v)}, global_steps)
        metrics.update({f"bapo/{k}": v for k, v in own.items()})
        self._say(
            f"step {global_steps}/{self.total_training_steps}  reward {row['reward_mean']:.3f}  "
            f"batch {row['x1']}+{row['x2']}+{row['x3']}  {row['seconds_total']:.1f} s"
        )
        finished = self._finished()
        stop = not finished and (self.folder / STOP).exists()
        if global_steps % self.run.checkpoint.every == 0 or finished or stop:
            self._save_checkpoint()
        if stop or (finished and global_steps < self.total_training_steps):
            raise Stopped

    def _say(self, text: str) -> None:
        run = self.run
        print(f"{PROGRESS}{run.task.name} {run.model.name} {run.method.name} seed {run.seed}  {text}", flush=True)

    def on_step_begin(self) -> None:
        super().on_step_begin()
        self.used_version = self.rollout_version

    # ------------------------------------------------------------------ checkpoints
    def _own_folder(self, step: int) -> Path:
        return checkpoints.folder_of(Path(self.config.trainer.default_local_dir), step) / "bapo"

    def _save_checkpoint(self) -> None:
        """Our state, then verl's; the checksums come last and are the commit."""
        step = self.global_steps
        own = self._own_folder(step)
        shutil.rmtree(own.parent, ignore_errors=True)
        own.mkdir(parents=True)
        state, groups = self.method.state()
        tensors, entries = pack_groups(groups)
        save_file(tensors, own / "groups.safetensors")
        if self.method.delays_rollout_policy:
            self.actor_rollout_wg.save_rollout_policy(str(own))
        if self.reference_moved:
            self.actor_rollout_wg.save_reference(str(own))
        self.tables.write(own)
        write_json(
            own / "state.json",
            {
                "step": step,
                "total_steps": self.total_training_steps,
                "finished": self._finished(),
                "updates": self.updates,
                "stream_position": self.source.stream.position,
                "rollout_version": self.rollout_version,
                "reference_moved": self.reference_moved,
                "method": state,
                "groups": entries,
                "random": "keyed by (seed, purpose, step): nothing to save",
            },
        )
        super()._save_checkpoint()
        checkpoints.write_checksums(own.parent)
        checkpoints.publish(own.parent, self.folder, step, self.run.checkpoint.keep_models)
        self.tables.write(self.folder)
        root = own.parent.parent
        for old in [s for s in checkpoints.steps(root) if s <= step][KEPT:]:  # damaged later ones do not count
            shutil.rmtree(checkpoints.folder_of(root, old))

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if not self.global_steps:
            return
        own = self._own_folder(self.global_steps)
        state = read_json(own / "state.json")
        self.updates, self.rollout_version = state["updates"], state["rollout_version"]
        self.source.stream.position = state["stream_position"]
        groups = unpack_groups(own / "groups.safetensors", state["groups"], self.source.by_id)
        for group in groups:
            group.samples = Rows.of(group.samples)
        self.method.restore(state["method"], groups, self.source.by_id.__getitem__)
        if self.method.delays_rollout_policy:
            self.actor_rollout_wg.load_rollout_policy(str(own))
        self.reference_moved = state.get("reference_moved", False)
        if self.reference_moved:
            self.actor_rollout_wg.load_reference(str(own))
        self.tables.read(own)
        self.spent = self.budget.spent(self.tables.rows[STEPS])
        self.tables.write(self.folder)  # or a run that was already at its end would keep what lies there
        with open_dict(self.config):
            self.config.trainer.val_before_train = False  # done when the run began
        checkpoints.publish(own.parent, self.folder, self.global_steps, self.run.checkpoint.keep_models)
        self._say(f"going on after step {self.global_steps}")


@ray.remote
class TaskRunner:
    """verl's entry point inside Ray."""

    def run(self, config: DictConfig) -> None:
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        try:
            trainer = MethodTrainer(config)
            trainer.init()
            manager = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            try:
                trainer.fit(manager)
            except Stopped:
                trainer._shutdown_dump_executor()
            trainer.logger.finish(exit_code=0)
        finally:
            tq.close()
