"""The benchmark of a step through verl at its smallest size: verl's own GRPO, then GRPO and BAPO of the suite."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest
from support.paths import ROOT

pytestmark = [
    pytest.mark.verl,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed (extra `verl`)"),
]


def test_a_step_of_bapo_over_verls_own_grpo() -> None:
    command = [sys.executable, "benchmarks/verl_step.py", "--smallest"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(\w+) +[\d.]+ s of CPU time a step, ratio (\d+\.\d\d);", done.stdout, re.MULTILINE)
    ratios = {side: float(ratio) for side, ratio in found}
    assert list(ratios) == ["verl", "grpo", "bapo"] and ratios["verl"] == 1 and min(ratios.values()) > 0
    responses = re.findall(r"^\w+ +a step: (\d+) responses, \d+\.\d updates", done.stdout, re.MULTILINE)
    assert responses[0] == "256" and len(responses) == 2
    parts = re.findall(r"^start, to ([\w ]+?) +[\d.]+ s of CPU time", done.stdout, re.MULTILINE)
    assert parts == ["imports", "Ray", "workers and models", "step 1"]
