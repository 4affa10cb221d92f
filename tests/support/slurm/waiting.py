"""GRPO that a test can stop: its third step waits for the file that WAIT_FOR names."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bapo.algorithm.rollouts import Group
from bapo.methods.base import Batch, Sampler
from bapo.methods.grpo import GRPO


class Waiting(GRPO):
    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        while step == 3 and not Path(os.environ.get("WAIT_FOR", ".")).exists():
            time.sleep(0.1)
        return super().build_batch(step, fresh, sampler)
