"""The training loop of the torch engine: it reads from top to bottom like the hooks in ``bapo.methods.base``."""

from __future__ import annotations

import contextlib
import copy
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_model

from bapo import methods, tasks
from bapo.algorithm.rollouts import FRESH
from bapo.engines.shared import hooks, models, records
from bapo.engines.shared.costs import StepCosts
from bapo.engines.shared.packed_groups import unpack_groups
from bapo.engines.shared.prompts import Embedder, read_prompts, training_stream
from bapo.engines.shared.sampling import SamplingParameters, cut_off
from bapo.engines.shared.schedule import RunClock
from bapo.engines.shared.step_sampler import SamplingSetup
from bapo.engines.torch import checkpoints
from bapo.engines.torch.learner import Critic, Learner, TrainedModel
from bapo.engines.torch.rollout import ResponseGenerator
from bapo.engines.torch.step_sampler import TorchStepSampler
from bapo.errors import Interrupted, UserError
from bapo.experiments import budgets
from bapo.experiments.identity import probe_identity
from bapo.experiments.places import base_directory, run_directory
from bapo.experiments.schema import Config
from bapo.gpu import allocation
from bapo.processes import stop_requests
from bapo.store import files
from bapo.store.files import PROBE, STEPS, SUMMARY, Json, write_json
from bapo.store.lock import locked, set_aside
from bapo.store.progress import Progress, Tracking
from bapo.store.provenance import end_manifest
from bapo.tasks.job import data_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def train(config: Config) -> Json:
    """Train one run to its end, resuming from its last checkpoint where there is one. Returns its summary.

    Raises UserError for wrong input and for a gradient that is not finite, Interrupted as :meth:`Trainer.run` does.
    """
    folder = run_directory(config)
    identity = budgets.identity(config)
    with locked(folder):
        set_aside(folder, identity)
        return Trainer(config, folder, identity).run()


class Trainer:
    """Trains one run: holds its policy, rollout policy, method, buffers and tables."""

    def __init__(self, config: Config, folder: Path, identity: str) -> None:
        self.config, self.folder, self.identity = config, folder, identity
        models.prepare_process(config.threads)
        self.device = models.device_of(config)
        self.method = hooks.checked(methods.of_run(config))
        self.task = tasks.get(config.task.name)
        data = data_folder(config)
        saved = checkpoints.newest_intact(folder)
        start = saved[0] if saved else models.start_path(config)
        self.model, self.tokenizer = models.load(start, config, self.device)
        self.parameters = self.model.num_parameters()
        # it holds the tokenizer, so checkpoints are loaded and saved through it where there is one
        self.processor = models.load_processor(self.model, start, config)
        longest = config.sampling.max_prompt_tokens
        prompts = read_prompts(data / "train.parquet", self.tokenizer, longest, self.processor)
        self.by_id = {p.id: p for p in prompts}
        budget = budgets.of(config, budgets.steps(config, len(prompts)), budgets.amount(config))
        self.recorder = records.Recorder(config, self.method, budget)
        self.stream = training_stream(config, prompts, [p.row.ground_truth for p in prompts], self.task)
        self.probe_sets = {"train": prompts[: config.probe.prompts], "probe": []}
        if count := config.probe.prompts:
            probe = read_prompts(data / "probe.parquet", self.tokenizer, longest, self.processor)
            self.probe_sets["probe"] = probe[:count]
        s, ends = config.sampling, models.end_tokens(self.tokenizer, getattr(self.model, "generation_config", None))
        parameters = SamplingParameters(s.temperature, s.top_p, s.top_k, s.max_response_tokens, ends)
        self.generator = ResponseGenerator(self.tokenizer, self.task, parameters, config.seed)

        def start_model() -> PreTrainedModel:
            return models.load_start(config, self.device)[0]

        embedder = Embedder(start_model, prompts)
        self.sampling = SamplingSetup(
            self.stream, self.tokenizer, self.task, parameters, config.train.group_size, lambda: embedder
        )
        reference = start_model().requires_grad_(False) if self.method.needs_reference else None
        self.critic = Critic(start_model(), config, self.method) if self.method.uses_critic else None
        self.learner = Learner(self.model, reference, config, self.method, self.critic)
        self.rollout_model = copy.deepcopy(self.model) if self.method.delays_rollout_policy else self.model
        self.rollout_version = 0
        self.reference_moved = False
        self.step = 0
        if saved:
            self._restore(*saved)

    # ------------------------------------------------------------------ the loop
    def run(self) -> Json:
        """Take the steps left; return the summary. Raises Interrupted where it stops early, after a checkpoint."""
        config = self.config
        facts: Json = {"device": str(self.device), "threads": config.threads, "parameters": self.parameters}
        manifest = records.begin(config, self.folder, self.identity, **facts)
        label = f"{config.task.name} {config.model.name} {config.method.name} seed {config.seed}"
        progress = Progress(label, self.recorder.budget.most, self.step)
        tracker = Tracking(config, self.folder, self.identity, self.recorder.rows[STEPS])
        clock = RunClock(allocation.end(config.checkpoint.job_minutes), config.checkpoint)
        try:
            with stop_requests() as stopped:
                if self.step == 0:
                    self._probe()
                clock.start()
                while not self.recorder.finished(self.step):
                    row = self._train_step(self.step + 1)
                    batch = f"{row['x1']}+{row['x2']}+{row['x3']}"
                    progress.add(1, f"reward {row['reward_mean']:.3f}, batch {batch}")
                    tracker.log(row)
                    saves, stop = clock.step_ended(self.step, self.recorder.finished(self.step), stopped())
                    if saves:
                        self._checkpoint()
                        clock.checkpoint_written()
                    if stop:
                        raise Interrupted(
                            f"{label}: stopped after step {self.step}, {stop}; the same command continues it"
                        )
        finally:
            tracker.finish()
        summary = self._finish()
        end_manifest(self.folder, manifest)
        return summary

    def _train_step(self, step: int) -> Json:
        start, method = time.perf_counter(), self.method
        budget = method.rollout_budget(step, self.config.sampling.max_response_tokens)
        rows = self.config.train.micro_batch_size
        sampler = TorchStepSampler(self.sampling, step, budget, self.generator, self.model, rows)
        if method.resets_reference(step) and method.needs_reference:
            self.learner.reset_reference()
            self.reference_moved = True
        prompts = method.draw_prompts(step, sampler)
        if method.syncs_rollout_policy(step):
            if self.rollout_model is not self.model:  # alpha <- pi_theta_t (Algorithm 1, line 4)
                self.rollout_model.load_state_dict(self.model.state_dict())
            self.rollout_version = step - 1
        sampler.settle(self.rollout_model, self.rollout_version)
        fresh = sampler.fresh(prompts)
        batch = method.build_batch(step, fresh, sampler)
        start_of_update = time.perf_counter()
        metrics = self.learner.update(step, batch.groups, batch.phase)
        values = 0 if self.critic is None else self.critic.model.num_parameters()
        costs, parts = sampler.costs, ("trained_tokens", "scored_tokens", "critic_tokens")
        trained, scored, of_critic = (int(metrics.pop(part)) for part in parts)
        costs.add_update(method, trained, scored, of_critic, values)
        seconds = {**costs.seconds, "update": time.perf_counter() - start_of_update}
        seconds["total"] = time.perf_counter() - start
        self.step = step
        metrics["cut_off"] = cut_off(records.ended(fresh, batch), self.generator.parameters)
        self.recorder.begin_row(step, self.rollout_version, fresh, batch, self.parameters, costs, metrics)
        records.warn(costs.overloaded, f"step {step}")
        seconds["probe"] = self._probe() if self.recorder.probes else 0.0
        seconds["total"] += seconds["probe"]
        return self.recorder.end_row(step, batch, {f"seconds_{phase}": value for phase, value in seconds.items()})

    # ------------------------------------------------------------------ the probe
    def _probe(self) -> float:
        """Record the policy's accuracy on fixed prompts. Returns the seconds, which are no training cost."""
        start = time.perf_counter()
        self.recorder.rows[PROBE] += self._probe_rows()[0] if self.step else self._first_probe_rows()
        return time.perf_counter() - start

    def _probe_rows(self) -> tuple[list[Json], int]:
        """Return the rows of a probe, and how many responses the machine was too busy to grade."""
        rows, overloaded = list[Json](), 0
        for name, prompts in self.probe_sets.items():
            costs = StepCosts()
            # the key, and with it the random numbers, are the same at every step: changes come from the policy
            groups = self.generator.generate(
                self.model, prompts, self.config.probe.samples, ("probe", name), 0, self.step, FRESH, costs
            )
            records.warn(costs.overloaded, f"step {self.step}, {name}")
            overloaded += costs.overloaded
            rows += [records.probe_row(self.step, name, g.prompt.id, g.rewards) for g in groups]
        return rows, overloaded

    def _first_probe_rows(self) -> list[Json]:
        """Return the rows of step 0, which all methods of a seed share: the first run that needs them makes them."""
        import pandas as pd

        file = base_directory(self.config) / "probe" / f"{probe_identity(self.config, str(self.device))}.parquet"
        with locked(file.parent, patience=-1):
            with contextlib.suppress(UserError):
                return files.read_table(file).to_dict("records")
            rows, overloaded = self._probe_rows()
            if rows and not overloaded:
                files.write_parquet(file, pd.DataFrame(rows))
            return rows

    # ------------------------------------------------------------------ checkpoints
    def _checkpoint(self) -> None:
        method_state, groups = self.method.state()
        weights: Json = {}  # beside the policy's
        trained: dict[str, TrainedModel] = {checkpoints.OPTIMIZER: self.learner}
        if self.rollout_model is not self.model:
            weights[checkpoints.ROLLOUT] = self.rollout_model
        if self.reference_moved:
            weights[checkpoints.REFERENCE] = self.learner.reference
        if self.critic is not None:
            weights[checkpoints.CRITIC] = self.critic.model
            trained[checkpoints.CRITIC_OPTIMIZER] = self.critic
        state = {
            "identity": self.identity,
            "step": self.step,
            "stream_position": self.stream.position,
            "rollout_version": self.rollout_version,
            "method": method_state,
        }
        tokenizer = self.processor or self.tokenizer
        saved = checkpoints.save(
            self.folder, self.model, tokenizer, weights, trained, groups, state, self.recorder, self.config.checkpoint
        )
        records.copy_tables(saved / "trainer", self.folder)

    def _restore(self, folder: Path, state: Json) -> None:
        trainer = folder / "trainer"
        self.step, self.stream.position = state["step"], state["stream_position"]
        self.rollout_version = state["rollout_version"]
        self.recorder.read(trainer)
        records.copy_tables(trainer, self.folder)  # otherwise a finished run would keep damaged ones
        print(f"{self.folder}: going on after step {self.step}", file=sys.stderr)
        if not checkpoints.can_go_on(trainer):
            return
        checkpoints.load_optimizer(self.learner, trainer / checkpoints.OPTIMIZER)
        if self.critic is not None:
            load_model(self.critic.model, trainer / checkpoints.CRITIC)
            checkpoints.load_optimizer(self.critic, trainer / checkpoints.CRITIC_OPTIMIZER)
        self.reference_moved = (trainer / checkpoints.REFERENCE).exists()
        if self.reference_moved:
            assert self.learner.reference is not None
            load_model(self.learner.reference, trainer / checkpoints.REFERENCE)
        if self.rollout_model is not self.model:
            load_model(self.rollout_model, trainer / checkpoints.ROLLOUT)
        groups = unpack_groups(trainer / "groups.safetensors", state["groups"], self.by_id)
        self.method.restore(state["method"], groups, self.by_id.__getitem__)

    def _finish(self) -> Json:
        """Write ``summary.json``, the last file; the tables came with the last checkpoint."""
        summary = records.summary(self.folder, self.identity, self.step, self.recorder.budget)
        write_json(self.folder / SUMMARY, summary)
        if not self.config.checkpoint.keep_state:
            checkpoints.finish(self.folder, self.step, self.config.checkpoint)
        return summary
