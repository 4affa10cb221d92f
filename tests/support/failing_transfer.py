"""Workers of vLLM that fail while they load weights, named by vLLM's ``worker_extension_cls``."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from bapo.engines.verl.transfer.extension import Extension


class Failing(Extension):
    """Raises when weights come for the second time."""

    loads = 0

    def _update_weights(self, *arguments: Any, **options: Any) -> None:
        self.loads += 1
        if self.loads == 2:
            self.fail()
        super()._update_weights(*arguments, **options)

    def fail(self) -> None:
        try:
            raise KeyError("what was handled is no error")
        except KeyError:
            raise ValueError(f"these weights are bad, seen at {time.time()}") from None


class Dying(Failing):
    """Is killed at that moment, as by a system without memory."""

    def fail(self) -> None:
        die()


class FailingThenDying(Failing):
    """Raises the second time, is killed the third."""

    def _update_weights(self, *arguments: Any, **options: Any) -> None:
        if self.loads == 2:
            die()
        super()._update_weights(*arguments, **options)


def die() -> None:
    print(f"killed at {time.time()}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
