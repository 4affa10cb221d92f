"""verl's replay buffer: hands every training batch to the method, and notices when a worker has died."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

#: seconds between two looks at TransferQueue (verl: 2) and between two looks at the workers
POLL, LOOK = 0.05, 5.0


class MethodReplayBuffer(ReplayBuffer):
    """``build_batch`` gets the fresh groups, with rewards, and returns the batch to train on.

    asked: how many prompts the method drew for this step, whatever verl's own batch size is.
    """

    def __init__(
        self,
        build_batch: Callable[[KVBatchMeta], tuple[KVBatchMeta, dict]],
        asked: Callable[[], int],
        stalled_after: float,
    ) -> None:
        super().__init__("sync", {}, None, "drop", {}, poll_interval=POLL)
        self.build_batch, self.asked, self.stalled_after = build_batch, asked, stalled_after
        self.watched: list[Any] = []
        self._looked = self._progressed = time.monotonic()
        self._done = 0

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        if partition_id != "train":
            return self.collect(global_steps, partition_id, batch_size)
        meta, metrics = self.collect(global_steps, partition_id, self.asked())
        batch, more = self.build_batch(meta)
        return batch, {**metrics, **more}

    def collect(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        """Wait for ``batch_size`` prompts of a partition to be finished."""
        self._progressed, self._done = time.monotonic(), 0
        return super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        now = time.monotonic()
        done = len(self.finished_keys[partition_id]) + len(self.failure_keys[partition_id])
        if done > self._done:
            self._done, self._progressed = done, now
        if now - self._looked > LOOK:
            self._looked = now
            # raises RayActorError, with the reason, where one has died: its prompts would stay "running" for ever
            ready, _ = ray.wait(
                [w.__ray_ready__.remote() for w in self.watched], num_returns=len(self.watched), timeout=1
            )
            ray.get(ready)
        if now - self._progressed > self.stalled_after:
            raise RuntimeError(
                f"no prompt was finished for {self.stalled_after:.0f} s ({done} are, others wait); the rollout is stuck"
            )
        return super()._wait_for_next_poll(partition_id, last_debug_time)
