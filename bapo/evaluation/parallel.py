"""vLLM on all GPUs of a machine: one engine a replica, each a process of its own that lives for the whole evaluation.

lm-eval's own data parallelism starts its engines anew for every benchmark, and gives all of them one seed while it
deals the repeats of a problem to them in turn: where their batches agree, so do their samples. Here every replica has
a seed of its own, and gets whole problems, so that a prompt's cache serves all its repeats.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.connection import Connection, wait
from typing import Any

from bapo.errors import JobFailed
from bapo.gpu import devices
from bapo.processes import end_with


@dataclass
class Text:
    """What lm-eval reads of a request's answer: ``outputs[0].text``; tokens: how many were drawn."""

    text: str
    tokens: int

    @property
    def outputs(self) -> list[Text]:
        return [self]


def answers(engine: Any, prompts: Sequence[Any], parameters: Any, **options: Any) -> list[Text]:
    """Return an engine's texts alone: its own answers hold every token's objects."""
    found = []
    for output in engine.generate(list(prompts), sampling_params=parameters, use_tqdm=False, **options):
        first = output.outputs[0]
        found.append(Text(first.text, len(getattr(first, "token_ids", ()))))
    return found


class Ended(SystemExit):
    """The replica is to end, as Python's own exit so that vLLM ends its processes."""


def _leave(*_: Any) -> None:
    raise Ended(1)


def serve(stream: Connection, model: dict[str, Any], visible: str | None, parent: int) -> None:
    """Be one replica: build the engine, then answer (prompts, parameters) until the other end is closed.

    It ends with the process ``parent`` however that ends, as the GPUs' locks do.
    """
    signal.signal(signal.SIGTERM, _leave)
    end_with(parent, signal.SIGTERM)
    if visible is not None:
        os.environ[devices.VISIBLE] = visible  # before anything starts CUDA
    try:
        from vllm import LLM

        engine = LLM(**model)
        stream.send(None)
        while True:
            prompts, parameters = stream.recv()
            stream.send(answers(engine, prompts, parameters))
    except (EOFError, Ended):
        pass
    except BaseException as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):  # nobody reads any more
            stream.send(f"{type(error).__name__}: {error}")


class Replicas:
    """Engines in processes of their own, which start when the first prompts come and end with this one."""

    def __init__(self, model: dict[str, Any], visible: Sequence[str | None]) -> None:
        """model: vLLM's arguments, whose seed is the first replica's; visible: the GPUs of each (None: any)."""
        self.model, self.visible, self.count = model, visible, len(visible)
        self.streams: list[Connection] = []
        self.processes: list[Any] = []

    def generate(self, prompts: Sequence[Any], parameters: Any) -> list[Text]:
        """Return the answers in order; parameters: for all prompts, or one for each. Raises JobFailed."""
        self._start()
        shares = {rank: share for rank, share in enumerate(deal(prompts, self.count)) if share}
        for rank, share in shares.items():
            with contextlib.suppress(OSError):  # a replica that is gone is named below
                self.streams[rank].send(([prompts[i] for i in share], _of(parameters, share)))
        found: list[Text | None] = [None] * len(prompts)
        for rank, part in self._answers(shares):
            for place, answer in zip(shares[rank], part, strict=True):
                found[place] = answer
        return found  # type: ignore[return-value]

    def _start(self) -> None:
        if self.streams:
            return
        # before multiprocessing waits for them, also where this is a process of its own making (a curve's)
        util.Finalize(None, self.close, exitpriority=10)
        context = multiprocessing.get_context("spawn")
        for rank in range(self.count):
            near, far = context.Pipe()
            model = {**self.model, "seed": self.model["seed"] + rank}
            # vLLM's engine is a process of its own, which a daemon may not have
            asked = (far, model, self.visible[rank], os.getpid())
            process = context.Process(target=serve, args=asked, daemon=False)
            process.start()
            far.close()
            self.streams.append(near)
            self.processes.append(process)
        for _ in self._answers(range(self.count)):  # each says when its engine is built
            pass

    def _answers(self, ranks: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yield (rank, answer) of each replica as they come. The first failure ends all and raises JobFailed."""
        waiting = {self.streams[rank]: rank for rank in ranks}
        while waiting:
            for stream in wait(list(waiting)):
                rank = waiting.pop(stream)
                try:
                    found = stream.recv()
                except (EOFError, OSError):
                    found = "its process ended without a word; see above, and dmesg for memory"
                if isinstance(found, str):
                    self.close()
                    raise JobFailed(f"evaluation.backend=vllm: replica {rank} on GPU {self.visible[rank]}: {found}")
                yield rank, found

    def close(self) -> None:
        """End all replicas, also those that are at work."""
        for stream, process in zip(self.streams, self.processes, strict=True):
            stream.close()
            process.terminate()
        self.streams, self.processes = [], []


def deal(prompts: Sequence[Any], replicas: int) -> list[list[int]]:
    """Return the places of each replica's prompts: equal neighbours, a problem's repeats, stay together."""
    groups: list[list[int]] = []
    for place, prompt in enumerate(prompts):
        if place and prompt == prompts[place - 1]:
            groups[-1].append(place)
        else:
            groups.append([place])
    shares: list[list[int]] = [[] for _ in range(replicas)]
    for group in groups:
        min(shares, key=len).extend(group)
    return shares


def _of(parameters: Any, places: list[int]) -> Any:
    return [parameters[i] for i in places] if isinstance(parameters, list) else parameters


def report(found: Sequence[Text], seconds: float, replicas: int, gpus: int) -> str:
    """Say tokens a second, which is what an evaluation's hours come from."""
    tokens = sum(text.tokens for text in found)
    rate = tokens / max(seconds, 1e-9)
    return (
        f"vllm: {len(found)} responses of {tokens / max(1, len(found)):.0f} tokens in {seconds:.0f} s: {rate:.0f} "
        f"tokens/s, {rate / gpus:.0f} a GPU ({replicas} replica{'s' if replicas > 1 else ''})"
    )


def groups_of_gpus(replicas: int, each: int) -> list[str]:
    """Name the GPUs of each replica. Raises UserError where there are too few."""
    names = devices.visible()
    devices.require(replicas * each, len(names))
    return [",".join(names[i * each : (i + 1) * each]) for i in range(replicas)]


def parallel(base: type, replicas: int) -> type:
    """Return lm-eval's vLLM model ``base`` with our replicas in the place of its own, and with its speed told."""

    class Parallel(base):  # type: ignore[misc, valid-type]
        _replicas: Replicas | None = None

        def _engines(self, prompts: list[Any], parameters: Any) -> list[Text]:
            begun, gpus = time.monotonic(), replicas * self.tensor_parallel_size
            if replicas > 1:
                names = groups_of_gpus(replicas, self.tensor_parallel_size) if self._replicas is None else []
                self._replicas = self._replicas or Replicas(self.model_args, names)
                found = self._replicas.generate(prompts, parameters)
            else:
                found = answers(self.model, prompts, parameters)
            print(report(found, time.monotonic() - begun, replicas, gpus), file=sys.stderr)
            return found

        def _model_generate(
            self, requests: list[list[int]], generate: bool = False, sampling_params: Any = None
        ) -> Any:
            from vllm import TokensPrompt

            return self._engines([TokensPrompt(prompt_token_ids=request) for request in requests], sampling_params)

        def _multimodal_model_generate(
            self,
            requests: list[Any] | None = None,
            generate: bool = False,
            max_tokens: int | None = None,
            stop: list[str] | None = None,
            **keys: Any,
        ) -> Any:
            from vllm import SamplingParams

            return self._engines(list(requests or ()), SamplingParams(max_tokens=max_tokens, stop=stop, **keys))

    Parallel.__name__ = base.__name__
    return Parallel
