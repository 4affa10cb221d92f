"""Float32 weights that the optimiser keeps of a model in bfloat16 or float16, as in mixed-precision training.

A bfloat16 number has 8 bits of precision: a step of less than a 500th of a weight would be rounded away, and with a
rate of 1e-6 nearly every step is. So the optimiser adds its steps to float32 copies (Micikevicius et al. 1710.03740),
which are rounded into the model after each; gradients are summed over micro-batches in float32, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


def of(model: Any) -> dict[str, Tensor]:
    """Return what an optimiser trains of ``model``, by the names of its parameters that want a gradient.

    A float32 parameter is its own; any other has a float32 copy, to which its gradients go as they arrive.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        found[name] = parameter
        if parameter.dtype != torch.float32:
            found[name] = parameter.detach().float()
            parameter.register_post_accumulate_grad_hook(partial(_hand_over, master=found[name]))
    return found


@torch.no_grad()
def round_into(model: Any, masters: dict[str, Tensor]) -> None:
    """Write the copies, rounded, into the parameters of ``model``."""
    if all(isinstance(master, Parameter) for master in masters.values()):
        return
    for name, parameter in model.named_parameters():
        if name in masters and masters[name] is not parameter:
            parameter.copy_(masters[name])


def _hand_over(parameter: Tensor, master: Tensor) -> None:
    """Add the gradient of a micro-batch to the copy's, and forget it."""
    gradient, parameter.grad = parameter.grad.float(), None
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
