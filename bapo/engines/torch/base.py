"""The base model of the small scales: supervised training from scratch on generated documents."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from bapo import config as configuration
from bapo import runs, seeds
from bapo.data import data_folder
from bapo.engines.torch import models
from bapo.errors import UserError
from bapo.progress import Progress


def train_base(config: DictConfig) -> dict[str, Any]:
    """Train the base model of ``config`` (or note the pretrained one) and write its folder. Returns the summary."""
    folder = configuration.base_directory(config)
    identity = configuration.base_identity(config)
    with runs.locked(folder):
        runs.set_aside(folder, identity)
        manifest = runs.start_manifest(folder, identity, data_identity=configuration.data_identity(config))
        runs.write_text(folder / runs.CONFIG, OmegaConf.to_yaml(config, resolve=True))
        if config.model.kind == "pretrained":
            summary = {"identity": identity, "model": config.model.path, "revision": config.model.revision, "files": {}}
        else:
            summary = {"identity": identity, **_train_scratch(config)}
            names = sorted(p.relative_to(folder) for p in (folder / "checkpoint").iterdir())
            summary["files"] = runs.fingerprints(folder, [str(n) for n in names])
        runs.write_json(folder / runs.SUMMARY, summary)
        runs.end_manifest(folder, manifest)
    return summary


def _train_scratch(config: DictConfig) -> dict[str, Any]:
    models.prepare_process(config.base.threads)
    device = models.device_of(config)
    base, folder = config.base, configuration.base_directory(config)
    model, tokenizer = models.build_scratch(config)
    runs.require_space(folder, 2 * 4 * models.parameter_count(model) + 5_000_000)
    model.to(device).train()
    buckets = _documents(config, tokenizer)
    shares = np.array([len(b[0]) for b in buckets], dtype=np.float64)
    shares /= shares.sum()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=base.learning_rate, betas=tuple(base.betas), weight_decay=base.weight_decay, fused=True
    )
    rng = seeds.generator(base.seed, "base batches")
    label = f"{config.task.name} {config.model.name} base"
    progress = Progress(label, base.iterations, unit="iteration")
    begun, losses = time.perf_counter(), []
    for iteration in range(base.iterations):
        # one bucket of equal lengths a batch: no padding
        ids, start = buckets[rng.choice(len(buckets), p=shares)]
        batch = torch.from_numpy(ids[rng.integers(0, len(ids), base.batch_size)]).to(device)
        warm = min(1.0, (iteration + 1) / max(1, base.warmup))
        for group in optimizer.param_groups:
            group["lr"] = base.learning_rate * warm * max(0.02, 1.0 - iteration / base.iterations)
        starts = torch.full((len(batch),), start, device=device)
        loss = -models.score(model, batch, starts, batch.shape[1] - start).logprobs.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), base.grad_clip)
        optimizer.step()
        losses.append(float(loss.detach()))
        progress.update(iteration + 1, f"loss {losses[-1]:.3f}")
    if not np.isfinite(losses[-1:]).all():
        raise UserError("base.learning_rate: the loss of the base model is not finite; lower it")
    temporary = folder / f".checkpoint.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    with runs.explained(temporary):
        models.save(model, tokenizer, temporary)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    os.replace(temporary, folder / "checkpoint")
    return {
        "iterations": base.iterations,
        "documents": base.iterations * base.batch_size,
        "final_loss": float(np.mean(losses[-50:])) if losses else None,
        "seconds": time.perf_counter() - begun,
        "parameters": models.parameter_count(model),
    }


def _documents(config: DictConfig, tokenizer: Any) -> list[tuple[np.ndarray, int]]:
    """Tokenised documents by shape: (ids int64 [n, L] with the end token, length of the prompt)."""
    path = data_folder(config) / "base.parquet"
    table = runs.read_table(path, ["prompt", "response"])
    prompts = tokenizer(table["prompt"].tolist(), add_special_tokens=False)["input_ids"]
    responses = tokenizer(table["response"].tolist(), add_special_tokens=False)["input_ids"]
    buckets: dict[tuple[int, int], list[list[int]]] = {}
    for prompt, response in zip(prompts, responses, strict=True):
        buckets.setdefault((len(prompt), len(response)), []).append([*prompt, *response, tokenizer.eos_token_id])
    if not buckets:
        raise UserError(f"{path}: no documents in it; make the data again with `python -m bapo data`")
    return [(np.array(rows, dtype=np.int64), start) for (start, _), rows in sorted(buckets.items())]
