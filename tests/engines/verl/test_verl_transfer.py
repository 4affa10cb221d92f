"""Weights over verl's own sockets and shared memory between two processes, one of which fails or dies. No Ray."""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "bapo.engines.verl.plugin")
pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch

from bapo.engines.verl import job
from bapo.engines.verl.transfer.watched import Watched

WEIGHTS = {
    "first": torch.arange(6.0).reshape(2, 3),
    "second": torch.full((300_000,), 2.5),
    "third": torch.ones(300_000),
}
#: seconds within which a failure must be seen, on a busy machine
SOON = 60


def transfer_module(name: str) -> Any:
    """A module of verl's vLLM room that needs no vLLM itself; the room's own ``__init__`` imports it."""
    room = "verl.workers.rollout.vllm_rollout"
    if importlib.util.find_spec("vllm") is None and room not in sys.modules:
        package = types.ModuleType(room)
        package.__path__ = [str(Path(importlib.util.find_spec("verl").origin).parent / "workers/rollout/vllm_rollout")]
        sys.modules[room] = package
    return importlib.import_module(name)


def receive(handle: str, act: str, found: Any) -> None:
    """Be vLLM's worker."""
    receiver = transfer_module("bapo.engines.verl.transfer.receiver").Receiver(handle, torch.device("cpu"), True)
    got = {}

    def load(weights: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
        if act == "fails" and is_last:
            raise ValueError("no parameter is called third")
        if act == "dies" and is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        got.update({name: float(value.sum()) for name, value in weights})

    try:
        receiver.receive_weights(load)
    except BaseException as error:
        found.put((type(error).__name__, str(error)))
    else:
        found.put(got)


def send(handle: str, look: Callable[[], None], weights: dict[str, torch.Tensor] = WEIGHTS) -> None:
    verl = transfer_module("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer")

    class Sender(verl.BucketedWeightSender):
        def _init_socket(self) -> None:
            super()._init_socket()
            self.socket = Watched(self.socket, look)

    asyncio.run(Sender(handle, bucket_size_mb=2, use_shm=True).async_send_weights(iter(weights.items())))


@pytest.fixture
def worker(tmp_path: Path) -> Any:
    """Starts the other process: (its handle, the process, what it found)."""
    context, started = multiprocessing.get_context("spawn"), []

    def start(act: str) -> tuple[str, Any, Any]:
        handle, found = f"ipc://{tmp_path}/socket", context.Queue()
        process = context.Process(target=receive, args=(handle, act, found), daemon=True)
        process.start()
        started.append(process)
        return handle, process, found

    yield start
    for process in started:
        process.kill()
        process.join()


def never() -> None:
    """Nothing is wrong with the other side."""


def test_weights_arrive_in_buckets(worker: Any) -> None:
    handle, _, found = worker("loads")
    send(handle, never)
    assert found.get(timeout=SOON) == {name: float(value.sum()) for name, value in WEIGHTS.items()}


def test_a_workers_error_is_the_answer_to_the_sender(worker: Any) -> None:
    handle, _, found = worker("fails")
    with pytest.raises(RuntimeError, match="could not take the weights: ValueError: no parameter is called third"):
        send(handle, never)
    # not that the shared memory cannot be closed while the error's frames hold tensors in it
    assert found.get(timeout=SOON) == ("ValueError", "no parameter is called third")


def test_a_worker_that_dies_is_noticed(worker: Any) -> None:
    handle, process, _ = worker("dies")

    def look() -> None:
        if not process.is_alive():
            raise RuntimeError("vLLM died")

    with pytest.raises(RuntimeError, match="vLLM died"):
        send(handle, look)
    process.join(timeout=SOON)
    with pytest.raises(RuntimeError, match="vLLM died"):  # nobody will ever connect
        send(handle, look)


def test_the_first_error_of_a_job_is_one_line() -> None:
    from ray.exceptions import RayActorError, RayTaskError

    first = RuntimeError("vLLM's worker could not take the weights:\n  ValueError: bad")
    inner = RayTaskError("update_weights", "Traceback of the worker", first)
    outer = RayTaskError("run", "Traceback of the trainer", inner.as_instanceof_cause())
    assert job.first_error(outer.as_instanceof_cause()) == (
        "RuntimeError: vLLM's worker could not take the weights: ValueError: bad"
    )
    assert job.first_error(ValueError("alone")) == "ValueError: alone"
    assert "died" in job.first_error(RayActorError(None, "The actor died.\nIts name was Worker."))
    assert "\n" not in job.first_error(RayActorError(None, "The actor died.\nIts name was Worker."))
