"""What the warm process imports for each command, before it first forks a child for it.

A missing entry costs time in every such job, never more.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from bapo import tasks

_TABLES = ("pandas", "pyarrow.parquet", "pyarrow.dataset")
_CONFIGURATION = (
    *("analysis.commands", "bapo.experiments.compose", "bapo.store.provenance", "hydra.core.plugins"),
    *_TABLES,
)
#: of models that read images
_IMAGES = (
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "transformers.models.qwen2_5_vl.processing_qwen2_5_vl",
    "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl",
    "transformers.models.auto.processing_auto",
)
_MODELS = (
    *_CONFIGURATION,
    *(place.partition(":")[0] for place in tasks.TABLE.values()),
    "bapo.gpu.devices",
    "bapo.engines.shared.prompts",
    "bapo.engines.fast.sampler",
    "bapo.engines.fast.scoring",
    "bapo.engines.fast.vision",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2.tokenization_qwen2",
    "transformers.models.auto.tokenization_auto",
    *_IMAGES,
)
_EVALUATION = (
    *("bapo.evaluation.run", "bapo.evaluation.tasks", "bapo.evaluation.lm_model"),
    *("lm_eval.evaluator", "lm_eval.tasks", "datasets", "sacrebleu", "pyarrow.json", "tqdm.contrib.concurrent"),
)
#: first words of a command -> modules; the longest entry that fits counts
IMPORTS = {
    ("bapo", "data"): (*_CONFIGURATION, "bapo.tasks.job"),
    ("bapo", "base"): (*_MODELS, "bapo.engines.torch.base", "torch._dynamo"),
    ("bapo", "train"): (*_MODELS, "bapo.engines.torch.trainer", "torch._dynamo", "wandb"),
    ("bapo", "evaluate"): (*_MODELS, *_EVALUATION),
    ("bapo", "sweep"): (*_MODELS, "bapo.sweeps.worker", "bapo.engines.torch.trainer", "torch._dynamo", "optuna"),
    ("bapo", "describe"): _CONFIGURATION,
    ("analysis",): ("analysis.study", "bapo.store.provenance", "matplotlib.pyplot", *_TABLES),
}


def load(words: Sequence[str]) -> None:
    """Import what the command ``words`` (module, arguments) will need. Raises ImportError for what is not installed."""
    fitting = [key for key in IMPORTS if tuple(words[: len(key)]) == key]
    for name in IMPORTS[max(fitting, key=len)] if fitting else ():
        importlib.import_module(name)


def sources() -> list[str]:
    """Return the files of this suite that have been imported."""
    own = [m for name, m in sys.modules.copy().items() if name.partition(".")[0] in ("bapo", "analysis")]
    return [file for m in own if (file := getattr(m, "__file__", None))]
