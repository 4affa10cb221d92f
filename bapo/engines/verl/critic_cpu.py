"""verl's critic on CPU cores: its FSDP engine with a value head and an attention that needs no accelerator."""

from __future__ import annotations

from typing import Any

from verl.utils import model as verl_model
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead

from bapo.engines.verl.cpu.workers import CPUEngine, CPUTrainingWorker
from bapo.engines.verl.critic import CriticWorker


def load_value_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """verl's ``load_valuehead_model``, which insists on flash attention."""
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation="sdpa",
        trust_remote_code=trust_remote_code,
    )


class CPUValueEngine(CPUEngine, FSDPEngineWithValueHead):
    def _build_module(self) -> Any:
        original, verl_model.load_valuehead_model = verl_model.load_valuehead_model, load_value_model
        try:
            return super()._build_module()
        finally:
            verl_model.load_valuehead_model = original


for backend in ("fsdp", "fsdp2"):
    EngineRegistry._engines["value_model"][backend].setdefault("cpu", CPUValueEngine)


class CPUCriticWorker(CriticWorker, CPUTrainingWorker):
    """On CPU cores."""
