"""The replay buffers of BAPO, RePO, ARPO and ExGRPO, each a few lines over an ordered container."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Generic, Protocol, TypeVar

import numpy as np

from bapo.algorithm.rollouts import REPLAYED, Group, Prompt, Samples


class Buffer(Protocol):
    """Keeps groups that later steps may train on, the oldest first."""

    def __iter__(self) -> Iterator[Group]: ...
    def extend(self, groups: Iterable[Group], /) -> None: ...


@dataclass(frozen=True)
class HardPrompt:
    """Holds an entry of B_bad: a prompt, and the mean reward and the step of the group that put it there."""

    key: str
    prompt: Prompt
    mean: float = 0.0
    step: int = 0


Entry = TypeVar("Entry", bound=HardPrompt)


class HardPrompts(Generic[Entry]):
    """Keeps B_bad (paper, section 3.2): prompts with a group mean of at most c1, first in, first out.

    A key has one entry, which moves to the back when it is added again. Entries hold no responses, since X2 samples
    new ones with the current policy (eq. 6).
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def add(self, entry: Entry) -> None:
        """Put an entry at the back, and drop entries at the front beyond the capacity."""
        self._entries.pop(entry.key, None)
        self._entries[entry.key] = entry
        while len(self._entries) > self.capacity:
            self._entries.popitem(last=False)

    def discard(self, key: str) -> None:
        self._entries.pop(key, None)

    def replace(self, entry: Entry) -> None:
        """Replace the entry of the same key, which keeps its place."""
        self._entries[entry.key] = entry

    def restore(self, entries: Iterable[Entry]) -> None:
        self._entries = OrderedDict((entry.key, entry) for entry in entries)


class HighQuality:
    """Keeps B_high (paper, section 3.2): whole groups of the last ``steps`` steps, first in, first out.

    ``capacity`` bounds the number of groups, too; None sets no such bound.
    """

    def __init__(self, steps: int, capacity: int | None = None) -> None:
        self.steps, self.capacity = steps, capacity
        self._groups: deque[Group] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    def extend(self, groups: Iterable[Group]) -> None:
        self._groups.extend(groups)
        while self.capacity is not None and len(self._groups) > self.capacity:
            self._groups.popleft()

    def drop_stale(self, step: int) -> None:
        """Drop groups generated before step ``step - steps``: with 3 steps, groups of t-3 to t-1 remain at step t."""
        while self._groups and self._groups[0].step < step - self.steps:
            self._groups.popleft()

    def remove(self, groups: Iterable[Group]) -> None:
        removed = set(groups)
        self._groups = deque(g for g in self._groups if g not in removed)


class ResponseCache:
    """Keeps the last ``capacity`` single responses to each prompt (RePO: SihengLi99/RePO, replay_grpo_trainer)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._responses: dict[str, deque[Group]] = {}

    def __iter__(self) -> Iterator[Group]:
        return chain.from_iterable(self._responses.values())

    def extend(self, groups: Iterable[Group]) -> None:
        for group in groups:
            responses = self._responses.setdefault(group.prompt.id, deque(maxlen=self.capacity))
            responses.extend(group.select([i]) for i in range(group.size))

    def of(self, prompt_id: str) -> list[Group]:
        """Return the responses to a prompt as groups of one, oldest first."""
        return list(self._responses.get(prompt_id, ()))

    def forget(self, prompt_id: str) -> None:
        self._responses.pop(prompt_id, None)


def merge(groups: list[Group]) -> Group:
    """Join several single responses to the same prompt into one replayed group."""
    return Group(
        prompt=groups[0].prompt,
        rewards=np.concatenate([g.rewards for g in groups]),
        step=min(g.step for g in groups),
        version=min(g.version for g in groups),
        samples=Samples.concatenate([g.samples for g in groups]),
        origin=REPLAYED,
    )
