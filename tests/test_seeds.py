"""The counter-based generator: published test vectors, and what the sampler relies on."""

from __future__ import annotations

import numpy as np
import pytest

from bapo import seeds
from bapo.seeds import key64, philox4x32, uniforms


def words(text: str) -> list[int]:
    return [int(w, 16) for w in text.split()]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_known_answers(counter, key, expected):
    """kat_vectors of Random123 for philox4x32-10, the authors' own implementation."""
    low, high = words(key)
    found = philox4x32(np.array(words(counter), dtype=np.uint64), low | high << 32)
    assert [int(w) for w in found] == words(expected)


def test_uniforms_use_the_words_in_order():
    """Token t of a sequence takes word t % 4 of block t // 4; counter = (block, sample, prompt low, prompt high)."""
    prompt = 0x1234567890ABCDEF
    found = uniforms(7, np.array([prompt], dtype=np.uint64), np.array([5]), 6)[0]
    bits = [philox4x32(np.array([b, 5, 0x90ABCDEF, 0x12345678], dtype=np.uint64), 7) for b in (0, 1)]
    expected = (np.concatenate(bits)[:6] >> np.uint64(9)).astype(np.float64) / 2**23 + 2.0**-24
    assert found.dtype == np.float32
    assert (found.astype(np.float64) == expected).all()  # exact in float32


def test_uniforms_are_inside_the_open_interval_even_at_the_ends(monkeypatch):
    for word, expected in ((0, 2.0**-24), (2**32 - 1, 1 - 2.0**-24)):
        monkeypatch.setattr("bapo.seeds.philox4x32", lambda c, k, w=word: np.full(c.shape, w, dtype=np.uint64))
        assert uniforms(0, np.zeros(1, dtype=np.uint64), np.zeros(1), 1)[0, 0] == np.float32(expected)


def test_every_name_changes_the_numbers():
    base = uniforms(key64(1, "rollout", 5), np.array([key64("a")], dtype=np.uint64), np.array([0]), 8)
    for key, prompt, number in [
        (key64(2, "rollout", 5), key64("a"), 0),
        (key64(1, "probe", 5), key64("a"), 0),
        (key64(1, "rollout", 6), key64("a"), 0),
        (key64(1, "rollout", 5), key64("b"), 0),
        (key64(1, "rollout", 5), key64("a") ^ 1 << 63, 0),  # the high half of the key counts
        (key64(1, "rollout", 5), key64("a"), 1),
    ]:
        other = uniforms(key, np.array([prompt], dtype=np.uint64), np.array([number]), 8)
        assert not np.isin(other, base).any()


def test_key64_tells_names_apart_and_is_stable():
    assert key64(1, "a", 2) == key64(1, "a", 2)
    assert len({key64("ab", "c"), key64("a", "bc"), key64("abc"), key64("c", "ab")}) == 4
    assert 0 <= key64("x") < 2**64
    # written down, so that a change of the derivation, which would change every run, does not pass unnoticed
    assert key64(1, "rollout", 1) == 16261198013647666466


def test_a_prompt_that_comes_again_in_one_call_has_another_key():
    keys = seeds.prompt_keys(["a", "b", "a", "a"])
    assert keys[0] == seeds.key64("a") and keys[1] == seeds.key64("b") and len(set(keys)) == 4
    assert seeds.prompt_keys(["b", "a", "a"])[1:] == [keys[0], keys[2]]  # whatever stands between
