"""verl's training workers on CPU cores: gloo, and its FSDP engine without sharding (one process) or with FSDP2."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from bapo.engines.verl.worker import MethodWorker


class CPUEngine(FSDPEngineWithLMHead):
    """One process: the module as it is. More: verl's own FSDP2 on a gloo mesh."""

    def _build_fsdp_module(self, module: Any) -> Any:
        if dist.get_world_size() == 1:
            self._autocast_dtype, self.scaler = torch.float32, None
            if self.engine_config.forward_only:
                self._is_offload_param = self._is_offload_optimizer = False
            return module
        # verl offloads models without gradient to pinned memory, which needs an accelerator
        original, transformer_impl.CPUOffloadPolicy = transformer_impl.CPUOffloadPolicy, lambda pin_memory=True: None
        try:
            return super()._build_fsdp_module(module)
        finally:
            transformer_impl.CPUOffloadPolicy = original


for backend in ("fsdp", "fsdp2"):
    EngineRegistry._engines["language_model"][backend].setdefault("cpu", CPUEngine)


class CPUTrainingWorker(TrainingWorker):
    def __init__(self, config: Any) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        if not dist.is_initialized():
            # verl would ask for "cpu:gloo,cpu:gloo", which torch refuses
            dist.init_process_group(
                "gloo",
                rank=int(os.environ.get("RANK", 0)),
                world_size=int(os.environ.get("WORLD_SIZE", 1)),
                timeout=timedelta(seconds=600),
                init_method=os.environ.get("DIST_INIT_METHOD"),
            )
        super().__init__(config)


class CPUMethodWorker(MethodWorker, ActorRolloutRefWorker):
    actor_worker_cls = CPUTrainingWorker
    ref_worker_cls = CPUTrainingWorker
