"""The backends that sample responses: the torch engine, vLLM in this process, or an OpenAI-compatible server.

Each is an lm-eval model, of which :func:`bapo.evaluation.run.run_benchmark` needs ``generate_until``; our own return
texts that know their length (:class:`bapo.engines.shared.prompts.Response`).

=======  ==============================  ================================  ======================================
backend  random numbers                  column ``seed``                   column ``tokens``
=======  ==============================  ================================  ======================================
torch    of (seed, task, problem,        evaluation.seed                   as sampled, with the end token
         repeat) alone
vllm     one stream of each engine       evaluation.seed (the first's)    of the text tokenised again: lm-eval
                                                                           hands on the text alone
server   the server's own, never again   -1: none is sent                  the server's ``usage``; without it, of
         the same                                                          the text tokenised again
=======  ==============================  ================================  ======================================
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from bapo.engines.shared import vllm
from bapo.errors import UserError
from bapo.evaluation.prompts import Limits, revision_of

NO_SEED = -1

#: vLLM's remaining sampling keys, neutral: a server would take them from the model's generation_config otherwise.
_NEUTRAL = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
#: Generation arguments for lm-eval's ``vllm``. No ``seed`` here: it would seed every request alike. lm-eval keeps
#: special tokens in the text; the torch engine, like a server, does not.
VLLM_ARGUMENTS = {**_NEUTRAL, "skip_special_tokens": True}
#: Generation arguments for lm-eval's ``local-completions``, which sends ``"seed": 1234`` with every request unless told
#: otherwise: a server that honours it then gives the same answer 32 times.
SERVER_ARGUMENTS = {**_NEUTRAL, "seed": None}


def check(config: DictConfig) -> None:
    """Raise UserError naming the key of ``evaluation`` that its backend cannot use."""
    e = config.evaluation

    def require(ok: bool, key: str, value: Any, rule: str) -> None:
        if not ok:
            raise UserError(f"evaluation.{key}={value}: {rule}")

    require(e.backend in ("torch", "vllm", "server"), "backend", e.backend, "must be one of torch, vllm, server")
    if e.backend == "vllm":
        v = e.vllm
        share, length = v.gpu_memory_utilization, v.max_model_len
        require(0 < share <= 1, "vllm.gpu_memory_utilization", share, "must be in (0, 1]")
        require(length is None or length >= 1, "vllm.max_model_len", length, "must be null or at least 1")
        vllm.require(
            "evaluation.backend=vllm",
            "install it on a machine with a GPU (pip install 'lm_eval[vllm]==0.4.13') or in an environment for CPU "
            f"cores ({vllm.ENVIRONMENT}), start a vLLM server elsewhere and set evaluation.backend=server, or use "
            "evaluation.backend=torch",
        )
    if e.backend == "server":
        s = e.server
        for key in ("num_concurrent", "max_attempts"):
            require(getattr(s, key) >= 1, f"server.{key}", getattr(s, key), "must be at least 1")
        require(s.timeout > 0, "server.timeout", s.timeout, "must be positive (seconds)")
        completions_url(s.base_url)
        needed = ("aiohttp", "requests", "tenacity", "tqdm")
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        if missing:
            raise UserError(
                f"evaluation.backend=server: {', '.join(missing)} not installed, which lm-eval needs for it; pip "
                "install 'lm_eval[api]==0.4.13'"
            )


def completions_url(base_url: str | None) -> str:
    """Return the URL of a server's completions: ``.../v1`` and ``.../v1/completions`` are both understood."""
    url = (base_url or "").rstrip("/")
    if not url.startswith(("http://", "https://")) or url.endswith("/chat/completions"):
        raise UserError(
            f"evaluation.server.base_url={base_url}: must be the URL of a server's completions, for example "
            "http://127.0.0.1:8000/v1/completions (not those of a chat: the prompt is ready and tokenised)"
        )
    return url if url.endswith("/completions") else f"{url}/completions"


def arguments(config: DictConfig, checkpoint: Path | str) -> Mapping[str, Any]:
    """Return the generation arguments that this backend needs besides the common ones."""
    if config.evaluation.backend == "torch":
        return {}
    fixed = VLLM_ARGUMENTS if config.evaluation.backend == "vllm" else SERVER_ARGUMENTS
    # -1, "off", as it is: vLLM takes 0 for it too, but its servers up to 0.8, and others, refuse 0
    return {**fixed, "top_k": config.sampling.top_k, **_ends(config, checkpoint)}


def _ends(config: DictConfig, checkpoint: Path | str) -> dict[str, Any]:
    if not config.sampling.stop_tokens:
        return {}
    from transformers import AutoTokenizer

    from bapo.engines.shared.models import chats

    tokenizer = AutoTokenizer.from_pretrained(checkpoint, revision=revision_of(config, checkpoint))
    return {"stop_token_ids": chats.stop_ids(tokenizer, config)}


def seed(config: DictConfig) -> int:
    """Return the value of the ``seed`` column."""
    return NO_SEED if config.evaluation.backend == "server" else config.evaluation.seed


def build(
    config: DictConfig, checkpoint: Path | str, limits: Limits, advance: Callable[[int], None], images: int = 0
) -> Any:
    """Return the backend's lm-eval model, built once for all benchmarks.

    checkpoint: a folder, or a name on the hub; advance: called with a number of finished responses; images: the most of
    a problem.
    """
    if config.evaluation.backend == "torch":
        return _torch(config, checkpoint, advance)
    if config.evaluation.backend == "vllm":
        return _vllm(config, checkpoint, images)
    if images:
        raise UserError(
            "evaluation.backend=server: a server's completions take no images; use evaluation.backend=vllm, or torch"
        )
    return _server(config, checkpoint, limits, advance)


def _torch(config: DictConfig, checkpoint: Path | str, advance: Callable[[int], None]) -> Any:
    from bapo.engines.shared import models
    from bapo.evaluation.lm_model import TorchLM

    models.prepare_process(config.threads)
    model, tokenizer = models.load(checkpoint, config, models.device_of(config))
    return TorchLM(
        model=model,
        tokenizer=tokenizer,
        seed=config.evaluation.seed,
        max_prompt_tokens=config.sampling.max_prompt_tokens,
        batch_size=config.evaluation.batch_size,
        advance=advance,
        processor=models.load_processor(model, checkpoint, config),
    )


def _vllm(config: DictConfig, checkpoint: Path | str, images: int) -> Any:
    """Return lm-eval's own vLLM model, ``vllm-vlm`` for images, with an engine on every GPU that it may have.

    The first engine's seed is the evaluation's, the next one's follows it.
    """
    from lm_eval.api.registry import get_model

    from bapo.engines.shared.models import chats
    from bapo.evaluation import parallel

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    v, s = config.evaluation.vllm, config.sampling
    if vllm.on_cpu() and isinstance(checkpoint, Path):
        vllm.require_heads("evaluation.backend=vllm", checkpoint, "use evaluation.backend=torch")
    try:
        model = get_model("vllm-vlm" if images else "vllm")
    except ImportError as error:
        raise UserError(
            f"evaluation.backend=vllm: vLLM is installed but cannot be imported ({error}); install it again: for this "
            f"machine's CUDA (pip install 'lm_eval[vllm]==0.4.13'), or {vllm.ENVIRONMENT}"
        ) from error
    replicas = v.data_parallel_size
    built = parallel.parallel(model, replicas)(
        pretrained=str(checkpoint),
        revision=revision_of(config, checkpoint),
        tokenizer_revision=revision_of(config, checkpoint),
        dtype=v.dtype,
        tensor_parallel_size=v.tensor_parallel_size,
        data_parallel_size=replicas,
        max_num_seqs=v.max_num_seqs,
        gpu_memory_utilization=v.gpu_memory_utilization,
        max_model_len=v.max_model_len or s.max_prompt_tokens + s.max_response_tokens,
        add_bos_token=False,  # the chat template has placed it where it belongs, as in training
        # everything at once: vLLM schedules; but not the pixels of all problems, 32 times
        batch_size=2048 if images else "auto",
        seed=config.evaluation.seed,
        enforce_eager=vllm.on_cpu(),  # compiling takes longer there than what it saves
        **({"max_images": images} if images else {}),
    )
    if images:
        built.batch_size = 2048  # lm-eval forgets it where there are replicas
    for name in ("tokenizer", "processor"):
        if hasattr(built, name):
            chats.prepare(getattr(built, name), config)
    if config.data.chat_template:  # lm-eval has taken the model's own when it was built, and would render by that
        built.hf_chat_template = built.tokenizer.chat_template
    return built


def _server(config: DictConfig, checkpoint: Path | str, limits: Limits, advance: Callable[[int], None]) -> Any:
    from bapo.engines.shared.models import chats
    from bapo.evaluation.server import ServerLM

    s = config.evaluation.server
    built = ServerLM(
        base_url=completions_url(s.base_url),
        model=s.model or str(checkpoint),
        tokenizer=str(checkpoint),
        revision=revision_of(config, checkpoint) or "main",
        limits=limits,
        num_concurrent=s.num_concurrent,
        timeout=s.timeout,
        max_attempts=s.max_attempts,
        advance=advance,
    )
    chats.prepare(built.tokenizer, config)
    return built
