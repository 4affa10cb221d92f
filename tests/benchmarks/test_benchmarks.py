"""Each benchmark at its smallest size: it runs on a trained base and prints a ratio for every side."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.paths import ROOT

pytestmark = pytest.mark.slow  # a base is trained for each

_RATIO = r"(\d+\.\d\d) \(\d+\.\d\d-\d+\.\d\d\)"


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("sampler", ("generate", "general", "fast")),
        ("sampler_images", ("generate", "general", "fast")),
        ("evaluation", ("sampling", "benchmark", "job")),
    ],
)
def test_a_benchmark_runs_at_its_smallest_size(name: str, sides: tuple[str, ...]) -> None:
    command = [sys.executable, f"benchmarks/{name}.py", "--smallest"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for number, side in enumerate(sides):
        (ratio,) = re.findall(rf"\b{side}\b.*{_RATIO}$", done.stdout, re.MULTILINE)
        assert float(ratio) == 1 if number == 0 else float(ratio) > 0


def test_the_benchmark_against_trl_runs_at_its_smallest_size() -> None:
    pytest.importorskip("trl", reason="TRL is in the extra `benchmark`")
    command = [sys.executable, "benchmarks/trainer_vs_trl.py", "--smallest"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (ratio,) = re.findall(rf"^ratio +{_RATIO}$", done.stdout, re.MULTILINE)
    assert float(ratio) > 0
    (right,) = re.findall(r"(\d+\.\d)% right", done.stdout)
    assert float(right) > 0  # or there would be nothing to learn, and updates of nothing to compare
