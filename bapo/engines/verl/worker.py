"""A mix-in for verl's training worker: the method's loss, the delayed rollout policy and the reference, by shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from verl.models.transformers import monkey_patch
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker

from bapo import methods
from bapo.engines.shared import hooks
from bapo.engines.verl import images
from bapo.engines.verl.learner import policy_loss, warm_up
from bapo.gpu import allocation
from bapo.validate import plain

if TYPE_CHECKING:  # the mix-in is used in front of this class
    from verl.workers.engine_workers import ActorRolloutRefWorker as MixedIn
else:
    MixedIn = object

CURRENT, DELAYED = "current", "delayed"
ALPHA, REFERENCE = "rollout_policy", "reference"
#: bytes, of which each tensor in a block of host memory begins at a multiple; it suits every type
ALIGNED = 64


def local(parameter: Tensor) -> Tensor:
    """Return this rank's shard of an FSDP2 parameter, or the whole tensor if it is not sharded."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def _wait() -> None:
    """Wait for copies between host memory and the GPU."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def shards_of(module: nn.Module, ranks: int = 1) -> list[Tensor]:
    """Return this rank's shard of every parameter, or the whole parameters where one rank holds the model.

    FSDP2 may have left gathered parameters in place, and verl may still be copying the model to host memory. The
    parameters are sharded again first, and the copies awaited.
    """
    for submodule in module.modules():
        if isinstance(submodule, FSDPModule):
            submodule.reshard()
    _wait()
    shards = []
    for name, parameter in module.named_parameters():
        assert ranks == 1 or hasattr(parameter, "to_local"), f"{name} is not sharded"
        shard = local(parameter).detach()
        in_memory = not shard.is_meta and (not shard.numel() or shard.untyped_storage().size())
        assert in_memory, f"{name} has no memory: the engine has put the model away"
        shards.append(shard)
    return shards


def host_space(shards: Sequence[Tensor], pinned: bool) -> list[Tensor]:
    """Return tensors of the shards' types and shapes [...], without values, in one block of host memory.

    pinned: whether CUDA pins the block. torch's own pinned memory would round each tensor up to a power of two, nearly
    twice the bytes of some models. Nothing unpins the block, so it must live as long as the process.
    """
    sizes = [ALIGNED * -(-s.nbytes // ALIGNED) for s in shards]
    block = torch.empty(sum(sizes), dtype=torch.uint8)
    if pinned:
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(block.data_ptr(), block.nbytes, 0))
    spaces = zip(block.split(sizes), shards, strict=True)
    return [space[: shard.nbytes].view(shard.dtype).view(shard.shape) for space, shard in spaces]


def host_copies(shards: Sequence[Tensor], into: Sequence[Tensor] = ()) -> list[Tensor]:
    """Return copies in host memory, which is pinned for shards on a GPU, as copying is then several times as fast.

    into: earlier copies of the same shards, which are overwritten, because pinning takes longer than copying.
    """
    copies = [*into] or host_space(shards, pinned=any(s.is_cuda for s in shards))
    with torch.no_grad():
        for copy, shard in zip(copies, shards, strict=True):
            copy.copy_(shard, non_blocking=True)
    _wait()
    return copies


def put(module: nn.Module, values: Sequence[Tensor], ranks: int = 1) -> None:
    """Write ``values`` into the module's shards."""
    with torch.no_grad():
        for shard, value in zip(shards_of(module, ranks), values, strict=True):
            shard.copy_(value, non_blocking=shard.is_cuda)
    _wait()


@contextmanager
def swap_weights(
    module: nn.Module, values: Sequence[Tensor], ranks: int, spare: Sequence[Tensor] = ()
) -> Iterator[list[Tensor]]:
    """Give the module other weights within the block, and its own weights back after it, also after an error.

    What runs in the block may move the model's shards elsewhere. Yields the copies of the model's own weights.

    Args:
        module: the model
        values: a tensor for each of this rank's shards
        ranks: processes that share the model
        spare: the copies of an earlier call, which are overwritten
    """
    current = host_copies(shards_of(module, ranks), spare)
    put(module, values, ranks)
    try:
        yield current
    finally:
        put(module, current, ranks)


class MethodWorker(MixedIn):
    """Adds the method's loss and other policies to ``ActorRolloutRefWorker``, which follows it in a class's bases.

    alpha is a copy of this rank's shards in host memory, so no rank holds a full model. To push it to the rollout
    engine, the worker puts it in place of the parameters during verl's ``update_weights``.
    """

    _snapshot: Sequence[Tensor] = ()
    _spare: Sequence[Tensor] = ()
    _acting = CURRENT

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        # where trl is installed, verl would patch a class that trl 1.x no longer has
        monkey_patch.is_trl_available = lambda: False
        super().init_model()
        if hasattr(self.actor.engine.module.config, "vision_config"):
            images.mend_rows_without_images()
        run = self.config.bapo
        method = hooks.checked(methods.build(plain(run.method), run.batch_size, run.seed))
        self.actor.set_loss_fn(partial(policy_loss, method=method))
        warm_up(self.actor.engine.optimizer, self.config.actor.optim.lr, run.warmup_updates)

    def _shards(self) -> list[Tensor]:
        return shards_of(self.actor.engine.module, self.world_size)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def snapshot_rollout_policy(self) -> None:
        """Set alpha to pi_theta_t (Algorithm 1, line 4)."""
        self._snapshot = host_copies(self._shards(), self._snapshot)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def act_as(self, which: str) -> None:
        """Choose the policy that ``update_weights`` pushes and ``compute_log_prob`` scores with: CURRENT or DELAYED."""
        self._acting = which

    @contextmanager
    def _policy(self) -> Iterator[None]:
        """Give the policy the weights that :meth:`act_as` has chosen within the block."""
        if self._acting == CURRENT:
            yield
            return
        with swap_weights(self.actor.engine.module, self._snapshot, self.world_size, self._spare) as self._spare:
            yield

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> object:
        with self._policy():
            return await super().update_weights(global_steps=global_steps, mode=mode)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        with self._policy():
            return super().compute_log_prob(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict:
        """Make verl's update with the size of mini-batches that the batch was laid out for."""
        tu.assign_non_tensor(data, mini_batch_size=tu.pop(data, key="rows_per_update"))
        return super().update_actor(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def parameter_count(self) -> int:
        """Count the parameters of the whole model."""
        return sum(p.numel() for p in self.actor.engine.module.parameters())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def reset_reference(self) -> None:
        """Set pi_ref to pi_theta_t. Both have the same shards; the reference may have another type and device."""
        put(self.ref.engine.module, self._shards(), self.world_size)

    # ------------------------------------------------------------------ checkpoints
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_shards(self, folder: str, which: str) -> None:
        """Write this rank's shards of another policy than the current one. which: ALPHA or REFERENCE."""
        values = self._snapshot if which == ALPHA else shards_of(self.ref.engine.module, self.world_size)
        # on GPUs both policies lie in host memory, where cpu() makes no copy
        save_file({str(i): s.cpu().contiguous() for i, s in enumerate(values)}, self._file(folder, which))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_shards(self, folder: str, which: str) -> None:
        """Read what :meth:`save_shards` wrote, on as many ranks. which: ALPHA or REFERENCE."""
        tensors = load_file(self._file(folder, which))
        values = [tensors[str(i)] for i in range(len(tensors))]
        if which == ALPHA:
            self._snapshot = host_copies(self._shards(), self._snapshot)
            for copy, value in zip(self._snapshot, values, strict=True):
                copy.copy_(value)
        else:
            put(self.ref.engine.module, values, self.world_size)

    def _file(self, folder: str, which: str) -> Path:
        return Path(folder) / f"{which}_rank{self.rank}_of_{self.world_size}.safetensors"


class GPUMethodWorker(MethodWorker, ActorRolloutRefWorker):
    """Runs on GPUs, and gives each rank an equal share of the processors."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        # Ray gives its workers one thread, but with offload_policy the processor makes the optimiser's step
        torch.set_num_threads(max(1, allocation.cpus() // self.world_size))
        super().init_model()
