"""A transfer of weights to a worker of real vLLM, which takes them, then fails, then dies. No Ray."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.vllm_cpu import needs_vllm

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "bapo.engines.verl.plugin")
pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

from support.late import LATE
from test_verl_transfer import SOON, send

if LATE:
    import torch


pytestmark = [pytest.mark.slow, needs_vllm]

PROMPT, NEW = [5, 6, 7, 8], 6


def test_vllm_takes_weights_and_its_failure_and_its_death_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GB
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # as from a Ray actor: verl's plug-in is imported anew
    monkeypatch.setenv("VERL_RAY_JOB_ID", f"test{os.getpid()}")
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
        architectures=["Qwen2ForCausalLM"],
    )
    config.save_pretrained(tmp_path)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).eval()
    asyncio.run(transfers(tmp_path, model))


async def transfers(folder: Path, model: Any) -> None:
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from bapo.engines.verl.transfer.server import Server

    server = Server.__new__(Server)
    server.node_rank = 0
    server.engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(folder),
            load_format="dummy",  # as verl starts it
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="float32",
            max_model_len=32,
            max_num_seqs=4,
            gpu_memory_utilization=0.2,
            worker_extension_cls="support.failing_transfer.FailingThenDying",
        )
    )
    loop = asyncio.get_running_loop()

    def look() -> None:
        asyncio.run_coroutine_threadsafe(server.check_health(), loop).result(SOON)

    async def transfer() -> None:
        """What a training worker does: ask the server, send, and wait for the server."""
        rpc = asyncio.ensure_future(server.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": True}))
        handle = f"ipc:///tmp/rl-colocate-zmq-{os.environ['VERL_RAY_JOB_ID']}-replica-0-rank-0.sock"
        try:
            await asyncio.to_thread(send, handle, look, model.state_dict())
        finally:
            told.append(rpc)
        await rpc

    told: list[asyncio.Future] = []
    try:
        begun = time.monotonic()
        await transfer()
        print(f"\ntaken in {time.monotonic() - begun:.1f} s", end="")
        await server.clear_kv_cache()
        asked = SamplingParams(temperature=0.0, max_tokens=NEW, logprobs=0, detokenize=False)
        async for output in server.engine.generate({"prompt_token_ids": PROMPT}, asked, "one"):
            (answer,) = output.outputs
        tokens = list(answer.token_ids)
        with torch.no_grad():
            own = model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
        found = torch.tensor([entry[token].logprob for token, entry in zip(tokens, answer.logprobs, strict=True)])
        gap = (own.gather(1, torch.tensor(tokens)[:, None])[:, 0] - found).abs().max()
        print(f"\nlog-probabilities differ by {gap:.1e} at most", end="")
        assert gap < 1e-5 and own.argmax(1).tolist() == tokens

        begun = time.monotonic()
        with pytest.raises(RuntimeError, match="could not take the weights: ValueError: these weights are bad"):
            await transfer()
        print(f"\nfailure told in {time.monotonic() - begun:.1f} s", end="")
        with pytest.raises(Exception, match="these weights are bad"):  # the call of the server fails with it, too
            await asyncio.wait_for(told[-1], SOON)

        begun = time.monotonic()
        with pytest.raises(Exception) as died:
            await transfer()
        print(f"\ndeath told in {time.monotonic() - begun:.1f} s", end="")
        assert type(died.value).__name__ == "EngineDeadError"
        await asyncio.wait({told[-1]}, timeout=SOON)
        assert told[-1].done() and told[-1].exception()
    finally:
        server.engine.shutdown()
