"""Freed memory stays with the process, so that steps fault no pages in; imports are never garbage."""

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
    parts = [torch.ones(int(sys.argv[2])) for _ in range(4)]  # freed together

for _ in range(5):  # until the heap has found its size
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.system
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
@pytest.mark.parametrize("elements", [1_000_000, 16_000_000])  # 4 MB, 64 MB: above what glibc's heap takes by itself
def test_steps_fault_their_pages_in_once(elements):
    faults = {}
    for name in ("usual", "kept"):
        command = [sys.executable, "-c", PROGRAM, name, str(elements)]
        faults[name] = int(subprocess.run(command, capture_output=True, text=True).stdout)
    if not faults["usual"]:
        pytest.skip("this kernel does not count page faults")
    assert faults["kept"] < 1000 and faults["kept"] * 5 < faults["usual"]


FREEZING = """
import gc
from bapo.engines.shared.memory import leave_imports_alone

leave_imports_alone()
frozen = gc.get_freeze_count()
cycle = []
cycle.append(cycle)
leave_imports_alone()
print(frozen > 0, gc.get_freeze_count() <= frozen)
"""


def test_what_is_made_after_the_imports_is_still_collected():
    done = subprocess.run([sys.executable, "-c", FREEZING], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True"], done.stderr
