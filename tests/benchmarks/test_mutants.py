"""The copy of the repository that benchmarks/mutants.py tests."""

from __future__ import annotations

import tomllib

from support.pages import PAGES
from support.paths import ROOT


def test_the_copy_has_every_page_that_a_test_of_a_method_may_read() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    assert {page.relative_to(ROOT).parts[0] for page in PAGES} <= set(settings["also_copy"])
