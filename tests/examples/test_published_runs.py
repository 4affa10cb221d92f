"""The notebook on the published runs draws their picture and changes a comparison."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT


@pytest.mark.slow
def test_the_notebook_redraws_the_picture_and_changes_a_comparison(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "examples" / "published_runs.py", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    # the first is the difference in README and docs/specifications.md, the second another standard test of it
    lines = ["paired: +0.48 points (-0.41 to +1.38)", "unpaired: +0.48 points (-0.32 to +1.28)"]
    assert done.stdout.splitlines()[-2:] == lines
    assert (tmp_path / "bapo_minus_grpo.png").exists()
