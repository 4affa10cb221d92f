"""What a cluster is asked for: groups of jobs, GPUs alone on one node, more memory and time at each attempt."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from support.paths import ROOT
from support.workflow import snakemake

from bapo.experiments.studies import load_study

pytestmark = pytest.mark.system

#: writes what the functions that the rules ask say of a cell, whose items() are all that they ask for
ASK = """
import json, sys
include: "{snakefile}"
cell = {{"task": "countdown", "model": "qwen2.5-math-1.5b", "method": "bapo", "seed": "42"}}
needed = machine(resources.training)
asked = [[needed[name](cell, k) for name in ("mem_mb", "runtime", "gpu", "nodes")] for k in (1, 2)]
Path("asked.json").write_text(json.dumps([asked, together("runs", resources.training)(cell)]))
sys.exit(0)
"""


def test_table1_is_tens_of_slurm_jobs_not_hundreds(tmp_path: Path) -> None:
    """By task the start; eight runs with their evaluations; everything drawn."""
    assert len(load_study("table1", "laptop").cells) == 81
    words = ("--workflow-profile", "slurm", "table1", "--config", f"results={tmp_path}")
    done = snakemake(ROOT, "-n", *words)  # the profile names its partitions from here
    assert done.returncode == 0, done.stderr
    groups = Counter(re.findall(r"Group job (\w+) ", done.stdout + done.stderr))
    assert groups == {"start": 3, "runs": 11, "analysis": 1}


def test_a_gpu_job_is_alone_on_one_node(tmp_path: Path) -> None:
    """By the rules' own functions; the numbers of other scales: tests/plan/test_plan.py."""
    for name in ("workflows", "analysis"):
        (tmp_path / name).symlink_to(ROOT / name)
    file = tmp_path / "Snakefile"
    file.write_text(ASK.format(snakefile=ROOT / "Snakefile"), encoding="utf-8")
    done = snakemake(tmp_path, "-n", "all", "--config", "scale=paper", file=file)
    assert done.returncode == 0, done.stderr
    asked, group = json.loads((tmp_path / "asked.json").read_text(encoding="utf-8"))
    assert asked == [[480_000, 3 * 1440, 8, 1]] * 2
    assert group is None  # a GPU is not shared with another job of the same group
