"""Stateless random numbers: every draw is a function of (run seed, purpose, step, item).

Nothing has to be saved to resume a run, and a sample does not depend on the batch in which it was drawn.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

import numpy as np


def key64(*names: object) -> int:
    """Return the 64-bit key of any sequence of names and numbers (BLAKE2b of their text)."""
    text = "\x1f".join(str(n) for n in names)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def prompt_keys(ids: Iterable[str]) -> list[int]:
    """Return one key per prompt. A prompt that occurs again gets a different key, and so different samples."""
    counts: Counter[str] = Counter()
    keys = []
    for name in ids:
        keys.append(key64(name, "again", counts[name]) if counts[name] else key64(name))
        counts[name] += 1
    return keys


def generator(seed: int, *names: object) -> np.random.Generator:
    """Return a NumPy generator for one purpose, for example ``generator(seed, "batch order", step)``."""
    return np.random.Generator(np.random.Philox(key=key64(seed, *names)))


_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)


def philox4x32(counter: np.ndarray, key: int) -> np.ndarray:
    """Apply Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

    counter: uint64 [..., 4], each below 2**32; key: 64 bits. Returns uint64 [..., 4], each below 2**32.
    """
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    shift = np.uint64(32)
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & _LOW, (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], -1)


def uniforms(key: int, prompts: np.ndarray, samples: np.ndarray, length: int) -> np.ndarray:
    """Return uniform numbers in (0, 1) for the tokens of N sequences, float32 [N, length].

    Row i depends only on (key, prompts[i], samples[i]), and a longer ``length`` only appends.

    Args:
        key: 64 bits, from :func:`key64` (seed, purpose, step)
        prompts: uint64 [N], the key of each prompt
        samples: int [N], the number of each sample among those of its prompt
        length: tokens of a sequence
    """
    n, blocks = len(prompts), -(-length // 4)
    prompts = np.asarray(prompts, dtype=np.uint64)
    counter = np.empty((n, blocks, 4), dtype=np.uint64)
    counter[..., 0] = np.arange(blocks, dtype=np.uint64)
    counter[..., 1] = np.asarray(samples, dtype=np.uint64)[:, None]
    counter[..., 2] = (prompts & _LOW)[:, None]
    counter[..., 3] = (prompts >> np.uint64(32))[:, None]
    bits = philox4x32(counter, key).reshape(n, blocks * 4)[:, :length]
    # 23 bits and half a step are exact in float32, and neither 0 nor 1
    return (((bits >> np.uint64(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)).astype(np.float32)
