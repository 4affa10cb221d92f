"""What a model reads: the system's message, the template's options, and what ends its turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from support.late import LATE

from bapo.engines.verl import images
from bapo.errors import UserError
from bapo.experiments.compose import compose_config

if LATE:
    from transformers import AutoTokenizer

    from bapo.engines.shared import models
    from bapo.engines.shared.models import chats
    from bapo.engines.shared.prompts import chat


#: as Qwen's: a system's message of its own, an option, and marks around every turn
TEMPLATE = (
    "{% if messages[0].role != 'system' %}<s>Use a box.</s>{% endif %}"
    "{% for m in messages %}<{{ m.role[0] }}>"
    "{{ m.content if m.content is string else m.content[0].text }}</{{ m.role[0] }}>{% endfor %}"
    "{% if add_generation_prompt %}<a>{% if thinking is defined and not thinking %}#{% endif %}{% endif %}"
)
ASK = [{"role": "user", "content": "2 + 2"}]


@pytest.fixture
def tokenizer() -> Any:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"[END]": 0, "[TURN]": 1, "2": 2, "+": 3, "?": 4}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="[END]", additional_special_tokens=["[TURN]"])
    made.chat_template = TEMPLATE
    return made


def config_of(*words: str) -> DictConfig:
    """Of paper scale, without the stop tokens of its model, which this tokenizer does not have."""
    return compose_config(["scale=paper", "task=countdown", "sampling.stop_tokens=[]", *words])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["data.system=Think."], "<s>Think.</s><u>2 + 2</u><a>"),
        (["data.system=''"], "<s></s><u>2 + 2</u><a>"),
        (["data.chat_template_kwargs={thinking: false}"], "<s>Use a box.</s><u>2 + 2</u><a>#"),
        (["data.system=Think.", "data.chat_template_kwargs={thinking: false}"], "<s>Think.</s><u>2 + 2</u><a>#"),
    ],
)
def test_system_and_options_reach_every_rendering(tokenizer: Any, words: list[str], text: str) -> None:
    config = config_of(*words)
    for _ in range(2):  # a second preparation changes nothing
        chats.prepare(tokenizer, config)
    assert chat(tokenizer, ASK) == text
    # lm-eval's vLLM model hands its own options on
    theirs = tokenizer.apply_chat_template(ASK, tokenize=False, add_generation_prompt=True, enable_thinking=None)
    assert theirs == text
    assert images.encode(tokenizer, None, ASK)[0] == tokenizer(text, add_special_tokens=False)["input_ids"]
    named = [{"role": "system", "content": "Mine."}, *ASK]
    assert chat(tokenizer, named).startswith("<s>Mine.</s>")
    parts = [{"role": "user", "content": [{"type": "text", "text": "2 + 2"}]}]
    assert tokenizer.apply_chat_template(parts, tokenize=False, add_generation_prompt=True) == text


@pytest.mark.parametrize("own", [TEMPLATE, None])
def test_a_prompt_may_be_a_text_to_continue(tokenizer: Any, tmp_path: Path, own: str | None) -> None:
    """And what is saved keeps the model's own template."""
    tokenizer.chat_template = own
    for _ in range(2):
        chats.prepare(tokenizer, config_of("data.chat_template=plain"))
    assert chat(tokenizer, ASK) == "2 + 2"
    # lm-eval hands the template on that it found when it was built
    assert tokenizer.apply_chat_template(ASK, tokenize=False, chat_template=own) == "2 + 2"
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == own


def test_more_tokens_end_a_response(tokenizer: Any) -> None:
    chats.prepare(tokenizer, config_of("sampling.stop_tokens=['[TURN]']"))
    assert models.end_tokens(tokenizer) == (0, 1)
    assert list(chats.more_ends(tokenizer)) == [1]
    chats.prepare(tokenizer, config_of("sampling.stop_tokens=['  +']"))  # not a token's name, but a token's text
    assert list(chats.more_ends(tokenizer)) == [3]
    with pytest.raises(UserError, match=r"sampling\.stop_tokens=2 \+"):
        chats.prepare(tokenizer, config_of("sampling.stop_tokens=['2 +']"))


def test_preparing_does_not_build_the_vocabulary(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl prepares the tokenizer for every response, and a vocabulary of 49,152 tokens takes 20 to 57 ms."""
    monkeypatch.setattr(type(tokenizer), "get_vocab", lambda _: pytest.fail("the vocabulary was built"))
    chats.prepare(tokenizer, config_of("sampling.stop_tokens=['[TURN]', '  +']"))
    assert list(chats.more_ends(tokenizer)) == [1, 3]
