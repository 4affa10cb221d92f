"""Which architectures the engines know: transformers' causal language models, and vLLM's where it samples."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

from omegaconf import DictConfig

from bapo import project, tasks
from bapo.engines.shared.imports import load_transformers
from bapo.errors import UserError
from bapo.experiments.model_files import Facts


def register(config: DictConfig) -> None:
    """Make the family of ``model.code`` known to transformers. Raises UserError where it is no class of a model."""
    code = config.model.code
    if not code:
        return
    load_transformers()
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    family = project.load(code, "model.code")
    if not (isinstance(family, type) and issubclass(family, PreTrainedModel)):
        raise UserError(f"model.code={code}: must be a class derived from transformers.PreTrainedModel")
    kind = getattr(family.config_class, "model_type", "")
    if not kind or kind in CONFIG_MAPPING_NAMES:
        raise UserError(
            f"model.code={code}: its config_class needs a model_type that transformers has not, got {kind or 'none'}"
        )
    if config.model.kind == "scratch" and config.model.architecture.get("model_type") != kind:
        raise UserError(f"model.architecture.model_type must be {kind}, as in {code}")
    AutoConfig.register(kind, family.config_class, exist_ok=True)
    AutoModelForCausalLM.register(family.config_class, family, exist_ok=True)


def require(config: DictConfig, where: Path, facts: Facts) -> None:
    """Raise UserError for a model that transformers, vLLM or the task cannot do anything with. where: its file."""
    from bapo.engines.shared.images import FAMILIES

    load_transformers()
    from transformers.models.auto import modeling_auto as auto

    register(config)
    if not config.model.code and facts.kind not in {
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }:
        raise UserError(
            f"{where}: model_type={facts.kind} is no causal language model that transformers has, and code that comes "
            "with a model is never run; take another model, a newer transformers, or name code of yours in model.code"
        )
    if facts.images and facts.kind not in FAMILIES:
        raise UserError(
            f"{where}: model_type={facts.kind}: of the models that read images only {' and '.join(FAMILIES)} can be "
            "trained here; take one of these, or a model of text"
        )
    if tasks.get(config.task.name).images and not facts.images:
        raise UserError(
            f"{where}: no vision_config, but the problems of task={config.task.name} have images; take a model that "
            "reads them"
        )
    on_vllm = config.evaluation.backend == "vllm" or (config.engine == "verl" and config.device != "cpu")
    known = registered() if on_vllm else None
    if known is not None and not known & {*facts.architectures}:
        raise UserError(
            f"{where}: architectures={', '.join(facts.architectures) or 'nothing'}: the installed vLLM has none of "
            "them; take another model, or engine=torch evaluation.backend=torch"
        )


@cache
def registered() -> frozenset[str] | None:
    """Return the names in vLLM's registry of models, read as text: importing vLLM takes long. None: not installed."""
    found = importlib.util.find_spec("vllm")
    for place in (found.submodule_search_locations or ()) if found else ():
        registry = Path(place, "model_executor", "models", "registry.py")
        if registry.is_file():
            return frozenset(re.findall(r'^\s*"(\w+)":', registry.read_text(encoding="utf-8"), re.MULTILINE))
    return None
