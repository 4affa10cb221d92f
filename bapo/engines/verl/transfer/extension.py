"""verl's extension of vLLM's worker, with a receiver of weights that answers with its errors."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from bapo.engines.verl.transfer.receiver import Receiver


class Extension(vLLMColocateWorkerExtension):
    """Named by vLLM's ``worker_extension_cls``: vLLM adds its methods to those of its worker."""

    def update_weights_from_ipc(self, *arguments: Any, **options: Any) -> None:
        bucketed_weight_transfer.BucketedWeightReceiver = Receiver  # verl's method imports it by this name
        super().update_weights_from_ipc(*arguments, **options)
