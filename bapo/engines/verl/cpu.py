"""verl on CPU cores: a rollout server with a Hugging Face model, and training workers on gloo. See ``plugin.py``.

The server asserts what vLLM needs on a GPU: it sleeps before a push, with no response under way, and then has no
weights.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from transformers import PreTrainedModel
from verl.utils import model as verl_model
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from bapo.algorithm.rollouts import Samples
from bapo.engines.shared.models import end_tokens
from bapo.engines.shared.models.images import Images, reads_images
from bapo.engines.shared.sampling import SamplingParameters, sample
from bapo.engines.verl.critic import CriticWorker
from bapo.engines.verl.images import prepare
from bapo.engines.verl.worker import MethodWorker
from bapo.store.files import Json


@dataclass
class GenerationRequest:
    """Asks for one response.

    tokens: of the prompt, and of the beginning of a response that is continued
    parameters: how tokens are drawn, and when the response ends
    key, prompt_key, sample: what its random numbers depend on, as in the torch engine
    images: of the prompt
    result: receives the response and the version of the weights
    """

    tokens: list[int]
    parameters: SamplingParameters
    key: int
    prompt_key: int
    sample: int
    images: Images | None
    result: asyncio.Future


def generate(model: PreTrainedModel, requests: list[GenerationRequest], max_rows: int) -> list[Samples]:
    """Return one response to each request. Requests are batched by sampling parameters and key.

    max_rows: the most responses at once. With 1, the bits do not depend on which requests arrived together.
    """
    groups: dict[tuple[SamplingParameters, int], list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        groups[request.parameters, request.key].append(index)
    answers: dict[int, Samples] = {}
    for (parameters, key), indices in groups.items():
        batch = [requests[i] for i in indices]
        keys, numbers = np.array([r.prompt_key for r in batch], dtype=np.uint64), [r.sample for r in batch]
        images = [r.images for r in batch] if any(r.images for r in batch) else None
        tokens = [r.tokens for r in batch]
        samples = sample(model, tokens, 1, keys, key, parameters, max_rows, first_sample=numbers, images=images)
        answers |= dict(zip(indices, samples, strict=True))
    return [answers[i] for i in range(len(requests))]


class RolloutServer:
    """Answers requests with tokens as a Ray actor, in batches of those that arrive together."""

    def __init__(self, config: Any, model_config: Any) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self.config, self.model_config = omega_conf_to_dataclass(config), omega_conf_to_dataclass(model_config)
        # weights come from the trainer before the first request
        hf_config = self.model_config.hf_config
        family = AutoModelForImageTextToText if reads_images(hf_config) else AutoModelForCausalLM
        self.model = family.from_config(hf_config, attn_implementation="sdpa").to(torch.float32).eval()
        self.tokenizer, self.processor = self.model_config.tokenizer, self.model_config.processor
        self.version: int | None = None
        self.waiting: list[GenerationRequest] = []
        self.arrived = asyncio.Event()
        self.loaded = False  # whether weights have come since they were last thrown away
        self.under_way = 0
        self.loop: asyncio.Task | None = None

    async def ready(self) -> None:
        self.loop = self.loop or asyncio.create_task(self._serve())

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: Json,
        request_id: str,
        image_data: list[Any] | None = None,
        **_: object,
    ) -> TokenOutput:
        """Answer one request, as verl's vLLM server does.

        Args:
            prompt_ids: tokens of the prompt, and of the beginning of a response that is continued
            sampling_params: those of vLLM, and "draw": the key, the key of the prompt and the number of the response
            request_id: of verl's interface, not read
            image_data: the pictures of the prompt
        """
        assert self.loaded, "the rollout engine sleeps, or lost its weights"
        prompt, p = [int(t) for t in prompt_ids], sampling_params
        limit, ends = p.get("max_tokens", self.config.response_length), p.get("stop_token_ids", ())
        ends = dict.fromkeys((*end_tokens(self.tokenizer, self.model_config.generation_config), *ends))
        parameters = SamplingParameters(p["temperature"], p["top_p"], p["top_k"], limit, tuple(ends))
        images = prepare(self.processor, list(image_data or []))
        result = asyncio.get_running_loop().create_future()
        key, prompt_key, sample_number = p["draw"]
        self.waiting.append(GenerationRequest(prompt, parameters, key, prompt_key, sample_number, images, result))
        self.arrived.set()
        self.under_way += 1
        try:
            samples, version = await result
        finally:
            self.under_way -= 1
        tokens = samples.tokens[0, : samples.lengths[0]].tolist()
        return TokenOutput(
            token_ids=tokens,
            log_probs=samples.logprobs[0, : samples.lengths[0]].tolist(),
            stop_reason="completed" if tokens[-1] in parameters.eos_ids else "length",
            extra_fields={"global_steps": version},
        )

    async def _serve(self) -> None:
        while True:
            await self.arrived.wait()
            await asyncio.sleep(0.02)  # more requests may follow
            batch, self.waiting = self.waiting, []
            self.arrived.clear()
            try:
                answers = await asyncio.to_thread(generate, self.model, batch, self.config.max_num_seqs)
            except Exception as error:
                for request in batch:
                    request.result.set_exception(error)
                continue
            for request, answer in zip(batch, answers, strict=True):
                request.result.set_result((answer, self.version))

    async def load_weights(self, weights: dict[str, torch.Tensor], version: int | None) -> None:
        assert not self.loaded, "weights were pushed to a rollout engine that is awake"
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
        assert not unexpected and set(missing) <= tied, (missing, unexpected)
        self.version, self.loaded = version, True

    async def set_global_steps(self, version: int) -> None:
        self.version = version

    async def sleep(self) -> None:
        assert not self.under_way, f"the rollout engine is to sleep while {self.under_way} responses are under way"
        self.loaded = False
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(torch.nan)

    async def _nothing(self, *_: object, **__: object) -> None:
        """Do nothing for a call of verl's interface that has no meaning here."""

    wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    abort_all_requests = resume_generation = start_profile = stop_profile = _nothing


def server_name(rank: int, suffix: str = "") -> str:
    return f"bapo_cpu_server_{rank}{suffix}"


class Replica(RolloutReplica):
    """Starts the server of a replica."""

    async def launch_servers(self) -> None:
        name = server_name(self.replica_rank, self.name_suffix)
        # no CPU is reserved for the server, because Ray has only as many as vLLM needs, and would wait for ever
        options = {"name": name, "max_concurrency": self.max_concurrency, "num_cpus": 0}
        server = ray.remote(RolloutServer).options(**options).remote(self.config, self.model_config)
        await server.ready.remote()
        self.servers, self._server_handle, self._server_address = [server], server, name


class Adapter(BaseRollout):
    """Pushes the weights of the training worker that holds it to the server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: dist.DeviceMesh, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        size = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        rank = int(os.environ.get("RANK", 0))
        self.replica_rank = rank // size if replica_rank == -1 else replica_rank
        self.leads = rank % size == 0

    async def resume(self, tags: list[str]) -> None:
        await self._call("wake_up", tags)

    async def release(self) -> None:
        await self._call("sleep")

    async def _call(self, method: str, *arguments: object) -> None:
        """Call the server, once for all ranks that share it."""
        if self.leads:
            await getattr(ray.get_actor(server_name(self.replica_rank)), method).remote(*arguments)

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", global_steps: int | None = None, **_: object
    ) -> None:
        full = {n: (w.full_tensor() if hasattr(w, "full_tensor") else w).detach().cpu() for n, w in weights}
        await self._call("load_weights", full, global_steps)


class CPUEngine(FSDPEngineWithLMHead):
    """Runs the plain module in one process, and verl's FSDP2 on a gloo mesh in several."""

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        if dist.get_world_size() == 1:
            self._autocast_dtype, self.scaler = torch.float32, None
            if self.engine_config.forward_only:
                self._is_offload_param = self._is_offload_optimizer = False
            return module
        return super()._build_fsdp_module(module)


def load_value_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> PreTrainedModel:
    """Load a model with one label, in place of verl's ``load_valuehead_model``, which requires flash attention.

    The arguments are those of verl's function, of which ``trust_remote_code`` is not read.
    """
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, attn_implementation="sdpa"
    )


class CPUValueEngine(CPUEngine, FSDPEngineWithValueHead):
    """Runs a model with a head of values in the same way."""


verl_model.load_valuehead_model = load_value_model
# verl would offload models without gradient to pinned memory, which needs an accelerator
transformer_impl.CPUOffloadPolicy = lambda pin_memory=True: None
for _kind, _engine in (("language_model", CPUEngine), ("value_model", CPUValueEngine)):
    for _backend in ("fsdp", "fsdp2"):
        EngineRegistry._engines[_kind][_backend].setdefault("cpu", _engine)


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
    actor_worker_cls = ref_worker_cls = CPUTrainingWorker


class CPUCriticWorker(CriticWorker, CPUTrainingWorker):
    """Trains the critic on CPU cores."""
