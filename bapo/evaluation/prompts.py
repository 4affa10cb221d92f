"""Prompts as every backend gets them: through the chat template, counted, never cut."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bapo import seeds
from bapo.errors import UserError
from bapo.experiments.schema import Config

if TYPE_CHECKING:
    from transformers import ProcessorMixin

    from bapo.evaluation.tasks import Benchmark


@dataclass(frozen=True)
class Limits:
    """The tokens that a prompt and a response may have, and the model's context (None: unknown)."""

    prompt: int
    response: int
    context: int | None = None

    def check(self, benchmark: str, problem: str, count: int) -> None:
        """Raise UserError if a prompt of ``count`` tokens does not fit: lm-eval would cut it from the left."""
        name = f"{benchmark}: problem {problem} has a prompt of {count} tokens"
        if not 0 < count <= self.prompt:
            raise UserError(
                f"{name}, allowed are 1 to {self.prompt}; raise sampling.max_prompt_tokens (prompts are never "
                "truncated)"
            )
        if self.context is not None and count + self.response > self.context:
            raise UserError(
                f"{name}, which with sampling.max_response_tokens={self.response} exceeds the model's context of "
                f"{self.context}; lower sampling.max_response_tokens"
            )


def draw_key(seed: int, benchmark: str) -> int:
    """Return the key of an evaluation's random numbers; a problem and a sample add theirs."""
    return seeds.key64(seed, "evaluation", benchmark)


def check_all(config: Config, checkpoint: Path | str, benchmarks: Iterable[Benchmark]) -> None:
    """Check every prompt of every benchmark before a model is loaded.

    Raises UserError naming the first prompt that does not fit, or a checkpoint whose tokenizer cannot be loaded.
    """
    from transformers import AutoConfig, AutoTokenizer

    from bapo.engines.shared.models import chats, images, pretrained
    from bapo.engines.shared.prompts import chat

    pretrained.register(config)
    revision = revision_of(config, checkpoint)
    try:
        tokenizer = chats.prepare(AutoTokenizer.from_pretrained(checkpoint, revision=revision), config)
        model = AutoConfig.from_pretrained(checkpoint, revision=revision).get_text_config()
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{checkpoint}: no tokenizer and configuration can be loaded from it: {reason}") from error
    contexts = [getattr(model, "max_position_embeddings", None)]
    if config.evaluation.backend == "vllm":
        contexts.append(config.evaluation.vllm.max_model_len)
    context = min((c for c in contexts if c is not None), default=None)
    limits = Limits(config.sampling.max_prompt_tokens, config.sampling.max_response_tokens, context)
    processor = None
    for benchmark in benchmarks:
        texts = [
            chat(tokenizer, [{"role": "user", "content": p.prompt}], images=bool(p.images)) for p in benchmark.problems
        ]
        # the chat template has already placed whatever special tokens belong into a prompt
        tokens = tokenizer(texts, add_special_tokens=False)["input_ids"]
        for problem, own in zip(benchmark.problems, tokens, strict=True):
            count = len(own)
            if problem.images:
                processor = processor or images.load_processor(checkpoint, revision)
                count += image_tokens(processor, problem.images) - len(problem.images)
            limits.check(benchmark.task_name, problem.id, count)


def image_tokens(processor: ProcessorMixin, images: Iterable[bytes]) -> int:
    """Count the tokens that a Qwen2-VL or Qwen2.5-VL processor makes of these files, from their sizes alone."""
    from PIL import Image

    patches = 0
    for content in images:
        with Image.open(io.BytesIO(content)) as image:
            patches += processor.image_processor.get_number_of_image_patches(image.height, image.width, {})
    return patches // processor.image_processor.merge_size**2


def revision_of(config: Config, checkpoint: Path | str) -> str | None:
    """Return the commit to ask the hub for: ``model.revision``, or what the base job fetched; a folder has none."""
    from bapo.engines.shared.models import pretrained

    if isinstance(checkpoint, Path):
        return None
    return config.model.revision or (pretrained.fetched(config) if checkpoint == config.model.path else None)
