"""What a job tells: plain lines in a log file, which ``bapo watch`` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.watch import last_line
from bapo.store.progress import Progress


def test_a_log_file_gets_a_plain_line_for_each_tenth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("countdown tiny grpo seed 2", 40, start=8)
    for step in range(9, 41):
        progress.add(1, f"reward 0.{step}")
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 8
    assert all(line.isprintable() and "\r" not in line for line in text.split("\n"))
    log = tmp_path / "log"
    log.write_text(text)
    assert last_line(log).startswith("countdown tiny grpo seed 2: step 40/40, reward 0.40, ")
