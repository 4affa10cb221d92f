"""A prompt as each model reads it, the same in training and in evaluation, beside the golden ones.

The tokenizers of models from the hub are looked for at their pins in the cache that BAPO_TEST_HUB names, as HF_HOME
does; without it these tests are skipped, in CI too. SmolLM2's is in tests/workflows/test_pocket.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.late import LATE
from support.studies import hub_models

from bapo.engines.verl import images
from bapo.experiments import compose as configuration

if LATE:
    from support import golden_prompts
    from support.golden_prompts import QUESTION

    from bapo.engines.shared.models import chats
    from bapo.engines.shared.prompts import chat


SMOLLM2 = "smollm2-135m-instruct"
NAMES = sorted(json.loads(Path(__file__).with_name("golden_prompts.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def words() -> dict[str, list[str]]:
    """What composes a configuration with each model of the hub that the studies use."""
    used = reversed(hub_models())
    return {model: [f"scale={scale}", f"task={task}", f"model={model}"] for scale, task, model in used}


@pytest.mark.parametrize("name", [name for name in NAMES if name != SMOLLM2])
def test_a_prompt_survives_its_tokens_and_is_the_same_everywhere(name: str, words: dict[str, list[str]]) -> None:
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoTokenizer

    config = configuration.compose_config(words[name])
    model = config.model
    found = try_to_load_from_cache(model.path, "tokenizer_config.json", revision=model.revision)
    if not isinstance(found, str):
        pytest.skip(f"{model.path} at {model.revision[:8]} is not in the cache that BAPO_TEST_HUB names")
    tokenizer = chats.prepare(AutoTokenizer.from_pretrained(Path(found).parent), config)
    messages = [{"role": "user", "content": QUESTION}]
    text = chat(tokenizer, messages)
    assert text == golden_prompts.GOLDEN[name]["chat"]["text"]
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert QUESTION in text and tokenizer.decode(tokens) == text
    assert images.encode(tokenizer, None, messages)[0] == tokens  # verl's workers


def test_every_model_of_the_studies_has_a_golden_prompt_with_its_question_once(words: dict[str, list[str]]) -> None:
    assert {*NAMES} == {SMOLLM2, *words}
    for name in NAMES:
        text = golden_prompts.GOLDEN[name]["chat"]["text"]
        assert text.count(QUESTION) == 1
        assert text.rpartition(QUESTION)[2].count("ssistant") == 1  # and then the model's turn
