"""What vLLM does when it sleeps, kept to by the server that stands in for it: a fault of ours shows without a GPU.

verl puts vLLM to sleep at level 2, which throws the weights away. It is woken in two steps, memory for weights and then
the key-value cache, with the push of weights between them.
"""

from __future__ import annotations

from collections.abc import Iterable

WEIGHTS, CACHE = "weights", "kv_cache"


class Sleeper:
    """Tracks what a rollout engine has in memory.

    awake: parts that have memory; pushed: whether weights have come since they were last thrown away.
    """

    def __init__(self) -> None:
        self.awake, self.pushed = {WEIGHTS, CACHE}, False

    def sleep(self, waiting: int) -> None:
        """Give memory and weights back. Raises RuntimeError while responses are under way."""
        if waiting:
            raise RuntimeError(f"the rollout engine is to sleep while {waiting} responses are under way")
        self.awake, self.pushed = set(), False

    def wake(self, parts: Iterable[str]) -> None:
        """Give memory to parts. Raises RuntimeError for one that has it: vLLM would map it twice."""
        for part in parts:
            if part in self.awake:
                raise RuntimeError(f"the rollout engine's {part} are awake; only what sleeps can be woken")
            self.awake.add(part)

    def push(self) -> None:
        """Take weights. Raises RuntimeError where they have no memory, or the whole engine is awake."""
        if WEIGHTS not in self.awake:
            raise RuntimeError("weights were pushed to a rollout engine that sleeps; wake it first")
        if CACHE in self.awake:
            raise RuntimeError("weights were pushed to a rollout engine that is awake; put it to sleep first")
        self.pushed = True

    def generate(self) -> None:
        """Begin a response. Raises RuntimeError for an engine that cannot."""
        if self.awake != {WEIGHTS, CACHE}:
            raise RuntimeError("the rollout engine sleeps: nothing can be generated before it is woken")
        if not self.pushed:
            raise RuntimeError("the rollout engine lost its weights when it slept: none were pushed since")
