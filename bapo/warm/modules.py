"""The modules that the warm process imports before it forks the first job. One that is missing only costs time."""

from __future__ import annotations

import importlib
import sys

from bapo import tasks

IMPORTS = (
    *("bapo.experiments.compose", "bapo.tasks.job", "hydra.core.plugins"),
    *("pandas", "pyarrow.parquet", "pyarrow.dataset", "pyarrow.json"),
    *(name.partition(":")[0] for name in tasks.TABLE.values()),
    *("bapo.engines.torch.base_model", "bapo.engines.torch.trainer", "torch._dynamo"),
    *("bapo.engines.fast.sampler", "bapo.engines.fast.scoring", "bapo.engines.fast.vision"),
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2.tokenization_qwen2",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.auto.processing_auto",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "transformers.models.qwen2_5_vl.processing_qwen2_5_vl",
    "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl",
    *("bapo.evaluation.run", "lm_eval.evaluator", "lm_eval.tasks", "datasets", "sacrebleu", "tqdm.contrib.concurrent"),
    *("analysis.study", "matplotlib.pyplot"),
)


def load() -> None:
    """Import the modules. Raises ImportError for one that is not installed."""
    for name in IMPORTS:
        importlib.import_module(name)


def sources() -> list[str]:
    """Return the files of the suite's modules that are imported."""
    of_suite = [m for name, m in sys.modules.copy().items() if name.partition(".")[0] in ("bapo", "analysis")]
    return [file for m in of_suite if (file := getattr(m, "__file__", None))]
