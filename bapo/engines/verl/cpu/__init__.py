"""What verl 0.9.1 lacks to run on CPU cores: a platform, a rollout with Hugging Face models, workers on gloo."""

from __future__ import annotations

#: value of ``actor_rollout_ref.rollout.name``
ROLLOUT = "bapo_cpu"


def register() -> None:
    """Put platform and rollout into verl's registries. Light: it runs inside ``import verl``."""
    from verl.workers.rollout import base, replica

    from bapo.engines.shared import processors
    from bapo.engines.verl.cpu import platform  # noqa: F401 (registers itself)

    base._ROLLOUT_REGISTRY[(ROLLOUT, "async")] = "bapo.engines.verl.cpu.rollout.Adapter"

    def load() -> type:
        from bapo.engines.verl.cpu.rollout import Replica

        return Replica

    replica.RolloutReplicaRegistry.register(ROLLOUT, load)
    processors.register()  # Qwen2.5-VL's without torchvision
