"""Whose weights verl's rollout engine holds."""

from __future__ import annotations

from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayWorkerGroup

from bapo.engines.verl.worker import CURRENT, DELAYED


class RolloutWeights:
    """The weights that the rollout engine holds; asleep it holds none.

    workers: the processes that train the policy, and keep alpha beside it
    manager: verl's, which pushes weights from them to the rollout engine
    """

    def __init__(self, workers: RayWorkerGroup, manager: CheckpointEngineManager) -> None:
        self.workers, self.manager = workers, manager
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
        """Put the rollout engine to sleep: its memory is free for the training engine."""
        if self.version is not None:
            self.manager.sleep_replicas()
        self.version = None  # vLLM throws its weights away when it sleeps
