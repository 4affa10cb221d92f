"""Checks what is evaluated: a checkpoint in a folder or on the hub, and the prompts for it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bapo.errors import UserError, first_line
from bapo.experiments.schema import Config
from bapo.store.files import CHECKSUMS, MANIFEST, SUMMARY, damaged_checkpoint, sha256, verify_files

if TYPE_CHECKING:
    from bapo.evaluation.tasks import Benchmark


def revision_of(config: Config, checkpoint: Path | str) -> str | None:
    """Return the commit of a checkpoint on the hub, ``model.revision`` or that of the base job; None for a folder."""
    from bapo.engines.shared.models import pretrained

    if isinstance(checkpoint, Path):
        return None
    return config.model.revision or (pretrained.fetched(config) if checkpoint == config.model.path else None)


def checkpoint_digest(checkpoint: Path | str, revision: str | None = None) -> str:
    """Return the SHA-256 of the names and contents of the files in a checkpoint, without its folders.

    For a name on the hub it is ``name@revision``, which identifies as well if the revision is a commit. Raises
    UserError if there is no checkpoint, if it differs from its checksums, or if a name on the hub has no revision.
    """
    if isinstance(checkpoint, str):
        if not revision:
            raise UserError(
                f"{checkpoint}: no such folder, and on the hub a model may change: set model.revision to a commit of "
                "it, or name a local folder"
            )
        return f"{checkpoint}@{revision}"
    if not (checkpoint / "config.json").is_file():
        raise UserError(f"{checkpoint}: no checkpoint here (no config.json); train it first or correct the path")
    if problem := _damage(checkpoint.absolute()):
        raise UserError(f"{problem}; delete {checkpoint} and the {SUMMARY} of its run, and train the run again")
    files = sorted(p for p in checkpoint.iterdir() if p.is_file() and p.name != CHECKSUMS and p.name[0] != ".")
    return hashlib.sha256("".join(f"{p.name} {sha256(p)}\n" for p in files).encode()).hexdigest()


def _damage(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint by the checksums of training, or None; others' checkpoints have none."""
    if (checkpoint / CHECKSUMS).exists() or re.search(r"/checkpoints/step_\d+$", str(checkpoint)):
        return damaged_checkpoint(checkpoint, state=False)
    base = checkpoint.parent
    if checkpoint.name != "checkpoint" or not (base / MANIFEST).exists():
        return None
    return None if verify_files(base).get("files") else f"{base / SUMMARY} seals no files"


def check_prompts(config: Config, checkpoint: Path | str, benchmarks: Iterable[Benchmark]) -> None:
    """Check the length of every prompt before a model is loaded, because lm-eval would cut a long text from the left.

    A picture counts as one token here. vLLM itself refuses a prompt whose pictures do not fit, and both backends refuse
    a sequence that exceeds the model's context. Raises UserError naming the first prompt that does not fit, or a
    checkpoint whose tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer

    from bapo.engines.shared.models import chats, pretrained
    from bapo.engines.shared.prompts import chat, require_length

    pretrained.register(config)
    revision = revision_of(config, checkpoint)
    try:
        tokenizer = chats.prepare(AutoTokenizer.from_pretrained(checkpoint, revision=revision), config)
    except (OSError, ValueError) as error:
        raise UserError(f"{checkpoint}: no tokenizer can be loaded from it: {first_line(error)}") from error
    longest = config.sampling.max_prompt_tokens
    for benchmark in benchmarks:
        texts = [
            chat(tokenizer, [{"role": "user", "content": p.prompt}], images=bool(p.images)) for p in benchmark.problems
        ]
        # the chat template has already added the special tokens
        tokens = tokenizer(texts, add_special_tokens=False)["input_ids"]
        for problem, prompt in zip(benchmark.problems, tokens, strict=True):
            require_length(len(prompt), longest, f"{benchmark.task_name}: the prompt of problem {problem.id}")
