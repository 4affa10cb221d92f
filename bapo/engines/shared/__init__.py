"""What both engines and evaluations use. Each line imports only from those below it::

records                 what a step cost and leaves in the run's folder
prompts                 problems as prompts, and their answers sampled and graded
rows                    groups as tensors of a batch, and as files of a checkpoint
sampling/  cache        responses of a model, by keyed random numbers
models/                 Hugging Face models: build, load, save, score
  pretrained  gguf      models from a hub, a folder or a package
  chats  images         the model's own conversation; its images
shortcut                the one entry point to engines/fast: delete that folder and everything works as before, slower
"""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from torch.nn import Module

_FAST = "bapo.engines.fast"

#: The answers about each model, by part: a look at all its modules is a twentieth of an update of a small one.
_ANSWERS: WeakKeyDictionary[Module, dict[str, ModuleType | None]] = WeakKeyDictionary()


def shortcut(part: str, model: Module) -> ModuleType | None:
    """Return the module ``part`` (sampler, scoring or vision) if it is there and computes what ``model`` computes.

    model: a language model or a vision tower. It is looked at once, so it has its hooks, adapters and precision before
    it is first used.
    """
    answers = _ANSWERS.setdefault(model, {})
    if part not in answers:
        module = importlib.import_module(f"{_FAST}.{part}") if importlib.util.find_spec(_FAST) else None
        answers[part] = module if module is not None and module.supports(model) else None
    return answers[part]
