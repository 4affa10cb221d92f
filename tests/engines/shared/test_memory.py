"""Freed memory stays with the process, so that the next step's tensors cost no page faults."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from bapo.engines.shared.memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def step():
    parts = [torch.ones(1_000_000) for _ in range(4)]  # 16 MB, freed together

for _ in range(5):  # until the heap has found its size
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_steps_fault_their_pages_in_once():
    faults = {
        name: int(subprocess.run([sys.executable, "-c", PROGRAM, name], capture_output=True, text=True).stdout)
        for name in ("usual", "kept")
    }
    if not faults["usual"]:
        pytest.skip("this kernel does not count page faults")
    assert faults["kept"] < 1000 and faults["kept"] * 5 < faults["usual"]
