"""The report in Chromium: every figure shows; sorting, filters and zoom work; no complaint, no request."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.browser import Browser, needed
from support.report_folder import COLOUR, HOSTILE, write_results

from analysis import style
from analysis.page import markdown_table
from analysis.report import files, write
from analysis.text import MISSING

pytestmark = [pytest.mark.system, needed]
SHOWN = "[...document.querySelectorAll('{} > tbody:not([hidden])')]"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(write_results(tmp_path_factory.mktemp("results"))).path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser, page: Path) -> Iterator[Browser]:
    """The page, loaded afresh; afterwards: no complaint, no request, and nothing has run that is not its own."""
    chromium.complaints.clear()
    chromium.open(page)
    yield chromium
    assert chromium.run("window.hacked") is None
    assert chromium.complaints == []
    assert chromium.requests == []


def column(browser: Browser, table: str, number: int) -> list[str]:
    """The first row's cell of every group of rows that is shown."""
    return browser.run(f"{SHOWN.format(table)}.map(b => b.rows[0].cells[{number}].textContent.trim())")


def pixels(png: bytes) -> np.ndarray:
    """[height, width, 3]"""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


# ------------------------------------------------------------------------------------------------ what it shows


def test_every_figure_shows(browser: Browser) -> None:
    boxes = browser.run(
        "[...document.querySelectorAll(':is(#tables, #figures) figure img')].map(i => {"
        " const b = i.getBoundingClientRect(); return [i.complete, i.naturalWidth > 0, b.width, b.height]})"
    )
    assert len(boxes) == 3
    for loaded, drawn, width, height in boxes:
        assert loaded and drawn
        assert width > 400 and height == pytest.approx(width * 3 / 4, abs=2)
    wanted = np.array([int(COLOUR[i : i + 2], 16) for i in (1, 3, 5)])
    for name in ("figure4_training_curves", "another", "table2_monitor"):  # the curve is there, in its colour, on white
        picture = pixels(browser.picture(f"#figure-{name} .paper"))
        curve = (np.abs(picture.astype(int) - wanted) < 12).all(axis=2)
        assert 0.002 < curve.mean() < 0.2
        assert (picture > 250).all(axis=2).mean() > 0.5


def test_hostile_text_is_shown_as_text(browser: Browser) -> None:
    assert column(browser, "#tables table", 0)[-1] == "<script>window.hacked = 3</script>"
    assert browser.run("document.querySelector('figcaption p').textContent") == f"A curve. {HOSTILE}"
    assert HOSTILE in browser.run("document.querySelector('#claims-list').textContent")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (360, False)])
def test_light_dark_and_narrow(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (pixels(browser.picture())[5, 5].mean() < 60) == dark, ground
    browser.run("for (const d of document.querySelectorAll('details')) d.open = true")
    browser.until("document.querySelectorAll('details.data table').length == 4")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")  # wide tables scroll on their own


def test_the_theme_button_turns_the_page(browser: Browser) -> None:
    before = pixels(browser.picture())[5, 5].mean()
    browser.click("#theme")
    assert pixels(browser.picture())[5, 5].mean() < 60 < before


# ------------------------------------------------------------------------------------------------ tables


def test_a_table_is_sorted_up_down_and_back(browser: Browser) -> None:
    hostile = "<script>window.hacked = 3</script>"
    printed = ["Qwen2", "+GRPO", "+DAPO", hostile]
    assert column(browser, "#tables table", 0) == printed
    head = "#tables thead th:nth-child({}) button"
    browser.click(head.format(2))  # accuracy, by its number: 100 is more than 20.8
    assert column(browser, "#tables table", 0) == ["Qwen2", "+DAPO", "+GRPO", hostile]
    assert browser.run("document.querySelector('#tables th:nth-child(2)').ariaSort") == "ascending"
    browser.click(head.format(2))
    assert column(browser, "#tables table", 0) == [hostile, "+GRPO", "+DAPO", "Qwen2"]
    paper = browser.run(f"{SHOWN.format('#tables table')}[1].rows[1].textContent")
    assert paper.split() == ["paper", "35.88", "677k"]  # went with its method
    browser.click(head.format(2))
    assert column(browser, "#tables table", 0) == printed
    browser.click(head.format(3))  # 900, 38.4k, 1.2M; nothing last
    assert column(browser, "#tables table", 2) == ["900", "38.4k", "1.2M", MISSING]
    browser.click(head.format(3))
    assert column(browser, "#tables table", 2) == ["1.2M", "38.4k", "900", MISSING]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12.7 ± 4.9 (sd 1.9)", 12.7),
        ("38.4k", 38400),
        ("1921k", 1921000),
        ("p < 0.001", 0.001),
        ("-0.6", -0.6),
        ("+9.3 to +9.7", 9.3),
        ("1,745,000", 1745000),
        ("2.62e11", 2.62e11),
        ("40%", 40),
        ("1 min 15 s", 1),
        ("qwen2-112k", None),
        ("2026-11-21T13:03:04Z", None),
        (MISSING, None),
        ("5.1.2", None),
        ("", None),
    ],
)
def test_the_number_that_a_cell_is_sorted_by(browser: Browser, text: str, number: float | None) -> None:
    assert browser.run(f"(n => Number.isNaN(n) ? null : n)(toNumber({text!r}))") == number


def test_data_open_as_a_table_and_download_as_they_are(browser: Browser, page: Path) -> None:
    data = "#table-table1 details[data-name='table1.csv']"
    browser.click(f"{data} summary")
    browser.until(f"document.querySelector({data + ' table'!r})")
    rows = f"[...document.querySelectorAll({data + ' tbody tr'!r})].map(r => [...r.cells].map(c => c.textContent))"
    assert browser.run(rows)[:2] == [["m0", "0", ""], ["m1", "7", ""]]
    output = f"document.querySelector({data + ' output'!r}).textContent"
    assert browser.run(output) == "first 200 of 250 rows"
    browser.click(f"{data} th:nth-child(2) button")
    browser.click(f"{data} th:nth-child(2) button")
    assert [r[1] for r in browser.run(rows)[:3]] == ["249", "248", "247"]
    browser.type(f"{data} input", "last script")
    assert browser.run(rows) == [["last", "", f'a, "b" {HOSTILE}']]
    assert browser.run(output) == "1 rows"
    link = f"document.querySelector({data + ' a'!r})"
    assert browser.run(f"{link}.download") == "table1.csv"
    assert browser.run(f"{link}.href").startswith("blob:")
    assert browser.run(f"unpack({packed(page)!r})") == (page.parent / "tables" / "table1.csv").read_text()


def packed(page: Path) -> str:
    return files.data(page.parent / "tables" / "table1.csv").href


# ------------------------------------------------------------------------------------------------ filters


def test_the_ledger_is_filtered(browser: Browser) -> None:
    form, table = "form[data-filters=claims-list]", "#claims-list"
    output = f"document.querySelector('{form} output').textContent"
    assert browser.run(output) == "8 of 8"
    browser.choose(f"{form} [data-field=verdict]", "contradicted")
    assert column(browser, table, 0) == ["contradicted"] * 2
    assert column(browser, table, 2) == ["Sentence 1", "Sentence 5"]
    browser.choose(f"{form} [data-field=task]", "overall")
    assert column(browser, table, 2) == ["Sentence 5"]
    browser.choose(f"{form} [data-field=section]", "abstract")
    assert (column(browser, table, 2), browser.run(output)) == ([], "0 of 8")
    browser.click(f"{form} button[type=reset]")
    browser.until(f"{output} === '8 of 8'")
    browser.type(f"{form} input", "NEEDLE 5")
    assert column(browser, table, 2) == ["Sentence 5"]
    browser.type(f"{form} input", "")
    assert browser.run(output) == "8 of 8"


def test_the_ledger_is_sorted_by_the_estimate(browser: Browser) -> None:
    browser.click("#claims-list th:nth-child(6) button")  # the heading says Here
    found = [v.removesuffix(" points") for v in column(browser, "#claims-list", 5)]
    assert found == ["4.0", "5.0", "6.0", "8.0", "9.0", "10.0", MISSING, MISSING]


def test_the_audit_is_filtered(browser: Browser) -> None:
    form = "form[data-filters=audit-list]"
    everything = column(browser, "#audit-list", 0)
    check = everything[0]
    browser.choose(f"{form} [data-field=check]", check)
    found = column(browser, "#audit-list", 0)
    assert found == [check] * everything.count(check) and len(found) < len(everything)


# ------------------------------------------------------------------------------------------------ figures


SIZE = "(b => [b.x, b.y, b.width, b.height])(document.querySelector('#zoom img').getBoundingClientRect())"


def test_a_figure_is_enlarged_zoomed_and_moved(browser: Browser) -> None:
    browser.click("#figure-figure4_training_curves .paper button")
    assert browser.run("document.querySelector('#zoom').open")
    assert browser.run("document.querySelector('#zoom-title').textContent") == "Figure 4: Training curves"
    x, y, width, height = browser.run(SIZE)
    assert width == pytest.approx(height * 4 / 3, rel=0.01) and width > 700
    point = (x + width / 4, y + height / 2)  # the wheel keeps what is under the pointer where it is
    browser.mouse("mouseWheel", *point, deltaX=0, deltaY=-200)
    browser.until(f"{SIZE}[2] > {width * 1.2}")
    zoomed = browser.run(SIZE)
    assert (point[0] - zoomed[0]) / zoomed[2] == pytest.approx(1 / 4, abs=0.01)
    assert (point[1] - zoomed[1]) / zoomed[3] == pytest.approx(1 / 2, abs=0.01)
    browser.mouse("mousePressed", *point, button="left", buttons=1, clickCount=1)
    browser.mouse("mouseMoved", point[0] + 50, point[1] + 30, button="left", buttons=1)
    browser.mouse("mouseReleased", point[0] + 50, point[1] + 30, button="left", clickCount=1)
    moved = browser.run(SIZE)
    assert [moved[0] - zoomed[0], moved[1] - zoomed[1]] == pytest.approx([50, 30], abs=1)
    browser.press("0")
    assert browser.run(SIZE) == pytest.approx([x, y, width, height], abs=1)
    browser.click("#zoom [data-zoom=out]")
    assert browser.run(SIZE)[2] == pytest.approx(0.8 * width, rel=0.01)


def test_a_sweep_shows_its_report_and_its_figure_is_enlarged(browser: Browser) -> None:
    browser.click("nav a[href='#sweeps']")
    assert browser.run("location.hash") == "#sweeps"
    text = browser.run("document.querySelector('#sweeps article').innerText")
    assert text.startswith("Robustness of BAPO: Small <b>grid</b> at smoke scale (Model M)\n")
    assert "the v: from 1 to 10 accuracy changes by +18.0 points" in text and f"Trial 3 failed: {HOSTILE}." in text
    tables = "[...document.querySelectorAll('#sweeps .scroll > table')].map(t => t.tBodies.length)"
    assert browser.run(tables) == [3, 4]  # levels and trials
    paper = "#figure-grid_robustness .paper"
    picture = pixels(browser.picture(paper)).astype(int)
    for colour in (style.VERMILLION, style.BLUE):  # trials in the region, the reference
        wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
        assert (np.abs(picture - wanted) < 12).all(axis=2).sum() > 20
    assert (picture > 250).all(axis=2).mean() > 0.5
    assert browser.run(f"document.querySelector('{paper} button').ariaLabel") == "Enlarge Small <b>grid</b>"
    browser.click(f"{paper} button")
    assert browser.run("document.querySelector('#zoom-title').textContent") == "Small <b>grid</b>"
    assert browser.run("document.querySelector('#zoom img').alt").startswith(
        "Small <b>grid</b>. Every point is a trial"
    )
    x, y, width, height = browser.run(SIZE)
    browser.mouse("mouseWheel", x + width / 2, y + height / 2, deltaX=0, deltaY=-200)
    browser.until(f"{SIZE}[2] > {width * 1.2}")
    assert browser.run("document.querySelector('#zoom [data-zoom=save]').download") == "grid_robustness.svg"
    browser.press("Escape", number=27)
    data = "#table-grid_robustness details[data-name='grid_robustness.csv']"
    browser.click(f"{data} summary")
    browser.until(f"document.querySelector({data + ' table'!r})")
    assert browser.run(f"document.querySelector({data + ' output'!r}).textContent") == "7 rows"


def test_a_figure_is_enlarged_with_the_keyboard_alone(browser: Browser) -> None:
    button = "#figure-another .paper button"
    browser.run(f"document.querySelector('{button}').focus()")
    browser.press("Enter", number=13)
    assert browser.run("document.querySelector('#zoom').open")
    width = browser.run(SIZE)[2]
    browser.press("+")
    assert browser.run(SIZE)[2] == pytest.approx(1.25 * width, rel=0.01)
    left = browser.run(SIZE)[0]
    browser.press("ArrowLeft", number=37)
    assert browser.run(SIZE)[0] == pytest.approx(left + 60, abs=1)
    browser.press("Escape", number=27)
    browser.until("!document.querySelector('#zoom').open")
    assert browser.run(f"document.activeElement === document.querySelector('{button}')")


# ------------------------------------------------------------------------------------------------ runs


def opened(browser: Browser) -> list[list[str]]:
    rows = "[...document.querySelectorAll('#runs-list table.settings tbody tr')]"
    return browser.run(f"{rows}.map(r => [...r.cells].map(c => c.textContent))")


def test_a_run_opens_beside_the_reference(browser: Browser) -> None:
    bapo = "#runs-list tbody[data-run='3'] td button"
    browser.click(bapo)
    different = [
        ["method.kl_to", "rollout", "reference"],
        ["method.name", "bapo", "grpo"],
        ["method.note", HOSTILE, MISSING],
        ["method.v", "5", MISSING],
    ]
    assert opened(browser) == different
    browser.click("#runs-list .opened input[type=checkbox]")
    assert opened(browser) == [*different, ["train.steps", "150", "150"]]
    browser.choose("#runs-list .opened select", "")
    assert opened(browser)[-1] == ["train.steps", "150"]
    assert "2026-11-21T13:03:04Z" in browser.run("document.querySelector('.opened .columns').textContent")
    browser.click(bapo)
    assert opened(browser) == []


def test_runs_are_found_by_their_configuration(browser: Browser) -> None:
    form = "form[data-filters=runs-list]"
    browser.type(f"{form} input", "method.v=5")
    assert column(browser, "#runs-list", 3) == ["1"]
    assert column(browser, "#runs-list", 0)[0].endswith("bapo")
    browser.type(f"{form} input", "")
    browser.choose(f"{form} [data-field=finished]", "no")
    assert column(browser, "#runs-list", 3) == [MISSING, "2"]  # the damaged base and the run that is missing
    browser.choose(f"{form} [data-field=finished]", "")
    browser.choose(f"{form} [data-field=studies]", "table1")
    assert len(column(browser, "#runs-list", 0)) == 5


def test_a_run_that_a_claim_names_is_found_in_the_list(browser: Browser) -> None:
    browser.choose("form[data-filters=runs-list] [data-field=finished]", "no")
    browser.click("#claim-2 details summary")
    browser.click("#claim-2 .list button")
    browser.until("document.querySelector('form[data-filters=runs-list] output').textContent === '1 of 5'")
    assert column(browser, "#runs-list", 3) == ["1"]


# ------------------------------------------------------------------------------------------------ the guards


def test_the_policy_stops_what_the_page_does_not_name(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    chromium.complaints.clear()
    chromium.run(
        "(() => { const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i);"
        " const s = document.createElement('div'); s.setAttribute('style', 'color: red'); document.body.append(s); })()"
    )
    chromium.run("new Promise(done => setTimeout(done, 200))")
    said = " ".join(chromium.complaints)
    assert "img-src" in said and "style-src" in said
    with pytest.raises(RuntimeError, match="TrustedHTML"):
        chromium.run("document.body.innerHTML = '<b>x</b>'")
    chromium.complaints.clear()
    chromium.requests.clear()


def test_what_watches_the_page_does_see_it(chromium: Browser, tmp_path: Path) -> None:
    """Else the tests above could not fail."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<script>console.error('seen'); fetch('http://127.0.0.1:9/asked').catch(() => 0); nothing()</script>"
    )
    chromium.complaints.clear()
    try:
        chromium.open(bad)
        chromium.run("new Promise(done => setTimeout(done, 200))")
        said = " ".join(chromium.complaints)
        assert "seen" in said and "nothing is not defined" in said
        assert chromium.requests == ["http://127.0.0.1:9/asked"]
    finally:
        chromium.complaints.clear()
        chromium.requests.clear()


WIDE = ("Method", "AIME24", "AMC", "MATH500", "Minerva", "Olympiad", "Avg", "Avg minus GRPO", "p (Holm)", "Against it")
WIDE += ("Rollouts", "Updates", "FLOPs", "Changed")


def test_a_table_of_fourteen_columns_fits_a_laptop(chromium: Browser, tmp_path: Path) -> None:
    """The widest that the analysis writes: a comparison on five benchmarks."""
    numbers = ["24.3 ± 1.9 (sd 0.5)"] * 6
    rows = [
        [
            "+BAPO, v = 10",
            *numbers,
            "+2.6 (+1.4 to +3.8)",
            "0.004",
            "above",
            "38.4k",
            "1,200",
            "2.61e+14",
            "v: 5 -> 10",
        ],
        ["+GRPO", *numbers, "reference", MISSING, MISSING, "38.4k", "1,200", "2.61e+14", ""],
    ]
    results = write_results(tmp_path)
    table = markdown_table(WIDE, rows, "l" + "r" * 12 + "l")
    (results / "tables" / "comparison_wide.md").write_text(f"# Comparison: wide\n\n## A task\n\n{table}")
    chromium.open(write(results).path, width=1280)
    box = "document.querySelector('#table-comparison_wide .scroll')"
    columns, needed_width, width = chromium.run(
        f"(b => [b.querySelectorAll('th').length, b.scrollWidth, b.clientWidth])({box})"
    )
    assert columns == 14 and needed_width <= width
