"""What both engines and evaluations use. Each line imports only from those below it::

step_sampler            what a method asks for while it builds a batch
records  costs          what a step leaves in the run's folder, and what it cost
schedule                when a run writes a checkpoint and stops, and its learning rate
loss_inputs             what a loss reads of the rows of a mini-batch, and what is recorded of them
batch_tensors           groups as tensors of a batch
packed_groups           groups as files of a checkpoint
responses               prompts answered and graded
prompts                 problems as prompts, and prompts as vectors
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

#: the answers by model and part; a look at all modules of a small model takes a twentieth of the time of an update
_ANSWERS: WeakKeyDictionary[Module, dict[str, ModuleType | None]] = WeakKeyDictionary()


def shortcut(part: str, model: Module) -> ModuleType | None:
    """Return the module ``part`` (sampler, scoring or vision) if it is there and computes what ``model`` computes.

    model: a language model or a vision tower. The answer is kept, so its hooks, adapters and precision must be final.
    """
    answers = _ANSWERS.setdefault(model, {})
    if part not in answers:
        module = importlib.import_module(f"{_FAST}.{part}") if importlib.util.find_spec(_FAST) else None
        answers[part] = module if module is not None and module.supports(model) else None
    return answers[part]
