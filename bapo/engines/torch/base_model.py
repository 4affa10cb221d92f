"""The base model of the small scales: the suite's own weights, or supervised training on generated documents."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_model

from bapo import seeds, tasks
from bapo.engines.shared import models
from bapo.engines.shared.models import images, pretrained
from bapo.engines.shared.prompts import WORDS
from bapo.errors import UserError
from bapo.experiments.identity import Shipped, base_identity, data_identity, shipped_base
from bapo.experiments.places import base_directory
from bapo.experiments.schema import Config
from bapo.store.files import CONFIG, SUMMARY, fingerprints, sha256, write_json, write_text
from bapo.store.lock import locked, set_aside
from bapo.store.progress import Progress
from bapo.store.provenance import end_manifest, start_manifest
from bapo.tasks.base import Document

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from bapo.store.files import Json


def train_base(config: Config) -> Json:
    """Write the folder of a base model: the suite's weights, weights trained here, or a pretrained model's record.

    Returns the summary. Raises UserError where the suite's file is damaged, the loss is not finite, or the hub does not
    have the model.
    """
    folder = base_directory(config)
    identity = base_identity(config)
    with locked(folder):
        set_aside(folder, identity)
        manifest = start_manifest(folder, identity, data_identity=data_identity(config))
        write_text(folder / CONFIG, config.yaml())
        if config.model.kind == "pretrained":
            summary = {"identity": identity, **pretrained.fetch(config)}
        else:
            models.prepare_process(config.base.threads)
            shipped = shipped_base(config)
            record = _copy_shipped(config, shipped) if shipped else _train_scratch(config)
            summary = {"identity": identity, **record}
            names = sorted(p.relative_to(folder) for p in (folder / "checkpoint").iterdir())
            summary["files"] = fingerprints(folder, [str(n) for n in names])
        write_json(folder / SUMMARY, summary)
        end_manifest(folder, manifest)
    return summary


def _copy_shipped(config: Config, shipped: Shipped) -> Json:
    """Write the weights that come with the suite as a checkpoint. Raises UserError where their file is not whole."""
    if not shipped.path.is_file() or sha256(shipped.path) != shipped.sha256:
        raise UserError(f"{shipped.path}: missing or damaged; restore it from the repository, or add base.source=train")
    model, tokenizer = models.build_scratch(config)
    load_model(model, shipped.path)  # the float16 values take the model's own type
    _save(config, model, tokenizer)
    print(f"{config.model.title}: the base model that comes with the suite, {shipped.path.name}", file=sys.stderr)
    return {"weights": shipped.sha256, "parameters": model.num_parameters()}


def _train_scratch(config: Config) -> Json:
    device = models.device_of(config)
    base = config.base
    model, tokenizer = models.build_scratch(config)
    torch.nn.Module.to(model, device).train()
    buckets = _buckets(config, draw_documents(config), tokenizer)
    shares = np.array([len(b.ids) for b in buckets], dtype=np.float64)
    shares /= shares.sum()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters,
        lr=base.learning_rate,
        betas=(base.betas[0], base.betas[1]),
        weight_decay=base.weight_decay,
        fused=True,
    )
    rng = seeds.generator(base.seed, "base batches")
    label = f"{config.task.name} {config.model.name} base"
    progress = Progress(label, base.iterations, unit="iteration")
    start_time, losses = time.perf_counter(), []
    for iteration in range(base.iterations):
        # a batch comes from one bucket, whose documents are equally long: it needs no padding
        bucket = buckets[rng.choice(len(buckets), p=shares)]
        members, start = rng.integers(0, len(bucket.ids), base.batch_size), bucket.start
        batch = torch.from_numpy(bucket.ids[members]).to(device)
        warm = min(1.0, (iteration + 1) / max(1, base.warmup))
        for group in optimizer.param_groups:
            group["lr"] = base.learning_rate * warm * max(0.02, 1.0 - iteration / base.iterations)
        starts = torch.full((len(batch),), start, device=device)
        pictures = [bucket.images[i] for i in members] if bucket.images else None
        lengths = torch.full_like(starts, batch.shape[1] - start)
        scored = models.score(model, batch, starts, batch.shape[1] - start, lengths=lengths, pictures=pictures)
        loss = -scored.logprobs.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, base.grad_clip)
        optimizer.step()
        losses.append(float(loss.detach()))
        progress.add(1, f"loss {losses[-1]:.3f}")
    if not np.isfinite(losses[-1:]).all():
        raise UserError("base.learning_rate: the loss of the base model is not finite; lower it")
    _save(config, model, tokenizer)
    return {
        "iterations": base.iterations,
        "documents": base.iterations * base.batch_size,
        "final_loss": float(np.mean(losses[-50:])) if losses else None,
        "seconds": time.perf_counter() - start_time,
        "parameters": model.num_parameters(),
    }


def _save(config: Config, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a checkpoint into the base model's folder, whole or not at all."""
    folder = base_directory(config)
    processor = images.scratch_processor(config, tokenizer)
    temporary: Path = folder / f".checkpoint.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    models.save(model, processor or tokenizer, temporary)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    os.replace(temporary, folder / "checkpoint")


@dataclass
class Bucket:
    """Holds documents of one shape.

    ids: int64 [n, L], with the end token
    start: the length of their prompts
    images: of each document's prompt, empty for text
    """

    ids: np.ndarray
    start: int
    images: list[images.Images | None]


def draw_documents(config: Config) -> list[Document]:
    """Return the documents that the base model of ``config`` is trained on.

    Raises UserError where the configuration asks for none, or the task cannot draw so many.
    """
    task = tasks.get(config.task.name)
    if not config.data.split_sizes.get("base"):
        raise UserError("data.split_sizes.base: a base model is trained on at least one document; say how many")
    documents, counts = task.documents(config.data, seeds.generator(config.data.seed, task.name, "base"))
    print(f"base documents: {', '.join(f'{n} {kind}' for kind, n in counts.items())}", file=sys.stderr)
    return documents


def _buckets(config: Config, documents: list[Document], tokenizer: PreTrainedTokenizerBase) -> list[Bucket]:
    """Return tokenised documents by shape. Raises UserError for a prompt or response without a token."""
    images_of: list[images.Images | None] = []
    if any(d.images for d in documents):
        processor = images.scratch_processor(config, tokenizer)
        assert processor is not None
        chats = [images.to_messages([{"role": "user", "content": d.prompt}]) for d in documents]
        texts = [str(tokenizer.apply_chat_template(messages, tokenize=False)) for messages in chats]
        prepared = images.prepare(processor, texts, [list(d.images) for d in documents])
        prompts, images_of = [tokens for tokens, _ in prepared], [pictures for _, pictures in prepared]
    else:
        prompts = tokenizer([d.prompt for d in documents], add_special_tokens=False)["input_ids"]
    responses = tokenizer([d.response for d in documents], add_special_tokens=False)["input_ids"]
    shapes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if not (prompt and response):
            part = "response" if prompt else "prompt"
            raise UserError(f"data.split_sizes.base: the {part} of document {documents[row].id} has {WORDS}")
        shapes[len(prompt), len(response)].append(row)
    return [
        Bucket(
            np.array([[*prompts[r], *responses[r], tokenizer.eos_token_id] for r in rows], dtype=np.int64),
            start,
            [images_of[r] for r in rows] if images_of else [],
        )
        for (start, _), rows in sorted(shapes.items())
    ]
