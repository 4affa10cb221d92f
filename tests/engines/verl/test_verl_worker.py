"""A policy's shards in verl's worker: on one process, and on two with FSDP2 over gloo. No Ray."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from support import late
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

from bapo.engines.verl import worker
from bapo.engines.verl.worker import (
    ALPHA,
    CURRENT,
    DELAYED,
    REFERENCE,
    GPUMethodWorker,
    MethodWorker,
    host_copies,
    host_space,
    shards_of,
    swap_weights,
)

RANKS = 2


def whole(model: nn.Module) -> list[torch.Tensor]:
    """The full parameters, as verl gathers them when it pushes weights."""
    return [p.full_tensor().detach().clone() for p in model.parameters()]


def sharded(offloaded: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    mesh = init_device_mesh("cpu", (RANKS,))
    # as verl does with the actor's offload_policy; memory is pinned only for a GPU
    policy = CPUOffloadPolicy(pin_memory=False) if offloaded else OffloadPolicy()
    fully_shard(model[0], mesh=mesh, offload_policy=policy)
    # the root stays gathered after a forward pass, as verl's does between micro-batches
    return fully_shard(model, mesh=mesh, reshard_after_forward=False, offload_policy=policy)


def two_ranks(rank: int, folder: str) -> None:
    late.run(sys.modules[__name__])  # this process runs no test
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    for offloaded in (False, True):  # the second as with verl's offload_policy
        on_one_rank(rank, folder, offloaded)
    dist.destroy_process_group()


def on_one_rank(rank: int, folder: str, offloaded: bool) -> None:
    model = sharded(offloaded)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    alpha, alphas = host_copies(shards_of(model, RANKS)), whole(model)
    assert sum(s.numel() for s in alpha) * RANKS == pytest.approx(sum(p.numel() for p in alphas), abs=2 * 4 * RANKS)

    model(torch.ones(4, 6)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model(torch.ones(2, 6))  # an evaluation: the last layer's parameters are gathered now
    assert not hasattr(next(model[1].parameters()), "to_local")
    current = host_copies(shards_of(model, RANKS))
    assert [s.shape for s in current] == [s.shape for s in alpha]
    news = whole(model)
    assert not any(torch.equal(a, b) for a, b in zip(alphas, news, strict=True))

    with swap_weights(model, alpha, RANKS):
        torch.testing.assert_close(whole(model), alphas, rtol=0, atol=0)  # what is pushed
        model._apply(torch.clone)  # param_offload moves the model away and back: its shards lie elsewhere now
    torch.testing.assert_close(whole(model), news, rtol=0, atol=0)
    torch.testing.assert_close(shards_of(model, RANKS), current, rtol=0, atol=0)
    with pytest.raises(ConnectionError), swap_weights(model, alpha, RANKS):
        with torch.no_grad():
            model(torch.ones(2, 6))  # scored under alpha, and gathered again
        raise ConnectionError
    torch.testing.assert_close(whole(model), news, rtol=0, atol=0)
    with swap_weights(model, alpha, RANKS), torch.no_grad():
        scores = model(torch.ones(2 * rank, 6))  # the first rank has nothing to score, but gathers with the other
    assert scores.shape == (2 * rank, 3)
    torch.testing.assert_close(whole(model), news, rtol=0, atol=0)
    model(torch.ones(4, 6)).sum().backward()  # and it still trains
    optimizer.step()

    worker, reference = Worker(), sharded(offloaded=True)
    worker.actor.engine.module, worker.ref.engine.module = model, reference
    worker.rank, worker.world_size = rank, RANKS
    worker.reset_reference()
    moved = whole(model)
    worker.save_shards(folder, REFERENCE)
    optimizer.step()
    worker.reset_reference()
    assert not torch.equal(whole(reference)[0], moved[0])
    worker.load_shards(folder, REFERENCE)
    torch.testing.assert_close(whole(reference), moved, rtol=0, atol=0)


@pytest.mark.system
def test_alpha_is_pushed_and_taken_back_on_two_ranks(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(two_ranks, args=(str(tmp_path),), nprocs=RANKS)


def test_what_is_no_shard_is_refused() -> None:
    module = nn.Linear(3, 2)
    assert [s.shape for s in shards_of(module)] == [(2, 3), (2,)]
    with pytest.raises(AssertionError, match="weight"):
        shards_of(module, RANKS)  # not sharded
    module.weight.data.untyped_storage().resize_(0)
    with pytest.raises(AssertionError, match="weight"):
        shards_of(module)


def test_copies_on_gpus_are_pinned_in_one_block_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own pinned memory would take 2 ** 20 bytes for the first, and as much again for the second."""
    pinned: list[tuple[int, int, int]] = []
    cudart = SimpleNamespace(cudaHostRegister=lambda *block: pinned.append(block))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "check_error", lambda code: None)
    shapes = {(600, 437): torch.float32, (600, 873): torch.bfloat16, (0, 5): torch.float32, (): torch.int64}
    shards = [torch.ones(shape, dtype=dtype) for shape, dtype in shapes.items()]
    copies = host_space(shards, pinned=True)
    [(start, size, _)] = pinned
    assert [(c.shape, c.dtype) for c in copies] == [(s.shape, s.dtype) for s in shards]
    assert all(start <= c.data_ptr() <= c.data_ptr() + c.nbytes <= start + size for c in copies if c.nbytes)
    assert sum(s.nbytes for s in shards) <= size < sum(s.nbytes for s in shards) + 4 * 64
    assert [c.data_ptr() for c in host_copies(shards, copies)] == [c.data_ptr() for c in copies] and len(pinned) == 1
    assert all(map(torch.equal, copies, shards))


def test_a_worker_on_gpus_takes_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneOfEight(GPUMethodWorker):
        world_size = 8

    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(MethodWorker, "init_model", lambda self: None)
    for cores in (100, 4):
        monkeypatch.setattr(worker.allocation, "cpus", lambda cores=cores: cores)
        OneOfEight.init_model(object.__new__(OneOfEight))
    assert threads == [12, 1]


class Engine:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1.0)


class Pushes:
    """Stands where verl's worker class stands: its ``update_weights`` sends the module's parameters."""

    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> tuple:
        if global_steps == 99:
            raise ConnectionError("the rollout engine is gone")
        return global_steps, [p.detach().clone() for p in self.actor.engine.module.parameters()]


class Worker(MethodWorker, Pushes):
    def __init__(self) -> None:
        self.actor = type("Actor", (), {"engine": Engine()})()
        self.ref = type("Reference", (), {"engine": Engine()})()
        self.rank, self.world_size = 0, 1

    def pushed(self, which: str, version: int = 1) -> list[torch.Tensor]:
        self.act_as(which)
        return asyncio.run(self.update_weights(global_steps=version))[1]


def test_the_delayed_policy_is_pushed_and_the_current_one_put_back(tmp_path: Path) -> None:
    worker = Worker()
    old = [p.detach().clone() for p in worker.actor.engine.module.parameters()]
    worker.snapshot_rollout_policy()
    with torch.no_grad():
        for p in worker.actor.engine.module.parameters():
            p.add_(1.0)
    new = [p.detach().clone() for p in worker.actor.engine.module.parameters()]
    torch.testing.assert_close(worker.pushed(DELAYED), old, rtol=0, atol=0)
    with pytest.raises(ConnectionError):
        worker.pushed(DELAYED, version=99)
    torch.testing.assert_close(list(worker.actor.engine.module.parameters()), new, rtol=0, atol=0)
    torch.testing.assert_close(worker.pushed(CURRENT), new, rtol=0, atol=0)
    # the places of both copies in host memory are taken again, so that they are pinned once
    places = [s.data_ptr() for s in (*worker._snapshot, *worker._spare)]
    worker.snapshot_rollout_policy()
    torch.testing.assert_close(worker.pushed(DELAYED), new, rtol=0, atol=0)
    assert [s.data_ptr() for s in (*worker._snapshot, *worker._spare)] == places and len(set(places)) == 4
    with torch.no_grad():
        for p, before in zip(worker.actor.engine.module.parameters(), old, strict=True):
            p.copy_(before)
    worker.snapshot_rollout_policy()

    worker.save_shards(str(tmp_path), ALPHA)
    assert len(load_file(tmp_path / "rollout_policy_rank0_of_1.safetensors")) == 2
    other = Worker()
    other.load_shards(str(tmp_path), ALPHA)
    torch.testing.assert_close(other.pushed(DELAYED), old, rtol=0, atol=0)
    other.world_size = 4  # a run resumes on as many GPUs as it was started on
    with pytest.raises(FileNotFoundError, match="rank0_of_4"):
        other.load_shards(str(tmp_path), ALPHA)


def test_the_reference_takes_the_current_weights_and_keeps_them_over_a_resume(tmp_path: Path) -> None:
    worker, other = Worker(), Worker()
    for each in (worker, other):
        each.ref.engine.module.to(torch.bfloat16)  # as on GPUs
    current, reference = worker.actor.engine.module, worker.ref.engine.module
    with torch.no_grad():
        current.weight.fill_(1.0 + 2**-9)  # between two bfloat16 numbers
    assert not (reference.weight == 1.0).any()
    worker.reset_reference()
    assert (reference.weight == 1.0).all() and torch.equal(reference.bias, current.bias.bfloat16())
    with torch.no_grad():
        current.weight.fill_(2.0)
    assert (reference.weight == 1.0).all()  # a copy
    worker.save_shards(str(tmp_path), REFERENCE)
    other.load_shards(str(tmp_path), REFERENCE)
    assert torch.equal(other.ref.engine.module.weight, reference.weight)
