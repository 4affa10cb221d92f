"""verl's registries of rollouts. Light: it is used inside ``import verl``."""

from __future__ import annotations

from importlib import import_module


def register_rollout(name: str, adapter: str, replica: str) -> None:
    """Enter two classes by their dotted names; they are imported when verl asks for them.

    name: value of ``actor_rollout_ref.rollout.name``; adapter: of a training worker; replica: starts the server.
    """
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    def load() -> type:
        module, _, cls = replica.rpartition(".")
        return getattr(import_module(module), cls)

    base._ROLLOUT_REGISTRY[(name, "async")] = adapter
    RolloutReplicaRegistry.register(name, load)
