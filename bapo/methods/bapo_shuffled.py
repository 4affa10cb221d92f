"""A control: replayed responses are swapped between prompts, which must hurt."""

from __future__ import annotations

from dataclasses import replace

from bapo.methods.bapo import BAPO, Groups


class BAPOShuffled(BAPO):
    """Each replayed prompt gets the responses and rewards of another.

    This must hurt; otherwise X3 does not act through the content of its responses. A single replayed group has no
    partner and is dropped. Step and version stay those of the prompt's own group, so ``batch_age`` counts these.
    """

    title = "+BAPO, X3 shuffled"
    summary = "control: BAPO whose replayed responses are shuffled between prompts"
    source = "control of paper eq. 5"

    def high_quality(self, step: int, c2: float, c3: float, room: int, x1: Groups) -> Groups:
        x3 = super().high_quality(step, c2, c3, room, x1)
        if len(x3) < 2:
            return []
        order = self.random("shuffled", step).permutation(len(x3))
        # each takes the responses of the next in a random circle, so that none keeps its own
        other = dict(zip(order.tolist(), [*order[1:].tolist(), int(order[0])], strict=True))
        return [replace(g, rewards=x3[other[i]].rewards, samples=x3[other[i]].samples) for i, g in enumerate(x3)]
