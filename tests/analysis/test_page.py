"""What people write in titles is no program of a spreadsheet and no HTML of a page."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.page import Page, Table
from analysis.text import write_csv


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        *((text, f"'{text}") for text in ("=1+1", "@SUM(A1)", "+cmd|x!A0", "-2+3", "\tx", "+BAPO")),
        *((text, text) for text in ("-1", "+2.5", "BAPO", "a=b", "", "<x>")),
        *((number, str(number)) for number in (-1, 0.5, True)),
    ],
)
def test_no_cell_of_a_csv_file_is_a_formula(cell: object, written: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "x.csv", pd.DataFrame({"a": [cell], "b": [1]}))
    assert pd.read_csv(tmp_path / "x.csv", dtype=str, keep_default_na=False)["a"][0] == written


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        *((f"<{tag}", f"&lt;{tag}") for tag in ("img src=x onerror=a(1)>", "/td>", "!-- x", "script>", "br/>", "ub>")),
        ("![x](http://y)", r"!\[x\](http://y)"),
        ("[a](javascript:x)", r"[a\](javascript:x)"),
        ("[a](#b)", "[a](#b)"),  # of the ledger
        *((text, text) for text in ("p < 0.001", "a<br>b", "<u>best</u>", "a > b", "1<2")),
    ],
)
def test_no_title_is_html_or_a_picture(title: str, shown: str) -> None:
    page = Page(title, [Table(title, ["a", title], [[title, title]], below=[title])], [title]).markdown()
    assert page.count(shown) == 7


def test_a_title_divides_no_cell() -> None:
    page = Page("a", [Table("a", ["a", "Avg minus b|c"], [["b|c", "1"]])]).markdown()
    assert [row.split("|")[1:-1] for row in page.replace(r"\|", "/").splitlines() if row.startswith("|")] == [
        *([" a ", " Avg minus b/c "], [" :-- ", " --: "], [" b/c ", " 1 "])
    ]
