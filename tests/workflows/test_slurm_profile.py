"""What a cluster is asked for: groups of jobs, GPUs alone on one node, more memory and time at each attempt."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.paths import ROOT

from bapo.experiments.studies import load_study

pytestmark = pytest.mark.system

#: writes what the functions that the rules ask say of a cell
ASK = """
cell = {cell}  # its items() are all that they ask for
needed = machine(resources.training)
asked = [[needed[name](cell, k) for name in ("mem_mb", "runtime", "gpu", "nodes")] for k in (1, 2)]
Path("asked.json").write_text(json.dumps([asked, together("runs", resources.training)(cell)]))
sys.exit(0)
"""


def snakemake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", *words], cwd=folder, capture_output=True, text=True, timeout=900
    )


def groups(*words: str) -> dict[str, int]:
    """Slurm jobs by group in a dry run of Table 1 under the profile."""
    done = snakemake(ROOT, "--workflow-profile", "slurm", "table1", "--config", *words)
    assert done.returncode == 0, done.stderr
    return dict(Counter(re.findall(r"Group job (\w+) ", done.stdout + done.stderr)))


def test_table1_is_tens_of_slurm_jobs_not_hundreds(tmp_path: Path) -> None:
    """By task the start; eight runs with their evaluations; everything drawn."""
    runs = len(load_study("table1", "laptop").cells)
    assert runs == 81
    assert groups(f"results={tmp_path}") == {"start": 3, "runs": 11, "analysis": 1}


@pytest.mark.parametrize(
    ("cell", "settings", "wanted"),
    [
        (
            {"task": "countdown", "model": "qwen2.5-math-1.5b", "method": "bapo", "seed": "42"},
            ["scale=paper"],
            [[480_000, 3 * 1440, 8, 1], [480_000, 3 * 1440, 8, 1]],
        ),
        (
            {"task": "countdown", "model": "qwen2-25m", "method": "bapo", "seed": "1"},
            ["scale=gpu", "device=cuda"],
            [[16_000, 1440, 1, 1], [16_000, 1440, 1, 1]],
        ),
    ],
)
def test_a_gpu_job_is_alone_on_one_node_and_gets_more(
    tmp_path: Path, cell: dict[str, str], settings: list[str], wanted: list[list[int]]
) -> None:
    (tmp_path / "workflows").symlink_to(ROOT / "workflows")
    (tmp_path / "analysis").symlink_to(ROOT / "analysis")
    file = tmp_path / "Snakefile"
    file.write_text(f'import json, sys\ninclude: "{ROOT}/Snakefile"\n{ASK.format(cell=cell)}', encoding="utf-8")
    done = snakemake(tmp_path, "-s", str(file), "all", "--config", *settings)
    assert done.returncode == 0, done.stderr
    asked, group = json.loads((tmp_path / "asked.json").read_text(encoding="utf-8"))
    assert asked == wanted
    assert group is None  # a GPU is not shared with another job of the same group
