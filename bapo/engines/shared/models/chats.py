"""How a prompt becomes a conversation in the model's own template, and which tokens end the model's turn.

``data.chat_template``, ``data.system`` and ``data.chat_template_kwargs`` hold wherever a tokenizer or a processor of
the run renders messages: in both engines, in lm-eval's models and in verl's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from bapo.errors import UserError
from bapo.experiments.schema import Config
from bapo.store.files import Json
from bapo.tasks.generated import CHAT_TEMPLATE
from bapo.validate import plain

#: the attribute of a tokenizer that holds the ids of sampling.stop_tokens
ENDS = "more_end_ids"


def prepare(tokenizer: Any, config: Config) -> Any:
    """Make a tokenizer, or a processor, render messages as ``config.data`` says, and return it.

    It still saves the model's own template. A tokenizer also gets the ids of ``sampling.stop_tokens``. Raises UserError
    for one that is not a single token.
    """
    options = plain(config.data.chat_template_kwargs)
    if config.data.chat_template == "plain":
        options = {**options, "chat_template": CHAT_TEMPLATE}
    render = tokenizer.apply_chat_template
    if (config.data.system, options) != (None, {}) and not (isinstance(render, partial) and render.func is _render):
        tokenizer.apply_chat_template = partial(_render, render, config.data.system, options)
    if config.sampling.stop_tokens and hasattr(tokenizer, "convert_tokens_to_ids"):
        setattr(tokenizer, ENDS, stop_ids(tokenizer, config))
    return tokenizer


def stop_ids(tokenizer: PreTrainedTokenizerBase, config: Config) -> list[int]:
    """Return the ids of ``sampling.stop_tokens``, names or texts. Raises UserError for a text that is not one token."""
    ids = []
    for token in config.sampling.stop_tokens:
        # verl prepares the tokenizer for every response, so this must not build the whole vocabulary
        token_id = tokenizer.convert_tokens_to_ids(token)
        text_ids = tokenizer(token, add_special_tokens=False)["input_ids"]
        if isinstance(token_id, int) and tokenizer.convert_ids_to_tokens(token_id) == token:
            text_ids = [token_id]
        if len(text_ids) != 1:
            raise UserError(f"sampling.stop_tokens={token}: no token of model={config.model.name}; choose another")
        ids.append(int(text_ids[0]))
    return ids


def more_ends(tokenizer: PreTrainedTokenizerBase) -> Sequence[int]:
    """Return the ids of ``sampling.stop_tokens`` that a prepared tokenizer knows."""
    return getattr(tokenizer, ENDS, ())


def _render(
    render: Callable[..., object], system: str | None, options: Json, messages: Any, *rest: object, **more: object
) -> object:
    """Render a conversation, behind the system message ``system`` where it has none of its own."""
    if system is not None and messages and messages[0]["role"] != "system":
        text = isinstance(messages[0]["content"], str)
        instruction = {"role": "system", "content": system if text else [{"type": "text", "text": system}]}
        messages = [instruction, *messages]
    return render(messages, *rest, **{**more, **options})
