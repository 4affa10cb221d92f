"""verl's adapter of vLLM in a training worker: every rank that sends weights sees whether vLLM lives."""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout.vllm_rollout import vllm_rollout
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from bapo.engines.verl.transfer.watched import Pulse, Watched


class Adapter(ServerAdapter):
    """verl's adapter, with a socket that checks on vLLM while it waits."""

    async def update_weights(self, *arguments: Any, **options: Any) -> None:
        pulse = Pulse(self._server())

        class Sender(BucketedWeightSender):
            def _init_socket(self) -> None:
                super()._init_socket()
                self.socket = Watched(self.socket, pulse)

        vllm_rollout.BucketedWeightSender = Sender  # verl's method reads this name
        await super().update_weights(*arguments, **options)

    def _server(self) -> Any:
        """Return the replica's server that holds its engine, on the first node; verl gives it to one rank alone."""
        return ray.get_actor(f"{self._get_server_name_prefix()}server_{self.replica_rank}_0")
