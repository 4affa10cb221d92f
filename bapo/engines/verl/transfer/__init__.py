"""Weights on their way from verl's training workers to vLLM: whatever fails there ends the job within seconds.

verl 0.9.1 sends them in buckets and waits for an answer after each, for ever. Here a worker of vLLM that fails answers
with its error (``receiver``, by way of ``extension``), every training worker looks whether vLLM still lives while it
waits (``watched``, ``adapter``), and a call of the server fails with the engine that it waits for (``server``).
"""

from __future__ import annotations

from bapo.engines.verl.registries import register_rollout

#: value of ``actor_rollout_ref.rollout.name``, in verl's words
ROLLOUT = "vllm"


def register() -> None:
    """Put adapter and server into verl's registries. Light: it runs inside ``import verl``."""
    register_rollout(ROLLOUT, f"{__name__}.adapter.Adapter", f"{__name__}.server.Replica")
