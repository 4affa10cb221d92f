"""How this process's C library keeps memory."""

from __future__ import annotations

import contextlib
import ctypes

#: Parameters of glibc's ``mallopt`` (malloc.h), and what they are set to, in bytes. Larger blocks than the second are
#: mapped one by one as before; glibc allows no more.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT, _LARGEST = 256 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next block instead of giving it back to the kernel at once.

    A training step allocates and frees the same few megabytes over and over; each time the kernel would clear the pages
    again, which is a tenth of a small model's step. Does nothing where the C library has no ``mallopt``.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)
