"""verl's trainer with more state in its checkpoints: all that the next step depends on beside verl's own.

There are no random states to save, because every draw is keyed by (seed, purpose, step), except those of vLLM: its
engines take no keys and start their streams anew in each job.
"""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from omegaconf import DictConfig, open_dict
from safetensors.torch import save_file
from verl.trainer.ppo.v1 import PPOTrainerSync

from bapo import methods
from bapo.engines.shared import hooks
from bapo.engines.shared.packed_groups import pack_groups, unpack_groups
from bapo.engines.shared.records import copy_tables
from bapo.engines.shared.schedule import RunClock
from bapo.engines.verl import checkpoints, verl_config
from bapo.engines.verl.launch import PROGRESS
from bapo.engines.verl.recorder import VerlRecorder
from bapo.engines.verl.rollout import PromptSource
from bapo.engines.verl.rollout_window import RolloutWindow
from bapo.engines.verl.worker import ALPHA, REFERENCE
from bapo.store.files import read_json, write_json

#: the file of the rollouts of coming steps, beside the state
ROLLOUTS = "rollouts.safetensors"


class ResumableTrainer(PPOTrainerSync):
    """Saves and restores the method, the prompt stream, the rollout policy, the reference, rollouts and the tables.

    The subclass makes ``source``, ``recorder`` and ``window`` before verl loads a checkpoint.
    """

    source: PromptSource
    recorder: VerlRecorder
    window: RolloutWindow

    def __init__(self, config: DictConfig) -> None:
        self.run = verl_config.run_config(config.bapo.config)
        self.folder, self.identity = Path(config.bapo.folder), config.bapo.identity
        self.method = hooks.checked(methods.of_run(self.run))
        self.clock = RunClock(config.bapo.get("end"), self.run.checkpoint)
        super().__init__(config)
        self.updates = 0
        self.rollout_version = 0  # the step after which alpha's weights were taken
        self.reference_moved = False
        self._commits = ThreadPoolExecutor(1)
        self._commit: Future[None] | None = None  # completes the newest checkpoint

    def _say(self, text: str) -> None:
        run = self.run
        print(f"{PROGRESS}{run.task.name} {run.model.name} {run.method.name} seed {run.seed}  {text}", flush=True)

    def _state_folder(self, step: int) -> Path:
        return checkpoints.folder_of(Path(self.config.trainer.default_local_dir), step) / "bapo"

    def _save_checkpoint(self) -> None:
        """Write this state, then verl's. A thread completes the checkpoint during the next steps."""
        self._end_commit()
        step = self.global_steps
        folder = self._state_folder(step)
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
        method, groups = self.method.state()
        tensors, entries = pack_groups(groups)
        save_file(tensors, folder / "groups.safetensors")
        if self.method.delays_rollout_policy:
            self.actor_rollout_wg.save_shards(str(folder), ALPHA)
        if self.reference_moved:
            self.actor_rollout_wg.save_shards(str(folder), REFERENCE)
        self.window.save(folder / ROLLOUTS)
        self.recorder.write(folder)
        state = {
            "identity": self.identity,
            "step": step,
            "total_steps": self.total_training_steps,
            "finished": self.recorder.finished(step),
            "updates": self.updates,
            "stream_position": self.source.stream.position,
            "rollout_version": self.rollout_version,
            "reference_moved": self.reference_moved,
            "method": method,
            "groups": entries,
        }
        write_json(folder / "state.json", state)
        super()._save_checkpoint()
        self._commit = self._commits.submit(self._complete, folder, step)
        self.clock.checkpoint_written()

    def _complete(self, folder: Path, step: int) -> None:
        """Complete the checkpoint that was written. Until it has checksums, the previous one is the newest."""
        checkpoints.convert(folder.parent / checkpoints.PUBLISHED, self.run.model.dtype)
        checkpoints.commit(folder.parent, self.folder, step, self.run.checkpoint)
        copy_tables(folder, self.folder)

    def _end_commit(self, wait: bool = True) -> None:
        """Wait until the newest checkpoint is complete, and raise the error that its thread ended with.

        wait: False only raises an error that has occurred already, so that a run soon ends when checkpoints fail.
        """
        if self._commit is not None and (wait or self._commit.done()):
            self._commit.result()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if not self.global_steps:
            return
        folder = self._state_folder(self.global_steps)
        state = read_json(folder / "state.json")
        self.updates, self.rollout_version = state["updates"], state["rollout_version"]
        self.source.stream.position = state["stream_position"]
        groups = unpack_groups(folder / "groups.safetensors", state["groups"], self.source.by_id)
        self.method.restore(state["method"], groups, self.source.by_id.__getitem__)
        if self.method.delays_rollout_policy:
            self.actor_rollout_wg.load_shards(str(folder), ALPHA)
        self.reference_moved = state["reference_moved"]
        if self.reference_moved:
            self.actor_rollout_wg.load_shards(str(folder), REFERENCE)
        if self.run.verl.rollout_window:  # without a window, each step samples the same responses again
            self.window.load(folder / ROLLOUTS)
        self.recorder.read(folder)
        copy_tables(folder, self.folder)  # a run that is at its end already writes no other tables
        with open_dict(self.config):
            self.config.trainer.val_before_train = False  # that was done when the run began
        checkpoints.publish(folder.parent, self.folder, self.global_steps, self.run.checkpoint)
        self._say(f"going on after step {self.global_steps}")
