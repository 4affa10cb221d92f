"""verl's synchronous trainer, driven by a method's hooks.

=====================  ====================================================================================
``Method`` hook        where it is called
=====================  ====================================================================================
draw_prompts           ``_next_train_batch``: verl asks for prompts
syncs_rollout_policy   ``on_init_end``, ``on_step_end``: verl pushes weights for the coming rollout
build_batch            ``replay_buffer.sample``: fresh groups with rewards are in TransferQueue
units                  ``_balance_batch``: verl orders the rows (``batches.lay_out``)
advantages             ``_compute_advantage``, through the estimator that ``advantages.py`` registers
token_advantages       ``_compute_advantage``, from the values of verl's critic (``critic.py``)
loss, value_loss       in the workers (``worker.py``, ``losses.py``, ``critic.py``)
trains_policy          ``trainer.critic_warmup`` of verl's configuration
=====================  ====================================================================================
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
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
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from bapo import methods, records, runs, tracking
from bapo.batch import mini_batches
from bapo.engines.torch.checkpoints import pack_groups, unpack_groups
from bapo.engines.verl import advantages, checkpoints, critic, images, losses, run_directory, settings
from bapo.engines.verl.batches import Rows, lay_out
from bapo.engines.verl.launch import PROGRESS, STOP
from bapo.engines.verl.prompts import PromptSource
from bapo.engines.verl.replay_buffer import MethodReplayBuffer
from bapo.engines.verl.worker import CURRENT, DELAYED, GPUMethodWorker
from bapo.methods import Batch
from bapo.rollouts import FRESH, REEVALUATED, Group, Prompt, Samples

TRAIN = "train"  # verl's partition of TransferQueue
#: trainer states kept: the newest, and one to fall back on
KEPT = 2
#: verl's copy of the weights in Hugging Face format, within its checkpoint
PUBLISHED = "actor/huggingface"


class Stopped(Exception):
    """Somebody asked the run to stop: raised between two steps, after a checkpoint."""


class StepSampler:
    """``bapo.methods.Sampler`` for one training step."""

    def __init__(self, trainer: MethodTrainer, step: int) -> None:
        self.trainer, self.step = trainer, step
        self._drawn: set[str] = set()
        self._calls = 0

    def draw(self, count: int) -> list[Prompt]:
        prompts = self.trainer.source.stream.draw(count)
        self._drawn.update(p.id for p in prompts)
        return prompts

    def regenerate(self, prompts: list[Prompt], group_size: int | None = None) -> list[Group]:
        """Prompts drawn in this step count as fresh rollouts (DAPO's further batches), all others as regenerated."""
        self._calls += 1
        if not prompts:
            return []
        origin = FRESH if all(p.id in self._drawn for p in prompts) else REEVALUATED
        return self.trainer.regenerate(prompts, group_size, ("regenerate", self._calls), origin)


class MethodTrainer(PPOTrainerSync):
    """One run of one method. ``config.bapo`` holds the project's own configuration and the run's folder."""

    def __init__(self, config: DictConfig) -> None:
        self.run = config.bapo.config  # the configuration of bapo.config
        self.folder, self.identity = Path(config.bapo.folder), config.bapo.identity
        self.method = methods.build(self.run.method, batch_size=self.run.train.batch_size, seed=self.run.seed)
        advantages.use(self.method)
        super().__init__(config)
        self.tables = records.Tables()
        self.updates = 0
        self.rollout_version = 0  # of alpha
        self.loaded: int | None = None  # version of the weights that the rollout engine holds
        self.sampler: StepSampler | None = None
        self.live: dict[str, dict] = {}  # rows of this step in TransferQueue, and their tags
        self.fresh: list[Group] = []
        self.batch = Batch([])
        self.ledger = records.Ledger()
        self.seconds: dict[str, float] = defaultdict(float)
        self.probed: list[tuple[str, str, float]] = []

    # ------------------------------------------------------------------ set-up
    def _build_replay_buffer(self) -> MethodReplayBuffer:
        return MethodReplayBuffer(self._build_batch, lambda: len(self.asked), self.config.bapo.stalled_after)

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

    def fit(self, agent_loop_manager: Any) -> None:
        self.replay_buffer.watched = list(agent_loop_manager.agent_loop_workers)
        self.parameters = self.actor_rollout_wg.parameter_count()[0]
        self.tracker = tracking.start(self.run, self.folder, self.identity)
        try:
            super().fit(agent_loop_manager)
        finally:
            self.tracker.finish()

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
        self._load(self.rollout_version, current)

    def _load(self, version: int, current: int) -> None:
        """Have the rollout engine hold the weights of ``version``; ``current`` is pi_theta's."""
        if self.loaded == version:
            return
        if self.loaded is not None:
            self.checkpoint_manager.sleep_replicas()  # verl pushes to sleeping engines only
        self.actor_rollout_wg.choose_rollout_policy(CURRENT if version == current else DELAYED)
        self.checkpoint_manager.update_weights(version)
        self.loaded = version

    def on_sample_end(self) -> None:
        super().on_sample_end()
        self.loaded = None  # vLLM throws its weights away when it sleeps

    def on_validate_begin(self) -> None:
        if self._probes():
            self._load(self.global_steps, self.global_steps)

    def on_validate_end(self) -> None:
        if self._probes():
            self._load(self.rollout_version, self.global_steps)

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        self.ledger, self.seconds = records.Ledger(), defaultdict(float)
        self.sampler = StepSampler(self, self.global_steps)
        self.submitted = time.perf_counter()
        prompts = self.method.draw_prompts(self.global_steps, self.sampler)
        return self._rows_of(prompts, self.run.train.group_size, ("rollout",))

    def _rows_of(self, prompts: list[Prompt], group_size: int, purpose: tuple[object, ...]) -> TensorDict:
        rows = self.source.batch(prompts, group_size, self.global_steps, purpose)
        self.asked_size = group_size
        self.asked = dict(zip(list(rows["uid"]), prompts, strict=True))
        return rows

    # ------------------------------------------------------------------ after the rewards
    def _build_batch(self, meta: KVBatchMeta) -> tuple[KVBatchMeta, dict]:
        """The fresh groups of the step, as rows in TransferQueue, become the batch to train on."""
        self.live = {}
        self.fresh = self._groups(meta, FRESH, self.rollout_version)
        self.seconds["rollout"] += time.perf_counter() - self.submitted
        self.batch = self.method.build_batch(self.global_steps, self.fresh, self.sampler)
        # an empty batch changes nothing; one group goes through verl's step, and _update_actor leaves it alone
        groups = self.batch.groups or self.fresh[:1]
        self.parts = mini_batches(self.method, self.run.train, self.run.seed, self.global_steps, groups)
        keys: list[str] = []
        tags: list[dict] = []
        for group in (g for part in self.parts for g in part):
            for key, tag in self._stored(group, set(keys)):
                keys.append(key)
                tags.append(tag)
        unused = [key for key in self.live if key not in set(keys)]
        if unused:
            tq.kv_clear(keys=unused, partition_id=TRAIN)
        return KVBatchMeta(partition_id=TRAIN, keys=keys, tags=tags), {}

    def regenerate(
        self, prompts: list[Prompt], group_size: int | None, purpose: tuple[object, ...], origin: str
    ) -> list[Group]:
        """G new responses a prompt from the current policy."""
        begun = time.perf_counter()
        self._load(self.global_steps - 1, self.global_steps - 1)
        rows = self._rows_of(prompts, group_size or self.run.train.group_size, purpose)
        self._submit_batch_to_rollout(rows)
        meta, _ = self.replay_buffer.collect(self.global_steps, TRAIN, len(prompts))
        groups = self._groups(meta, origin, self.global_steps - 1)
        self.seconds["rollout" if origin == FRESH else "regenerate"] += time.perf_counter() - begun
        return groups

    def _groups(self, meta: KVBatchMeta, origin: str, version: int) -> list[Group]:
        """Finished rows as groups, in the order in which their prompts were submitted."""
        tags = dict(zip(meta.keys, meta.tags, strict=True))
        by_uid: dict[str, list[str]] = defaultdict(list)
        for key in meta.keys:
            by_uid[key.split("_")[0]].append(key)
        self.live |= {key: tags[key] for keys in by_uid.values() for key in keys}
        order = [k for uid in self.asked for k in sorted(by_uid[uid], key=lambda key: int(key.split("_")[1]))]
        for uid, prompt in self.asked.items():
            if len(by_uid[uid]) != self.asked_size:
                raise RuntimeError(
                    f"step {self.global_steps}, problem {prompt.id}: {len(by_uid[uid])} of {self.asked_size} responses "
                    "arrived; a rollout worker failed"
                )
        data = tq.kv_batch_get(
            keys=order,
            partition_id=TRAIN,
            select_fields=["responses", "rollout_log_probs", "rm_scores", "extra_fields"],
        )
        self.seconds["reward"] += sum(e["reward_extra_info"]["seconds"] for e in data["extra_fields"])
        groups, start = [], 0
        for uid, prompt in self.asked.items():
            rows = slice(start, start + len(by_uid[uid]))
            start = rows.stop
            samples = _samples([data["responses"][i] for i in range(rows.start, rows.stop)],
                               [data["rollout_log_probs"][i] for i in range(rows.start, rows.stop)])  # fmt: skip
            rewards = np.array([float(data["rm_scores"][i].sum()) for i in range(rows.start, rows.stop)])
            payload = Rows.of(samples, order[rows])
            groups.append(Group(prompt, rewards, self.global_steps, version, payload, origin))
        self.ledger.add(groups, origin, sum(tags[keys[0]]["prompt_len"] for keys in by_uid.values()))
        return groups

    def _stored(self, group: Group, taken: set[str]) -> list[tuple[str, dict]]:
        """(key, tag) of a group's rows in TransferQueue; rows of earlier steps are put there again."""
        keys = group.samples.keys
        if all(k in self.live and k not in taken for k in keys) and len({k.split("_")[0] for k in keys}) == 1:
            return [(k, self.live[k]) for k in keys]
        return self._put_again(group)

    def _put_again(self, group: Group) -> list[tuple[str, dict]]:
        """Rebuild a group's rows; whatever a method does not keep is taken from a row of this step."""
        uid, source_key = uuid.uuid4().hex, next(iter(self.live))
        row = tq.kv_batch_get(keys=[source_key], partition_id=TRAIN)[0]
        template = {name: row[name] for name in row.keys()}  # noqa: SIM118 (iterating a TensorDict gives rows)
        data = self.source.dataset[group.prompt.row.index]
        from_data = {name: value for name, value in data.items() if name in template}
        tokens, pictures = images.encode(self.tokenizer, self.processor, data["raw_prompt"])
        prompt = torch.tensor(tokens, dtype=torch.int64)
        vision = images.vision_inputs(self.tokenizer, self.processor, pictures, prompt)
        rows, entries = [], []
        for i in range(group.size):
            n = int(group.samples.lengths[i])
            response = torch.from_numpy(group.samples.tokens[i, :n].astype(np.int64))
            ids, ones = torch.cat([prompt, response]), torch.ones(n, dtype=torch.int64)
            scores = torch.zeros(n)
            scores[-1] = float(group.rewards[i])
            rows.append(template | from_data | {
                "uid": uid, "session_id": i, "prompts": prompt, "responses": response, "input_ids": ids,
                "response_mask": ones, "loss_mask": ones, "rm_scores": scores,
                **images.row_inputs(self.processor, vision, ids),
                "rollout_log_probs": torch.from_numpy(group.samples.logprobs[i, :n].astype(np.float32)),
            })  # fmt: skip
            tag = self.live[source_key] | {
                "prompt_len": len(prompt), "response_len": n, "seq_len": len(ids), "global_steps": group.step,
                "min_global_steps": group.version, "max_global_steps": group.version,
            }  # fmt: skip
            entries.append((f"{uid}_{i}_0", tag))
        keys, tags = [k for k, _ in entries], [t for _, t in entries]
        tq.kv_batch_put(keys=keys, partition_id=TRAIN, fields=list_of_dict_to_tensordict(rows), tags=tags)
        return entries

    # ------------------------------------------------------------------ the update
    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *_: Any, **__: Any) -> KVBatchMeta:
        """verl would mix the mini-batches to balance the ranks; here each mini-batch is balanced by itself."""
        group = self.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        ranks = max(group._dispatch_info["actor"]) + 1
        layout = lay_out(self.parts, self.run.train, ranks, self.global_steps, self.method.weight)
        batch = upsample_batch_to_divisible_size(batch, len(layout.order), self.tokenizer.eos_token_id)
        batch.reorder(layout.order)
        columns = TensorDict({losses.LAYOUT: torch.from_numpy(layout.columns)}, batch_size=len(batch))
        tq.kv_batch_put(keys=batch.keys, partition_id=TRAIN, fields=columns)
        self.rows_per_update = layout.rows_per_update
        return batch

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
    def _probe_steps(self) -> set[int]:
        probe = self.run.probe
        if not settings.validation_sets(self.run):
            return set()
        total, points = self.total_training_steps, probe.points
        return {round(i * total / (points - 1)) for i in range(points)} if points > 1 else {total}

    def _probes(self) -> bool:
        return self.global_steps in self._probe_steps()

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
        self.tables.rows[runs.PROBE] += rows
        return super()._val_metrics_update(data_sources, sample_uids, found, *args, **kwargs)

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        trained = bool(self.batch.groups) and self.method.trains_policy(global_steps)
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
        self.ledger.forwards = tokens * (1 + self.method.needs_reference + self.method.needs_step_policy)
        phases = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
        seconds = {
            "rollout": self.seconds["rollout"],
            "regenerate": self.seconds["regenerate"],
            # the verifier's own, over all workers: verl grades a response as soon as it is there, so it is no phase
            "reward": self.seconds["reward"],
            "update": sum(timing_raw.get(name, 0.0) for name in phases),
            "probe": timing_raw.get("testing", 0.0),
            "total": timing_raw["step"] + timing_raw.get("testing", 0.0),
        }
        row = records.step_row(
            global_steps, self.used_version, self.fresh, self.batch, self.method, self.parameters, self.ledger, update,
            seconds,
        )  # fmt: skip
        self.tables.rows[runs.STEPS].append(row)
        self.tables.rows[runs.GROUPS] += records.group_rows(global_steps, self.batch)
        own = {k: v for k, v in row.items() if k != "step"}
        self.tracker.log(own | {f"verl/{k}": float(v) for k, v in metrics.items() if np.isscalar(v)}, global_steps)
        metrics.update({f"bapo/{k}": v for k, v in own.items()})
        self._say(
            f"step {global_steps}/{self.total_training_steps}  reward {row['reward_mean']:.3f}  "
            f"batch {row['x1']}+{row['x2']}+{row['x3']}  {row['seconds_total']:.1f} s"
        )
        last = global_steps == self.total_training_steps
        stop = not last and (self.folder / STOP).exists()
        if global_steps % self.run.checkpoint.every == 0 or last or stop:
            self._save_checkpoint()
        if stop:
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
        self.tables.write(own)
        runs.write_json(
            own / "state.json",
            {
                "step": step, "total_steps": self.total_training_steps, "updates": self.updates,
                "stream_position": self.source.stream.position,
                "rollout_version": self.rollout_version, "method": state, "groups": entries,
                "random": "keyed by (seed, purpose, step): nothing to save",
            },
        )  # fmt: skip
        super()._save_checkpoint()
        checkpoints.write_checksums(own.parent)
        self._publish_model(step)
        self.tables.write(self.folder)
        root = own.parent.parent
        for old in [s for s in checkpoints.steps(root) if s <= step][KEPT:]:  # damaged later ones do not count
            shutil.rmtree(checkpoints.folder_of(root, old))

    def _publish_model(self, step: int) -> None:
        """verl's Hugging Face copy of the weights becomes ``checkpoints/step_000100``."""
        source = self._own_folder(step).parent / PUBLISHED
        target = self.folder / "checkpoints" / f"step_{step:06d}"
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(source, temporary)
        written = runs.read_json(source.parents[1] / checkpoints.CHECKSUMS)
        own = {n.removeprefix(f"{PUBLISHED}/"): f for n, f in written.items() if n.startswith(f"{PUBLISHED}/")}
        runs.write_json(temporary / checkpoints.CHECKSUMS, own)
        if target.exists():
            shutil.rmtree(target)
        os.replace(temporary, target)
        if not self.run.checkpoint.keep_models:
            for old in (self.folder / "checkpoints").glob("step_*"):
                if old != target:
                    shutil.rmtree(old)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if not self.global_steps:
            return
        own = self._own_folder(self.global_steps)
        state = runs.read_json(own / "state.json")
        self.updates, self.rollout_version = state["updates"], state["rollout_version"]
        self.source.stream.position = state["stream_position"]
        groups = unpack_groups(own / "groups.safetensors", state["groups"], self.source.by_id)
        for group in groups:
            group.samples = Rows.of(group.samples)
        self.method.restore(state["method"], groups, self.source.by_id.__getitem__)
        if self.method.delays_rollout_policy:
            self.actor_rollout_wg.load_rollout_policy(str(own))
        self.tables.read(own)
        self.tables.write(self.folder)  # or a run that was already at its end would keep what lies there
        with open_dict(self.config):
            self.config.trainer.val_before_train = False  # done when the run began
        self._publish_model(self.global_steps)
        self._say(f"going on after step {self.global_steps}")


def _samples(responses: list[torch.Tensor], logprobs: list[torch.Tensor]) -> Samples:
    lengths = np.array([len(r) for r in responses], dtype=np.int32)
    tokens = np.zeros((len(responses), int(lengths.max())), dtype=np.int32)
    values = np.zeros(tokens.shape, dtype=np.float32)
    for i, (response, lp) in enumerate(zip(responses, logprobs, strict=True)):
        tokens[i, : lengths[i]], values[i, : lengths[i]] = response.numpy(), lp.numpy()
    return Samples(tokens, lengths, values)


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
