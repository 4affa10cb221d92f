"""What verl 0.9.1 lacks to run on CPU cores: a platform, a rollout with Hugging Face models, workers on gloo."""

from __future__ import annotations

from bapo.engines.verl.registries import register_rollout

#: value of ``actor_rollout_ref.rollout.name``
ROLLOUT = "bapo_cpu"


def register() -> None:
    """Put platform and rollout into verl's registries. Light: it runs inside ``import verl``."""
    from bapo.engines.shared.models import images
    from bapo.engines.verl.cpu import platform  # noqa: F401 (registers itself)

    register_rollout(ROLLOUT, f"{__name__}.rollout.Adapter", f"{__name__}.rollout.Replica")
    images.register_processor()  # Qwen2.5-VL's without torchvision
