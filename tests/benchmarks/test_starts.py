"""The benchmarks of starts, of the workflow and of growth at their smallest sizes: each runs and prints what fits."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.paths import ROOT

from bapo.warm import launch

pytestmark = pytest.mark.slow


def output(name: str, *words: str) -> str:
    command = [sys.executable, f"benchmarks/{name}.py", "--smallest", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not launch.supported(), reason="Linux without a GPU only")
def test_a_child_is_compared_with_a_start_and_its_parts() -> None:
    text = output("startup")
    ratios = dict(re.findall(r"^(plain|warm) +ratio of CPU time (\d+\.\d\d)", text, re.MULTILINE))
    assert float(ratios["plain"]) == 1.0 and float(ratios["warm"]) > 0
    parts = re.findall(r"^start, ([\w ]+?) +\d+\.\d\d s of CPU time$", text, re.MULTILINE)
    assert parts == ["before", "imports", "configuration", "models and problems", "wandb", "first step", "end"]
    assert re.findall(r"^snakemake table1, (first \w+) +\d+\.\d\d s,", text, re.MULTILINE) == [
        "first line",
        "first job",
    ]


def test_the_workflow_against_a_checkout() -> None:
    """Itself: the same on disk but for the lengths of names; the time depends on the machine."""
    text = output("workflow", "--cores", "1", "--against", str(ROOT))
    ratios = dict(re.findall(r"^runs_tuning, ([\w ]+), \w+ .* ratio (\d+\.\d\d)$", text, re.MULTILINE))
    assert set(ratios) == {"wall time", "CPU time", "largest job", "on disk", "CPU time when finished"}
    assert 0.9 < float(ratios["on disk"]) < 1.1 and all(float(ratio) > 0 for ratio in ratios.values())


def test_growth_of_a_dry_run_of_a_run_and_of_an_analysis() -> None:
    rows = re.findall(r"^([\w ]+, \w+) +CPU [\d.]+ / [\d.]+ s +\d+ / \d+ MB", output("growth"), re.MULTILINE)
    assert rows == ["dry run, seeds", "run, prompts", "Table 1, seeds"]
