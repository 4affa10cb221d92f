"""Prompts as the models read them, ``tests/engines/shared/golden_prompts.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bapo.experiments.compose import compose_config
from bapo.tasks.countdown.task import to_prompt
from support.paths import ROOT

QUESTION = r"Solve $x^2 - 2 = 0$ for x > 0. Let's think step by step and output the final answer within \boxed{}."


#: model -> kind -> {"text", and "tokens" where they are known}
GOLDEN: dict[str, dict[str, Any]] = json.loads(
    (ROOT / "tests" / "engines" / "shared" / "golden_prompts.json").read_text(encoding="utf-8")
)


def of_smollm2(folder: Path) -> dict[str, Any]:
    """Render SmolLM2's prompts: a question in its own template, and pocket's Countdown, a text to continue."""
    from transformers import AutoTokenizer

    from bapo.engines.shared.models import chats
    from bapo.engines.shared.prompts import chat

    prompts = {}
    few_shot = to_prompt((5, 7), 12, "few-shot")
    for kind, content, template in (("chat", QUESTION, "null"), ("few-shot", few_shot, "plain")):
        config = compose_config(["scale=pocket", "task=countdown", f"data.chat_template={template}"])
        tokenizer = chats.prepare(AutoTokenizer.from_pretrained(folder), config)
        text = chat(tokenizer, [{"role": "user", "content": content}])
        prompts[kind] = {"text": text, "tokens": tokenizer(text, add_special_tokens=False)["input_ids"]}
    return prompts
