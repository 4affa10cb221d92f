"""vLLM's server: a call that waits for an engine which has died fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from bapo.engines.verl.transfer import extension

#: seconds between two looks at the engine
LOOK = 1.0


class Server(vLLMHttpServer):
    """verl's server in a Ray actor. vLLM never answers a call that its engine was at when it died."""

    def _get_worker_extension_cls(self) -> str:
        return f"{extension.__name__}.{extension.Extension.__name__}"

    async def check_health(self) -> None:
        """Raise EngineDeadError where the engine has died."""
        await self.engine.check_health()

    async def _while_alive(self, call: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.ensure_future(call)
        while not (await asyncio.wait({task}, timeout=LOOK))[0]:
            try:
                await self.check_health()
            except BaseException:
                task.cancel()
                raise
        return task.result()

    async def collective_rpc(self, *arguments: Any, **options: Any) -> None:
        await self._while_alive(super().collective_rpc(*arguments, **options))

    async def clear_kv_cache(self) -> None:
        await self._while_alive(super().clear_kv_cache())

    async def sleep(self) -> None:
        await self._while_alive(super().sleep())

    async def wake_up(self, tags: list[str] | None = None) -> None:
        await self._while_alive(super().wake_up(tags))


class Replica(vLLMReplica):
    """Starts that server."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.server_class = ray.remote(Server)
