"""Each benchmark at its smallest size: it runs and prints a ratio for every side."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.paths import ROOT

pytestmark = pytest.mark.slow  # a base is trained for each

_RATIO = r"(\d+\.\d\d) \(\d+\.\d\d-\d+\.\d\d\)"


def output(name: str, *words: str) -> str:
    command = [sys.executable, f"benchmarks/{name}.py", "--smallest", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_sampler_against_generate() -> None:
    text = output("sampler")
    for number, side in enumerate(("generate", "general", "fast")):
        (ratio,) = re.findall(rf"\b{side}\b.*{_RATIO}$", text, re.MULTILINE)
        assert float(ratio) == 1 if number == 0 else float(ratio) > 0


def test_a_training_step_against_trl() -> None:
    pytest.importorskip("trl", reason="TRL is in the extra `benchmark`")
    text = output("trainer_vs_trl")
    (ratio,) = re.findall(rf"^ratio +{_RATIO}$", text, re.MULTILINE)
    assert float(ratio) > 0
    (right,) = re.findall(r"(\d+\.\d)% right", text)
    assert float(right) > 0  # or there would be nothing to learn, and updates of nothing to compare


def test_the_workflow_against_a_checkout() -> None:
    """Itself: the same on disk but for the lengths of names; the time depends on the machine."""
    text = output("workflow", "--cores", "1", "--against", str(ROOT))
    ratios = dict(re.findall(r"^runs_tuning, ([\w ]+), \w+ .* ratio (\d+\.\d\d)$", text, re.MULTILINE))
    assert set(ratios) == {"wall time", "CPU time", "largest job", "on disk", "CPU time when finished"}
    assert 0.9 < float(ratios["on disk"]) < 1.1 and all(float(ratio) > 0 for ratio in ratios.values())
