"""Each benchmark at its smallest size: it runs and prints a ratio for every side."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.paths import ROOT

pytestmark = pytest.mark.slow  # a base is trained for each

SAMPLER = r"\b(?:generate|general|fast)\b.* (\d+\.\d\d) \(\d+\.\d\d-\d+\.\d\d\)$"
WORKFLOW = r"^runs_tuning, [\w ]+, \w+ .* ratio (\d+\.\d\d)$"


@pytest.mark.parametrize(
    ("name", "words", "ratios"),
    [
        pytest.param("sampler", (), SAMPLER, marks=pytest.mark.full),
        ("trainer_vs_trl", (), r"^ratio +(\d+\.\d\d) \(\d+\.\d\d-\d+\.\d\d\)$"),
        # against itself, whose names are of another length
        pytest.param("workflow", ("--cores", "1", "--against", str(ROOT)), WORKFLOW, marks=pytest.mark.full),
    ],
)
def test_a_benchmark_has_a_ratio_for_every_side(name: str, words: tuple[str, ...], ratios: str) -> None:
    if name == "trainer_vs_trl":
        pytest.importorskip("trl", reason="TRL is in the extra `benchmark`")
    command = [sys.executable, f"benchmarks/{name}.py", "--smallest", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [float(ratio) for ratio in re.findall(ratios, done.stdout, re.MULTILINE)]
    assert len(found) == {"sampler": 3, "trainer_vs_trl": 1, "workflow": 5}[name] and min(found) > 0
    assert name != "sampler" or max(found) > 1.5  # the hand-written forward: 3.3 in one round of a loaded machine
