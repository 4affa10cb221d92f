"""Benchmarks asked in another way (``evaluation.asked``): another prompt, chat template, stop tokens and limits.

Their random numbers have their own names, so that the benchmarks' samples are the same with and without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig

from bapo import tasks
from bapo.errors import UserError
from bapo.evaluation.prompts import revision_of
from bapo.tasks.base import Problem
from bapo.tasks.files import read_problems
from bapo.tasks.tokenizers import CHAT_TEMPLATE


def groups(config: DictConfig, names: Sequence[str]) -> Iterator[tuple[DictConfig, list[str]]]:
    """Yield (configuration, names) of what one model can sample with the same settings: the benchmarks come first."""
    benchmarks = [name for name in names if name not in config.evaluation.asked]
    if benchmarks:
        yield config, benchmarks
    found: list[tuple[DictConfig, list[str]]] = []
    for name in (name for name in names if name in config.evaluation.asked):
        wanted = _configured(config, name)
        alike = next((group for other, group in found if other == wanted), None)
        if alike is None:
            found.append((wanted, [name]))
        else:
            alike.append(name)
    yield from found


def _configured(config: DictConfig, name: str) -> DictConfig:
    asked, changed = config.evaluation.asked[name], config.copy()
    changed.data.chat_template = asked.chat_template
    changed.sampling.stop_tokens = asked.stop_tokens
    changed.sampling.max_prompt_tokens = asked.max_prompt_tokens
    changed.sampling.max_response_tokens = asked.max_response_tokens
    return changed


def file_of(config: DictConfig, name: str) -> str:
    """Name the file whose problems are asked under ``name``."""
    asked = config.evaluation.asked.get(name)
    return f"{asked.of if asked else name}.parquet"


def problems(config: DictConfig, name: str, path: Path) -> list[Problem] | None:
    """Return the problems of a file as they are asked under ``name``; None where that is how they stand there."""
    asked = config.evaluation.asked.get(name)
    if asked is None:
        return None
    task = tasks.get(config.task.name)
    return [task.asked(problem, asked.prompt) for problem in read_problems(path)[: asked.problems]]


def require_template(config: DictConfig, checkpoint: Path | str, names: Sequence[str]) -> None:
    """Raise UserError where a model without a chat template of its own is to be asked in it.

    It would be asked in the plain one, which checkpoints of earlier versions hold, without a word.
    """
    settings = config.evaluation.asked
    own = [name for name in names if name in settings and settings[name].chat_template is None]
    if not own:
        return
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint, revision=revision_of(config, checkpoint))
    if tokenizer.chat_template in (None, CHAT_TEMPLATE):
        raise UserError(
            f"{checkpoint}: evaluation.asked.{own[0]} asks in the model's own chat template, and it has none; "
            f"if an earlier version trained it, train again, or leave the column out: evaluation.asked.{own[0]}=null"
        )
