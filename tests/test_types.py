"""mypy over bapo/ and analysis/. The list of unclean files and the number of ``Any`` may only shrink."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).resolve().parents[1]
NOT_CLEAN = ROOT / "tests" / "types_not_clean.txt"
#: uses of ``Any`` in bapo/, imports included; lower it when there are fewer
ANY = 71


@pytest.mark.slow
def test_every_file_is_clean_that_is_not_listed():
    output, errors, _ = api.run(["bapo", "analysis", "--cache-dir", "/dev/null"])
    assert not errors
    unclean = set(re.findall(r"^([\w/]+\.py):\d+: error", output, re.MULTILINE))
    listed = set(NOT_CLEAN.read_text(encoding="utf-8").split())
    faults = "\n".join(line for line in output.splitlines() if line.partition(":")[0] not in listed)
    assert not unclean - listed, faults
    assert not listed - unclean, f"clean now: take them off {NOT_CLEAN.name}"


def test_any_is_rare():
    words = sum(len(re.findall(r"\bAny\b", path.read_text(encoding="utf-8"))) for path in (ROOT / "bapo").rglob("*.py"))
    assert words <= ANY
