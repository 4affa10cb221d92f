"""A rollout server for verl: one Hugging Face model in a Ray actor, sampled with the torch engine's sampler."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from bapo.engines.shared.models.images import Images, reads_images
from bapo.engines.shared.prompts import parameters_of
from bapo.engines.shared.sampling import SamplingParameters, sample
from bapo.engines.verl.cpu import strict
from bapo.engines.verl.cpu.sleeping import CACHE, WEIGHTS, Sleeper
from bapo.engines.verl.images import prepared


@dataclass
class Request:
    """One response to generate. key, prompt_key, sample: what its random numbers depend on, as in the torch engine.

    images: the prompt's, prepared, where there are any.
    """

    tokens: list[int]
    parameters: SamplingParameters
    key: int
    prompt_key: int
    sample: int
    images: Images | None
    result: asyncio.Future


def generate(model: Any, requests: list[Request]) -> list[tuple[list[int], list[float]]]:
    """Return (tokens, log-probabilities) for each request, batched by sampling parameters, key and sample number."""
    together: dict[tuple[SamplingParameters, int, int], list[int]] = defaultdict(list)
    for place, request in enumerate(requests):
        together[request.parameters, request.key, request.sample].append(place)
    answers: list[Any] = [None] * len(requests)
    for (parameters, key, number), places in together.items():
        chosen = [requests[i] for i in places]
        keys = np.array([r.prompt_key for r in chosen], dtype=np.uint64)
        images = [r.images for r in chosen] if any(r.images for r in chosen) else None
        drawn = sample(model, [r.tokens for r in chosen], 1, keys, key, parameters, first_sample=number, images=images)
        for place, samples in zip(places, drawn, strict=True):
            n = int(samples.lengths[0])
            answers[place] = (samples.tokens[0, :n].tolist(), samples.logprobs[0, :n].tolist())
    return answers


class Server:
    """Ray actor: tokens in, tokens out, requests gathered into batches. As strict as vLLM about sleep."""

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
        self.waiting: list[Request] = []
        self.arrived = asyncio.Event()
        self.busy = asyncio.Lock()
        self.sleeper, self.under_way = Sleeper(), 0
        self.loop: asyncio.Task | None = None

    async def ready(self) -> bool:
        self.loop = self.loop or asyncio.create_task(self._serve())
        return True

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        **_: Any,
    ) -> TokenOutput:
        self.sleeper.generate()
        tokens = [int(t) for t in prompt_ids]
        p = self._checked(tokens, sampling_params)
        parameters = parameters_of(
            self.tokenizer,
            temperature=float(p.get("temperature", 1.0)),
            top_p=float(p.get("top_p", 1.0)),
            top_k=int(p.get("top_k", -1)),
            max_tokens=int(p["max_tokens"]),
            generation=self.model_config.generation_config,
        )
        ends = dict.fromkeys((*parameters.eos_ids, *map(int, p.get("stop_token_ids") or ())))
        parameters = replace(parameters, eos_ids=tuple(ends))
        key, prompt_key, number = p["draw"]
        result = asyncio.get_running_loop().create_future()
        images = prepared(self.processor, list(image_data or []))
        self.waiting.append(Request(tokens, parameters, key, prompt_key, number, images, result))
        self.arrived.set()
        self.under_way += 1
        try:
            tokens, logprobs, version = await result
        finally:
            self.under_way -= 1
        ended = bool(tokens) and tokens[-1] in parameters.eos_ids
        return TokenOutput(
            token_ids=tokens,
            log_probs=logprobs if p.get("logprobs") else None,
            stop_reason="completed" if ended else "length",
            extra_fields={"global_steps": version},
        )

    def _checked(self, prompt: list[int], parameters: dict[str, Any]) -> dict[str, Any]:
        limit = self.config.max_model_len or self.config.prompt_length + self.config.response_length
        p = {**parameters, "max_tokens": parameters.get("max_tokens", self.config.response_length)}
        strict.check(prompt, p, limit, self.model.get_input_embeddings().num_embeddings)
        return p

    async def _serve(self) -> None:
        while True:
            await self.arrived.wait()
            await asyncio.sleep(0.02)  # more requests may follow
            batch, self.waiting = self.waiting, []
            self.arrived.clear()
            async with self.busy:
                try:
                    answers = await asyncio.to_thread(generate, self.model, batch)
                except Exception as error:
                    for request in batch:
                        request.result.set_exception(error)
                    continue
                for request, answer in zip(batch, answers, strict=True):
                    request.result.set_result((*answer, self.version))

    async def load_weights(self, named: dict[str, torch.Tensor], version: int | None) -> None:
        self.sleeper.push()
        async with self.busy:
            missing, unexpected = self.model.load_state_dict(named, strict=False)
            tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
            if unexpected or set(missing) - tied:
                raise RuntimeError(f"weights do not fit the rollout model: missing {missing}, unexpected {unexpected}")
            self.version = version

    async def set_global_steps(self, version: int) -> None:
        self.version = version

    async def _nothing(self, *_: Any, **__: Any) -> None:
        """Part of verl's interface, without a use here."""

    async def sleep(self) -> None:
        self.sleeper.sleep(self.under_way)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(torch.nan)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        self.sleeper.wake(tags or [WEIGHTS, CACHE])

    clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    abort_all_requests = resume_generation = start_profile = stop_profile = _nothing


def server_name(rank: int, suffix: str = "") -> str:
    return f"bapo_cpu_server_{rank}{suffix}"


class Replica(RolloutReplica):
    """Starts the server."""

    async def launch_servers(self) -> None:
        name = server_name(self.replica_rank, self.name_suffix)
        options = {"name": name, "max_concurrency": self.max_concurrency, "num_cpus": 1}
        server = ray.remote(Server).options(**options).remote(self.config, self.model_config)
        await server.ready.remote()
        self.servers, self._server_handle, self._server_address = [server], server, name


class Adapter(BaseRollout):
    """Lives in the training worker and pushes its weights to the server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        size = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        rank = int(os.environ.get("RANK", 0))
        self.replica_rank = rank // size if replica_rank == -1 else replica_rank
        self.leads = rank % size == 0
        self.server: Any = None

    async def resume(self, tags: list[str]) -> None:
        await self._tell("wake_up", tags)

    async def release(self) -> None:
        await self._tell("sleep")

    async def _tell(self, method: str, *arguments: Any) -> None:
        """Call the server, once for all ranks that share it."""
        if self.leads:
            self.server = self.server or ray.get_actor(server_name(self.replica_rank))
            await getattr(self.server, method).remote(*arguments)

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", global_steps: int | None = None, **_: Any
    ) -> None:
        named = {n: (w.full_tensor() if hasattr(w, "full_tensor") else w).detach().cpu() for n, w in weights}
        await self._tell("load_weights", named, global_steps)
