"""``bapo init``: a project that runs as it is, from a checkout and from an installed wheel away from any checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from bapo import init
from bapo.errors import UserError
from bapo.store.files import SUMMARY, read_json


def snakemake(folder: Path, path: Path, *words: str) -> str:
    """The output of Snakemake in ``folder``, with the package taken from ``path``."""
    known = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    known.pop("BAPO_EXPERIMENTS", None)
    command = [sys.executable, "-m", "snakemake", *words]
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def test_a_project_lists_its_own_study_and_knows_the_suites(tmp_path: Path) -> None:
    init.write(tmp_path / "mine")
    listed = snakemake(tmp_path / "mine", ROOT, "-n", "--quiet", "rules")
    assert "comparison_ordering" in listed and "table1" not in listed
    listed = snakemake(tmp_path / "mine", ROOT, "-n", "table1", "--config", "scale=smoke")
    assert "write_table1" in listed


def test_what_lies_in_a_folder_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        init.write(tmp_path)


@pytest.mark.slow
def test_a_project_runs_from_a_wheel_away_from_the_checkout(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True)
    known = {**os.environ, "PYTHONPATH": str(site)}
    subprocess.run([sys.executable, "-m", "bapo", "init", "mine"], cwd=tmp_path, env=known, check=True)
    project = tmp_path / "mine"
    said = snakemake(project, site, "--cores", "2", "--config", "scale=smoke", "tracking=none")
    assert str(ROOT) not in said
    table = (project / "results/smoke/tables/comparison_ordering.md").read_text()
    assert all(title in table for title in ("+GRPO", "+BAPO", "+Positive only"))
    run = project / "results/smoke/ordering/qwen2-112k/positive_only/seed1"
    assert read_json(run / SUMMARY)["steps"] == 6
