"""A mix-in for verl's training worker: the method's loss, and other policies than the current one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from verl.models.transformers import monkey_patch
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker

from bapo import methods
from bapo.engines.shared.rows import learning_rate
from bapo.engines.verl import images, losses, shards

CURRENT, DELAYED = "current", "delayed"


def warm_up(optimizer: torch.optim.Optimizer, full: float, updates: int) -> None:
    """Raise the learning rate over the first updates, as the torch engine does; verl's schedule moves once a step.

    The number of updates so far is the optimiser's own, so it is in its checkpoint.
    """

    def before_step(*_: Any) -> None:
        state = next(iter(optimizer.state.values()), {})
        done = int(state["step"]) if "step" in state else 0
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(full, updates, done + 1)

    optimizer.register_step_pre_hook(before_step)


class MethodWorker:
    """Comes before ``ActorRolloutRefWorker`` in a class's bases.

    alpha is kept as a copy of this rank's own shards in host memory, so no rank ever holds a full model. It is pushed
    to the rollout engine by putting it in the parameters' place for the time of verl's own ``update_weights``.
    """

    _snapshot: list[Tensor] | None = None
    _pushes = _scores = CURRENT

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        # verl patches a class of trl, where that is installed, which trl 1.x no longer has
        monkey_patch.is_trl_available = lambda: False
        super().init_model()
        if hasattr(self.actor.engine.module.config, "vision_config"):
            images.mend_rows_without_images()
        run = self.config.bapo
        self.actor.set_loss_fn(losses.for_method(methods.build(run.method, run.batch_size, run.seed), run.recomputes))
        warm_up(self.actor.engine.optimizer, self.config.actor.optim.lr, run.warmup_updates)

    def _shards(self) -> list[Tensor]:
        return shards.shards_of(self.actor.engine.module, self.world_size)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def snapshot_rollout_policy(self) -> None:
        """alpha <- pi_theta_t (Algorithm 1, line 4)."""
        self._snapshot = shards.kept(self._shards())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def choose_rollout_policy(self, which: str) -> None:
        """Set what the next ``update_weights`` pushes: CURRENT or DELAYED."""
        self._pushes = self._kept(which)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def choose_scored_policy(self, which: str) -> None:
        """Set whose log-probabilities the next ``compute_log_prob`` returns: CURRENT or DELAYED."""
        self._scores = self._kept(which)

    def _kept(self, which: str) -> str:
        if which == DELAYED and self._snapshot is None:
            raise RuntimeError("no rollout policy was kept; snapshot_rollout_policy comes first")
        return which

    def _swapped(self) -> AbstractContextManager[None]:
        """Give the policy alpha's weights for a while."""
        return shards.swapped(self.actor.engine.module, self._snapshot, self.world_size)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        if self._pushes == CURRENT:
            return await super().update_weights(global_steps=global_steps, mode=mode)
        with self._swapped():
            return await super().update_weights(global_steps=global_steps, mode=mode)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: Any) -> Any:
        if self._scores == CURRENT:
            return super().compute_log_prob(data)
        with self._swapped():
            return super().compute_log_prob(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: Any) -> Any:
        """verl's update, with mini-batches of the size that the batch was laid out for."""
        tu.assign_non_tensor(data, mini_batch_size=tu.pop(data, key="rows_per_update"))
        return super().update_actor(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def parameter_count(self) -> int:
        """Count the whole model's parameters, not this rank's shards."""
        return sum(p.numel() for p in self.actor.engine.module.parameters())

    # ------------------------------------------------------------------ the reference policy
    def _reference_shards(self) -> list[Tensor]:
        return shards.shards_of(self.ref.engine.module, self.world_size)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def reset_reference(self) -> None:
        """pi_ref <- pi_theta_t. Both are sharded alike; the reference may be of another type and on another device."""
        self._set_reference(self._shards())

    def _set_reference(self, values: list[Tensor]) -> None:
        shards.put(self.ref.engine.module, values, self.world_size)

    # ------------------------------------------------------------------ checkpoints
    def _save_shards(self, values: list[Tensor], folder: str, name: str) -> None:
        tensors = {str(i): s.contiguous() for i, s in enumerate(shards.kept(values))}
        save_file(tensors, Path(folder) / self._file(name))

    def _load_shards(self, folder: str, name: str) -> list[Tensor]:
        path = Path(folder) / self._file(name)
        if not path.is_file():
            raise RuntimeError(f"{path} is missing: a run resumes on as many GPUs as it was started on")
        tensors = load_file(path)
        return [tensors[str(i)] for i in range(len(tensors))]

    def _file(self, name: str) -> str:
        return f"{name}_rank{self.rank}_of_{self.world_size}.safetensors"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_rollout_policy(self, folder: str) -> None:
        self._save_shards(self._snapshot, folder, "rollout_policy")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_rollout_policy(self, folder: str) -> None:
        self._snapshot = self._load_shards(folder, "rollout_policy")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_reference(self, folder: str) -> None:
        self._save_shards(self._reference_shards(), folder, "reference")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_reference(self, folder: str) -> None:
        self._set_reference(self._load_shards(folder, "reference"))


class GPUMethodWorker(MethodWorker, ActorRolloutRefWorker):
    """On GPUs."""
