"""How this process keeps memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from functools import cache

#: Parameters of glibc's ``mallopt`` (malloc.h): freed bytes at the heap's end that are kept, and blocks that may be
#: mapped outside of it.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_KEPT = (1 << 31) - 1  # glibc allows no more


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next block instead of giving it back to the kernel at once.

    A training step allocates and frees the same tensors over and over; each time the kernel would clear the pages
    again, which is a tenth of a step. Blocks above 32 MB, of models with a hundred million parameters, would be mapped
    and unmapped one by one whatever the threshold, so none is. Does nothing where the C library has no ``mallopt``.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _KEPT)


@cache
def leave_imports_alone() -> None:
    """Keep the garbage collector from looking through all imports again and again, a fiftieth of a small model's step.

    Once a process: what a later call would keep for ever is a model that a cycle holds.
    """
    gc.freeze()
