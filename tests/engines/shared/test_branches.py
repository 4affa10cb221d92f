"""Branches against the plain definition: a row is a beginning, and every response goes on from its own."""

from __future__ import annotations

import numpy as np
import pytest
from support.late import LATE

if LATE:
    from bapo.engines.shared.sampling.cache import DROP_SHARE, Branches


class Rows:
    """What a decoder would hold: the beginning in each row, as (prompt, token, token, ...)."""

    def __init__(self, prompts: int) -> None:
        self.held = [(prompt,) for prompt in range(prompts)]

    def branch(self, sources: np.ndarray, places: np.ndarray, rows: int) -> None:
        before = list(self.held)
        self.held += [()] * (rows - len(before))
        for source, place in zip(sources, places, strict=True):
            self.held[place] = before[source]
        self.held = self.held[:rows]

    def feed(self, tokens: np.ndarray) -> None:
        self.held = [(*held, int(token)) for held, token in zip(self.held, tokens, strict=True)]


@pytest.mark.parametrize("vocabulary", [2, 5, 40])
@pytest.mark.parametrize("ending", [0.0, 0.1, 0.6])
def test_every_response_goes_on_from_its_own_beginning(vocabulary, ending):
    rng = np.random.default_rng([vocabulary, int(ending * 10)])
    for prompts, size in ((1, 1), (3, 1), (4, 8), (5, 32)):
        branches, rows = Branches(prompts, size, vocabulary), Rows(prompts)
        written = {i: (i // size,) for i in range(prompts * size)}
        for _ in range(12):
            tokens = rng.integers(0, vocabulary, len(branches.places))
            ended = rng.random(len(tokens)) < ending
            going = branches.places[~ended]
            for place, token in zip(branches.places, tokens, strict=True):
                written[place] = (*written[place], int(token))
            branch = branches.grow(tokens, ended)
            if branch is None:
                assert not len(going)
                break
            assert branches.places.tolist() == going.tolist()
            assert len(set(branch.places)) == len(branch.places)
            rows.branch(branch.sources, branch.places, branch.rows)
            rows.feed(branch.tokens)
            assert [rows.held[r] for r in branches.row] == [written[i] for i in going]
            different = len({written[i] for i in going})
            assert different == len(set(branches.row)) <= branch.rows <= different / (1 - DROP_SHARE) + 1
