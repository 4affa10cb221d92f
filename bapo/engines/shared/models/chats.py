"""How a prompt becomes a conversation in the model's own template, and which tokens end the model's turn.

``data.chat_template``, ``data.system`` and ``data.chat_template_kwargs`` hold wherever a tokenizer or a processor of
the run renders messages: in both engines, in lm-eval's models and in verl's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase, ProcessorMixin

from bapo.errors import UserError
from bapo.experiments.schema import Config
from bapo.store.files import Json
from bapo.tasks.generated import CHAT_TEMPLATE
from bapo.validate import plain

#: attribute of a tokenizer: the ids of sampling.stop_tokens
ENDS = "more_end_ids"
#: attribute of a tokenizer that renders by another template: the one that the model came with
OWN = "own_chat_template"


def prepare(tokenizer: Any, config: Config) -> Any:
    """Have a tokenizer, or a processor, render messages as ``config.data`` says; returns it.

    A tokenizer also learns the ids of ``sampling.stop_tokens``. Raises UserError for one that is no token of it.
    """
    if config.data.chat_template == "plain":
        setattr(tokenizer, OWN, getattr(tokenizer, OWN, tokenizer.chat_template))
        tokenizer.chat_template = CHAT_TEMPLATE
    style = (config.data.system, plain(config.data.chat_template_kwargs))
    render = tokenizer.apply_chat_template
    if style != (None, {}) and not (isinstance(render, partial) and render.func is _render):
        tokenizer.apply_chat_template = partial(_render, render, *style)
    if config.sampling.stop_tokens and hasattr(tokenizer, "convert_tokens_to_ids"):
        setattr(tokenizer, ENDS, stop_ids(tokenizer, config))
    return tokenizer


@contextmanager
def own_template(tokenizer: PreTrainedTokenizerBase | ProcessorMixin) -> Iterator[None]:
    """Give a prepared tokenizer the template that the model came with: a checkpoint may be asked in other ways, too."""
    current = tokenizer.chat_template
    tokenizer.chat_template = getattr(tokenizer, OWN, current)
    try:
        yield
    finally:
        tokenizer.chat_template = current


def stop_ids(tokenizer: PreTrainedTokenizerBase, config: Config) -> list[int]:
    """Return the ids of ``sampling.stop_tokens``, names or texts. Raises UserError for a text that is not one token."""
    known, ids = tokenizer.get_vocab(), []
    for token in config.sampling.stop_tokens:
        written = [known[token]] if token in known else tokenizer(token, add_special_tokens=False)["input_ids"]
        if len(written) != 1:
            special = ", ".join(sorted(map(str, tokenizer.all_special_tokens)))
            raise UserError(
                f"sampling.stop_tokens={token}: no token of model={config.model.name}; its special tokens: {special}"
            )
        ids.append(int(written[0]))
    return ids


def more_ends(tokenizer: PreTrainedTokenizerBase) -> Sequence[int]:
    """Return the ids of ``sampling.stop_tokens`` that a prepared tokenizer knows."""
    return getattr(tokenizer, ENDS, ())


def turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the token that the template puts behind a model's turn; None where it puts none there."""
    said = "Yes"
    turns = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": said}]
    text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    behind = text[text.rindex(said) + len(said) :].lstrip()
    ids = tokenizer(behind, add_special_tokens=False)["input_ids"] if behind else []
    return int(ids[0]) if ids and ids[0] in tokenizer.all_special_ids else None


def warning(tokenizer: PreTrainedTokenizerBase, ends: Sequence[int]) -> str | None:
    """Say so where what ends a turn in the template ends no response: it would run on to its limit."""
    end = turn_end(tokenizer)
    if end is None or end in ends:
        return None
    token = tokenizer.decode([end])
    return (
        f"warning: the chat template ends a turn with {token}, which ends no response here; if the model writes it, "
        f"set 'sampling.stop_tokens=[\"{token}\"]'"
    )


def _render(
    render: Callable[..., object], system: str | None, options: Json, messages: Any, *rest: object, **more: object
) -> object:
    """Render ``messages`` (a conversation, or a list of them) behind the system's message."""
    if system is not None and messages:
        nested = isinstance(messages[0], list | tuple)
        messages = [_behind(m, system) for m in messages] if nested else _behind(messages, system)
    return render(messages, *rest, **{**more, **options})


def _behind(messages: Sequence[Json], system: str) -> list[Json]:
    if messages[0]["role"] == "system":
        return list(messages)
    plain = isinstance(messages[0]["content"], str)
    return [{"role": "system", "content": system if plain else [{"type": "text", "text": system}]}, *messages]
