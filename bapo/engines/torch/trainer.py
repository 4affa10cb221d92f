"""The training loop of the torch engine: it reads from top to bottom like the hooks in ``bapo.methods.base``."""

from __future__ import annotations

import copy
import math
import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from bapo import config as configuration
from bapo import runs, tasks, theory, tracking
from bapo.engines.torch import checkpoints, models
from bapo.engines.torch.data import PromptStream, read_prompts
from bapo.engines.torch.learner import Learner
from bapo.engines.torch.rollout import Generator, Ledger, StepSampler
from bapo.engines.torch.sampler import SamplingParameters
from bapo.errors import UserError
from bapo.methods import Batch, Method
from bapo.progress import Progress
from bapo.rollouts import FRESH, ORIGINS, Group, Prompt

#: bytes that a run may write beside its checkpoints; with three copies of model and optimiser it bounds the disk use
TABLE_BYTES = 20_000_000


class Interrupted(Exception):
    """Ctrl-C or SIGTERM: raised between two steps, after a checkpoint."""


def train(config: DictConfig) -> dict[str, Any]:
    """Train one run to its end, resuming from its last checkpoint where there is one. Returns its summary."""
    folder = configuration.run_directory(config)
    identity = configuration.train_identity(config)
    with runs.locked(folder):
        moved = runs.set_aside(folder, identity)
        if moved:
            print(f"{folder}: the run that was here has another configuration; moved to {moved.name}", file=sys.stderr)
        return Trainer(config, folder, identity).run()


class Trainer:
    """One run: policy, rollout policy, method, buffers, tables."""

    def __init__(self, config: DictConfig, folder: Path, identity: str) -> None:
        self.config, self.folder, self.identity = config, folder, identity
        models.prepare_process(config.threads)
        self.device = models.device_of(config)
        self.method: Method = configuration.to_method(config)
        self.task = tasks.get(config.task.name)
        data = configuration.data_directory(config)
        found = checkpoints.newest_intact(folder)
        self.model, self.tokenizer = (
            models.load(found[0], config, self.device) if found else models.load_start(config, self.device)
        )
        runs.require_space(folder, TABLE_BYTES + 3 * 12 * models.parameter_count(self.model))
        prompts = read_prompts(data / "train.parquet", self.tokenizer, config.sampling.max_prompt_tokens)
        self.by_id = {p.id: p for p in prompts}
        self.total_steps = config.train.steps or config.train.epochs * len(prompts) // config.train.batch_size
        self.stream = PromptStream(prompts, config.seed)
        self.probe_sets = {
            "train": prompts[: config.probe.prompts],
            "probe": read_prompts(data / "probe.parquet", self.tokenizer, config.sampling.max_prompt_tokens)[
                : config.probe.prompts
            ]
            if config.probe.prompts
            else [],
        }
        s = config.sampling
        self.generator = Generator(
            self.tokenizer,
            self.task,
            SamplingParameters(
                temperature=s.temperature,
                top_p=s.top_p,
                top_k=s.top_k,
                max_tokens=s.max_response_tokens,
                eos_ids=(self.tokenizer.eos_token_id,),
                pad_id=self.tokenizer.pad_token_id,
            ),
            config.seed,
            models.parameter_count(self.model),
        )
        reference = None
        if self.method.needs_reference:
            reference = models.load_start(config, self.device)[0].requires_grad_(False)
        self.learner = Learner(self.model, reference, self.tokenizer.pad_token_id, config, self.method)
        self.rollout_model = copy.deepcopy(self.model) if self.method.delays_rollout_policy else self.model
        self.rollout_version = 0
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in runs.TABLES}
        self.step = 0
        if found:
            self._restore(*found)

    # ------------------------------------------------------------------ the loop
    def run(self) -> dict[str, Any]:
        config = self.config
        manifest = runs.start_manifest(
            self.folder,
            self.identity,
            data_identity=configuration.data_identity(config),
            base_identity=configuration.base_identity(config),
            seed=config.seed,
            device=str(self.device),
            threads=config.threads,
            parameters=models.parameter_count(self.model),
        )
        runs.write_text(self.folder / runs.CONFIG, OmegaConf.to_yaml(config, resolve=True))
        label = f"{config.task.name} {config.model.name} {config.method.name} seed {config.seed}"
        progress = Progress(label, self.total_steps, self.step)
        tracker = tracking.start(config, self.folder, self.identity)
        try:
            with stop_requests() as stopped:
                if self.step == 0:
                    self._probe()
                while self.step < self.total_steps:
                    row = self._train_step(self.step + 1)
                    batch = f"{row['x1']}+{row['x2']}+{row['x3']}"
                    progress.update(self.step, f"reward {row['reward_mean']:.3f}  batch {batch}")
                    tracker.log({k: v for k, v in row.items() if k != "step"}, self.step)
                    if self.step % config.checkpoint.every == 0 or self.step == self.total_steps or stopped():
                        self._checkpoint()
                    if stopped() and self.step < self.total_steps:
                        raise Interrupted(
                            f"{label}: stopped after step {self.step} of {self.total_steps}; the same command goes on "
                            "there"
                        )
        finally:
            tracker.finish()
        summary = self._finish()
        runs.end_manifest(self.folder, manifest)
        return summary

    def _train_step(self, step: int) -> dict[str, Any]:
        begun = time.perf_counter()
        ledger, method, group_size = Ledger(), self.method, self.config.train.group_size
        sampler = StepSampler(self.model, self.generator, self.stream, group_size, step, ledger)

        prompts = method.draw_prompts(step, sampler)
        if method.syncs_rollout_policy(step):
            self._sync_rollout_policy(step - 1)
        rollout_version = self.rollout_version
        fresh = self.generator.generate(
            self.rollout_model, prompts, group_size, ("rollout",), step, rollout_version, FRESH, ledger
        )
        batch = method.build_batch(step, fresh, sampler)
        update_begun = time.perf_counter()
        metrics = self.learner.update(step, batch.groups)
        seconds = {**ledger.seconds, "update": time.perf_counter() - update_begun}
        self.step = step
        seconds["probe"] = self._probe() if step in self._probe_steps() else 0.0
        row = self._step_row(step, rollout_version, fresh, batch, metrics, ledger, seconds, begun)
        self.rows[runs.STEPS].append(row)
        self.rows[runs.GROUPS] += group_rows(step, batch)
        return row

    def _sync_rollout_policy(self, version: int) -> None:
        """alpha <- pi_theta_t (Algorithm 1, line 4)."""
        if self.rollout_model is not self.model:
            with torch.no_grad():
                for own, new in zip(self.rollout_model.parameters(), self.model.parameters(), strict=True):
                    own.copy_(new)
        self.rollout_version = version

    # ------------------------------------------------------------------ what is recorded
    def _step_row(
        self, step: int, rollout_version: int, fresh: list[Group], batch: Batch, metrics: dict[str, float],
        ledger: Ledger, seconds: dict[str, float], begun: float,
    ) -> dict[str, Any]:  # fmt: skip
        means = np.array([g.mean for g in fresh])
        nan = math.nan
        extra = {"generation_batches": 1.0, "reevaluated_prompts": 0.0, **dict.fromkeys(
            ("c2", "c3", "r_tot", "bad_buffer", "high_buffer"), nan), **batch.metrics}  # fmt: skip
        group_size = self.config.train.group_size
        c1 = getattr(self.method.config, "c1", None)
        constants = (
            theory.k1(group_size),
            nan if c1 is None else theory.k2(c1),
            nan if math.isnan(extra["c2"]) else theory.k3(extra["c2"], extra["c3"]),
        )
        return {
            "step": step,
            "policy_version": step - 1,
            "rollout_version": rollout_version,
            "staleness": step - 1 - rollout_version,
            "reward_mean": float(means.mean()),
            "groups_fresh": len(fresh),
            "groups_none_correct": int((means == 0).sum()),
            "groups_all_correct": int((means == 1).sum()),
            "batch_groups": len(batch.groups),
            **{f"x{i}": sum(g.origin == o for g in batch.groups) for i, o in enumerate(ORIGINS, start=1)},
            **{name: float(value) for name, value in extra.items()},
            "updates": int(metrics["updates"]),
            **{name: metrics.get(name, nan) for name in ("loss", "gradient_norm", "clip_fraction", "kl", "entropy")},
            "response_length": float(np.concatenate([g.samples.lengths for g in fresh]).mean()),
            **{name: metrics.get(name, nan) for name in ("tv_x1", "tv_x2", "tv_x3")},
            **{f"k{i}": value for i, value in enumerate(constants, start=1)},
            "learning_rate": metrics["learning_rate"],
            "fresh_rollouts": ledger.fresh_rollouts,
            "regenerated_rollouts": ledger.regenerated_rollouts,
            "generated_tokens": ledger.generated_tokens,
            "trained_tokens": int(metrics["trained_tokens"]),
            "forward_flops": ledger.forward_flops + metrics["forward_flops"],
            "backward_flops": metrics["backward_flops"],
            **{f"seconds_{phase}": value for phase, value in seconds.items()},
            "seconds_total": time.perf_counter() - begun,
        }

    def _probe_steps(self) -> set[int]:
        points = self.config.probe.points
        return {round(i * self.total_steps / (points - 1)) for i in range(points)} if points > 1 else {self.total_steps}

    def _probe(self) -> float:
        """Accuracy of fixed prompts under the current policy; seconds spent. Not part of the training cost."""
        begun = time.perf_counter()
        for name, prompts in self.probe_sets.items():
            # one fixed key: the same random numbers at every step, so that changes come from the policy
            groups = self.generator.generate(
                self.model, prompts, self.config.probe.samples, ("probe", name), 0, self.step, FRESH, Ledger()
            )
            self.rows[runs.PROBE] += [
                {"step": self.step, "set": name, "prompt_id": g.prompt.id, "correct": int(g.rewards.sum()),
                 "samples": g.size, "mean": g.mean}
                for g in groups
            ]  # fmt: skip
        return time.perf_counter() - begun

    # ------------------------------------------------------------------ checkpoints
    def _tables(self) -> dict[str, Any]:
        import pandas as pd

        return {name: pd.DataFrame(rows) for name, rows in self.rows.items()}

    def _checkpoint(self) -> None:
        method_state, groups = self.method.state()
        tables = self._tables()
        checkpoints.save(
            self.folder,
            self.model,
            self.tokenizer,
            self.learner.optimizer,
            None if self.rollout_model is self.model else self.rollout_model,
            groups,
            checkpoints.TrainerState(
                self.step, self.learner.updates, self.stream.position, self.rollout_version, method_state
            ),
            tables,
            self.config.checkpoint.keep_models,
        )
        for name, frame in tables.items():
            runs.write_parquet(self.folder / name, frame)

    def _restore(self, folder: Path, state: dict[str, Any]) -> None:
        trainer = folder / "trainer"
        self.step, self.learner.updates = state["step"], state["updates"]
        self.stream.position, self.rollout_version = state["stream_position"], state["rollout_version"]
        checkpoints.load_optimizer(self.model, self.learner.optimizer, trainer / "optimizer.safetensors")
        if self.rollout_model is not self.model:
            checkpoints.load_weights(self.rollout_model, trainer / "rollout_policy.safetensors")
        groups = checkpoints.unpack_groups(trainer / "groups.safetensors", state["groups"], self.by_id)
        self.method.restore(state["method"], groups, self._prompt)
        for name in self.rows:
            self.rows[name] = runs.read_table(trainer / name).to_dict("records")
        print(f"{self.folder}: going on after step {self.step}", file=sys.stderr)

    def _prompt(self, prompt_id: str) -> Prompt:
        return self.by_id[prompt_id]

    def _finish(self) -> dict[str, Any]:
        """Tables and ``summary.json``, the last file to be written."""
        tables = self._tables()
        for name, frame in tables.items():
            runs.write_parquet(self.folder / name, frame)
        steps = tables[runs.STEPS]
        sums = ("fresh_rollouts", "regenerated_rollouts", "generated_tokens", "trained_tokens", "updates",
                "forward_flops", "backward_flops")  # fmt: skip
        totals = {name: steps[name].sum().item() for name in sums}
        summary = {
            "identity": self.identity,
            "steps": self.total_steps,
            "checkpoint": str(checkpoints.folder_of(self.folder, self.total_steps).relative_to(self.folder)),
            "totals": {
                "rollouts": totals["fresh_rollouts"] + totals["regenerated_rollouts"],
                **totals,
                "seconds": float(steps["seconds_total"].sum() - steps["seconds_probe"].sum()),
            },
            "final": {"reward_mean": float(steps["reward_mean"].tail(10).mean())},
            "files": runs.fingerprints(self.folder, runs.TABLES),
        }
        runs.write_json(self.folder / runs.SUMMARY, summary)
        return summary


def group_rows(step: int, batch: Batch) -> list[dict[str, Any]]:
    """``groups.parquet``: every group of the step, used or not and why."""
    entries = [(g, True, "") for g in batch.groups] + [(g, False, why) for g, why in batch.rejected]
    return [
        {"step": step, "prompt_id": g.prompt.id, "origin": g.origin, "version": g.version, "generated_step": g.step,
         "rewards": g.rewards.tolist(), "mean": g.mean, "used": used, "reason": why}
        for g, used, why in entries
    ]  # fmt: skip


@contextmanager
def stop_requests() -> Any:
    """Turn the first Ctrl-C or SIGTERM into a request that the loop answers between two steps; the second one kills."""
    received: list[int] = []

    def note(number: int, _: Any) -> None:
        received.append(number)
        signal.signal(number, previous[number])

    previous = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    check: Callable[[], bool] = lambda: bool(received)  # noqa: E731
    try:
        for number in previous:
            signal.signal(number, note)
    except ValueError as error:  # not the main thread
        raise UserError("training must run in the main thread of its process") from error
    try:
        yield check
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
