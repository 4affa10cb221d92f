"""What processes of the suite have in common; nothing but the standard library."""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG = 1


def end_with(parent: int, number: int) -> None:
    """Have Linux send this process the signal ``number`` when the process ``parent`` ends, for whatever reason.

    Ends this process at once where ``parent`` is gone already. If the parent has several threads, what counts is the
    end of the thread that started this process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
