"""The policies' shards: on one process, and on two with FSDP2 over gloo. No verl, no Ray."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import late
from support.late import LATE

if LATE:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    from bapo.engines.verl import shards


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


def two_ranks(rank: int, folder: str, offloaded: bool) -> None:
    late.run(sys.modules[__name__])  # this process runs no test
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    model = sharded(offloaded)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    alpha, alphas = shards.kept(shards.shards_of(model, RANKS)), whole(model)
    assert sum(s.numel() for s in alpha) * RANKS == pytest.approx(sum(p.numel() for p in alphas), abs=2 * 4 * RANKS)

    model(torch.ones(4, 6)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model(torch.ones(2, 6))  # an evaluation: the last layer's parameters are gathered now
    assert not hasattr(next(model[1].parameters()), "to_local")
    current = shards.kept(shards.shards_of(model, RANKS))
    assert [s.shape for s in current] == [s.shape for s in alpha]
    news = whole(model)
    assert not any(torch.equal(a, b) for a, b in zip(alphas, news, strict=True))

    with shards.swapped(model, alpha, RANKS):
        torch.testing.assert_close(whole(model), alphas, rtol=0, atol=0)  # what is pushed
        model._apply(torch.clone)  # param_offload moves the model away and back: its shards lie elsewhere now
    torch.testing.assert_close(whole(model), news, rtol=0, atol=0)
    torch.testing.assert_close(shards.shards_of(model, RANKS), current, rtol=0, atol=0)
    with pytest.raises(ConnectionError), shards.swapped(model, alpha, RANKS):
        with torch.no_grad():
            model(torch.ones(2, 6))  # scored under alpha, and gathered again
        raise ConnectionError
    torch.testing.assert_close(whole(model), news, rtol=0, atol=0)
    with shards.swapped(model, alpha, RANKS), torch.no_grad():
        scores = model(torch.ones(2 * rank, 6))  # the first rank has nothing to score, but gathers with the other
    assert scores.shape == (2 * rank, 3)
    torch.testing.assert_close(whole(model), news, rtol=0, atol=0)
    model(torch.ones(4, 6)).sum().backward()  # and it still trains
    optimizer.step()
    dist.destroy_process_group()


@pytest.mark.system
@pytest.mark.parametrize("offloaded", [False, True], ids=["", "offload_policy"])
def test_alpha_is_pushed_and_taken_back_on_two_ranks(tmp_path: Path, offloaded: bool) -> None:
    torch.multiprocessing.spawn(two_ranks, args=(str(tmp_path), offloaded), nprocs=RANKS)


def test_what_is_no_shard_is_refused() -> None:
    module = nn.Linear(3, 2)
    assert [s.shape for s in shards.shards_of(module)] == [(2, 3), (2,)]
    with pytest.raises(RuntimeError, match="weight is not sharded"):
        shards.shards_of(module, RANKS)
    module.weight.data.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="weight has no memory"):
        shards.shards_of(module)


def test_copies_stay_when_the_model_moves_on() -> None:
    module = nn.Linear(3, 2)
    before = [p.detach().clone() for p in module.parameters()]
    kept = shards.kept(shards.shards_of(module))
    with torch.no_grad():
        module.weight.add_(1.0)
    torch.testing.assert_close(kept, before, rtol=0, atol=0)
