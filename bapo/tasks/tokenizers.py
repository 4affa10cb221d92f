"""One token a number: the tokenizers of models that are trained from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS = "<pad>", "<eos>"  # ids 0 and 1
_CHAT = ("<|im_start|>", "<|im_end|>")  # verl looks these up by name

#: A message is its content: the small models know no roles.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def build(signs: Sequence[str], value_max: int, special: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Build a tokenizer for ``signs`` and the numbers 0..value_max; value_max + len(signs) + 6 tokens.
    special: further special tokens, which lie behind all others and keep their ids where there are none.

    White space separates tokens and is no token: ``12 / 3 = 4`` and ``12/3=4`` are the same five tokens, and decode to
    ``12/3=4``. Two numbers in a row, which no answer holds, decode to their digits in a row. Characters outside the
    vocabulary are dropped.

    The class is Qwen2Tokenizer, whatever suits it less: transformers 5 makes one of any tokenizer that lies beside a
    config.json with model_type "qwen2", and rebuilds its parts except the added tokens. So every word is an added one.
    """
    from transformers import AddedToken, Qwen2Tokenizer

    tokens = [*signs, *map(str, range(value_max + 1))]
    line_break = "\u010a"  # verl needs one of one token: "Ċ" in this class's alphabet
    vocabulary = {token: i for i, token in enumerate((PAD, EOS, *_CHAT, line_break, *tokens, *special))}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        unk_token=None,  # type: ignore[arg-type]  # the library's own default is a token
        bos_token=None,
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=[*_CHAT, *special],
    )
    tokenizer.add_tokens([AddedToken(word, lstrip=True, rstrip=True, normalized=False) for word in tokens])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
