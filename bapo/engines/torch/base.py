"""The base model of the small scales: supervised training from scratch on generated documents."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from bapo import seeds, tasks
from bapo.engines.shared import images, models, pretrained
from bapo.errors import UserError
from bapo.experiments.identity import base_identity, data_identity
from bapo.experiments.places import base_directory
from bapo.store.files import CONFIG, SUMMARY, explained, fingerprints, read_table, require_space, write_json, write_text
from bapo.store.lock import locked, set_aside
from bapo.store.manifest import end_manifest, start_manifest
from bapo.store.progress import Progress
from bapo.tasks.job import data_folder


def train_base(config: DictConfig) -> dict[str, Any]:
    """Train the base model of ``config`` (or fetch the pretrained one) and write its folder. Returns the summary."""
    folder = base_directory(config)
    identity = base_identity(config)
    with locked(folder):
        set_aside(folder, identity)
        manifest = start_manifest(folder, identity, data_identity=data_identity(config))
        write_text(folder / CONFIG, OmegaConf.to_yaml(config, resolve=True))
        if config.model.kind == "pretrained":
            summary = {"identity": identity, **pretrained.fetch(config)}
        else:
            summary = {"identity": identity, **_train_scratch(config)}
            names = sorted(p.relative_to(folder) for p in (folder / "checkpoint").iterdir())
            summary["files"] = fingerprints(folder, [str(n) for n in names])
        write_json(folder / SUMMARY, summary)
        end_manifest(folder, manifest)
    return summary


def _train_scratch(config: DictConfig) -> dict[str, Any]:
    models.prepare_process(config.base.threads)
    device = models.device_of(config)
    base, folder = config.base, base_directory(config)
    model, tokenizer = models.build_scratch(config)
    require_space(folder, 2 * 4 * models.parameter_count(model) + 5_000_000)
    model.to(device).train()
    processor = tasks.get(config.task.name).build_processor(config, tokenizer)
    buckets = _documents(config, tokenizer, processor)
    shares = np.array([len(b.ids) for b in buckets], dtype=np.float64)
    shares /= shares.sum()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=base.learning_rate, betas=tuple(base.betas), weight_decay=base.weight_decay, fused=True
    )
    rng = seeds.generator(base.seed, "base batches")
    label = f"{config.task.name} {config.model.name} base"
    progress = Progress(label, base.iterations, unit="iteration")
    begun, losses = time.perf_counter(), []
    for iteration in range(base.iterations):
        # one bucket of equal lengths a batch: no padding
        bucket = buckets[rng.choice(len(buckets), p=shares)]
        chosen, start = rng.integers(0, len(bucket.ids), base.batch_size), bucket.start
        batch = torch.from_numpy(bucket.ids[chosen]).to(device)
        warm = min(1.0, (iteration + 1) / max(1, base.warmup))
        for group in optimizer.param_groups:
            group["lr"] = base.learning_rate * warm * max(0.02, 1.0 - iteration / base.iterations)
        starts = torch.full((len(batch),), start, device=device)
        pictures = [bucket.images[i] for i in chosen] if bucket.images else None
        lengths = torch.full_like(starts, batch.shape[1] - start)
        scored = models.score(model, batch, starts, batch.shape[1] - start, lengths=lengths, pictures=pictures)
        loss = -scored.logprobs.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, base.grad_clip)
        optimizer.step()
        losses.append(float(loss.detach()))
        progress.update(iteration + 1, f"loss {losses[-1]:.3f}")
    if not np.isfinite(losses[-1:]).all():
        raise UserError("base.learning_rate: the loss of the base model is not finite; lower it")
    temporary = folder / f".checkpoint.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    with explained(temporary):
        models.save(model, processor or tokenizer, temporary)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    os.replace(temporary, folder / "checkpoint")
    return {
        "iterations": base.iterations,
        "documents": base.iterations * base.batch_size,
        "final_loss": float(np.mean(losses[-50:])) if losses else None,
        "seconds": time.perf_counter() - begun,
        "parameters": models.parameter_count(model),
    }


@dataclass
class Bucket:
    """Documents of one shape. ids: int64 [n, L] with the end token; start: the length of their prompts; images: of each
    document's prompt, empty for text."""

    ids: np.ndarray
    start: int
    images: list[images.Images]


def _documents(config: DictConfig, tokenizer: Any, processor: Any | None) -> list[Bucket]:
    """Return tokenised documents by shape."""
    path = data_folder(config) / "base.parquet"
    table = read_table(path)
    images_of: list[Any] = []
    if "images" in table:
        if processor is None:
            raise UserError(f"{path}: the documents have images, which model={config.model.name} cannot read")
        texts = [
            tokenizer.apply_chat_template(images.to_messages([{"role": "user", "content": text}]), tokenize=False)
            for text in table["prompt"]
        ]
        prepared = images.prepare(processor, texts, [[i["bytes"] for i in each] for each in table["images"]])
        prompts, images_of = [tokens for tokens, _ in prepared], [pictures for _, pictures in prepared]
    else:
        prompts = tokenizer(table["prompt"].tolist(), add_special_tokens=False)["input_ids"]
    responses = tokenizer(table["response"].tolist(), add_special_tokens=False)["input_ids"]
    buckets: dict[tuple[int, int], Bucket] = {}
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        bucket = buckets.setdefault((len(prompt), len(response)), Bucket([], len(prompt), []))
        bucket.ids.append([*prompt, *response, tokenizer.eos_token_id])
        bucket.images += images_of[row : row + 1]
    if not buckets:
        raise UserError(f"{path}: no documents in it; make the data again with `python -m bapo data`")
    ordered = [bucket for _, bucket in sorted(buckets.items(), key=lambda item: item[0])]
    return [Bucket(np.array(b.ids, dtype=np.int64), b.start, b.images) for b in ordered]
