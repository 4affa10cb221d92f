"""The HTML report: what it collects, what it says where things are missing, and that no text becomes markup."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import jinja2
import pytest
from support.paths import ROOT
from support.report_folder import HOSTILE, write_results

from analysis.__main__ import main
from analysis.audit import SETUP, audit, load
from analysis.made import inputs_of_report
from analysis.report import claims, files, markdown, page, provenance, write
from analysis.text import MISSING
from bapo.errors import UserError

WORKFLOWS = ROOT / "workflows"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return write(folder).path.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Every element as (tag, attributes), and the text of script and style elements."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str]]] = []
        self.inside: list[tuple[str, dict[str, str], str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {k: v or "" for k, v in attrs}))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style") and self.cdata_elem:
            self.inside.append((*self.found[-1], data))


# ------------------------------------------------------------------------------------------------ Markdown


def test_inline_marks_pass_and_everything_else_is_text() -> None:
    assert markdown.html("**a** *b* `*c*` <u>d</u><br>e").strip() == (
        "<p><strong>a</strong> <em>b</em> <code>*c*</code> <u>d</u><br>e</p>"
    )
    assert markdown.html("2 <b onclick=x>* 3 * 4</b> [a](javascript:b) ![c](d) <http://e>").strip() == (
        "<p>2 &lt;b onclick=x&gt;* 3 * 4&lt;/b&gt; [a](javascript:b) ![c](d) &lt;http://e&gt;</p>"
    )


def test_a_row_in_italics_stays_with_the_row_above() -> None:
    text = "| Method | A |\n| :-- | --: |\n| +GRPO | 1 \\| 2 |\n| *paper* | *3* |\n| +DAPO | 4 |\n"
    assert str(markdown.html(text)).replace("\n", "") == (
        '<div class="scroll"><table class="sortable"><thead><tr><th>Method</th><th class="num">A</th></tr></thead>'
        '<tbody><tr><td>+GRPO</td><td class="num">1 | 2</td></tr>'
        '<tr><td><em>paper</em></td><td class="num"><em>3</em></td></tr></tbody>'
        '<tbody><tr><td>+DAPO</td><td class="num">4</td></tr></tbody></table></div>'
    )


def test_headings_lists_paragraphs_and_code() -> None:
    text = "## A\n\n- one\n  goes on\n- two\n\nb\nc\n```\n<d>\n```\n"
    assert str(markdown.html(text, level=3)).replace("\n", " ") == (
        "<h4>A</h4> <ul> <li>one goes on</li> <li>two</li> </ul> <p>b c</p> <pre><code>&lt;d&gt; </code></pre> "
    )
    assert markdown.title("# T\n\nrest\n") == ("T", "\nrest\n")


# ------------------------------------------------------------------------------------------------ what is collected


def test_tables_take_the_data_that_belong_to_them(folder: Path) -> None:
    found = {t.key: t for t in files.tables(folder / "tables")}
    assert list(found) == ["table1", "table2", "checkpoint_choice"]
    assert [d.name for d in found["table1"].data] == ["table1.csv", "table1.tex"]
    assert (found["table1"].data[0].rows, found["table1"].data[0].columns) == (250, 3)
    assert found["table1"].title == "Table 1 at laptop scale"
    assert found["checkpoint_choice"].title == "Checkpoint choice"
    assert found["checkpoint_choice"].body == ""
    assert [f.title for f in found["table2"].figures] == ["Monitor of <b>table 2</b>"]
    assert found["table1"].figures == ()


def test_data_are_the_files_bytes(folder: Path) -> None:
    path = folder / "tables" / "table1.csv"
    head, packed = files.data(path).href.split(",")
    assert head == "data:application/gzip;base64"
    assert gzip.decompress(base64.b64decode(packed)) == path.read_bytes()


def test_figures_by_the_papers_order(folder: Path) -> None:
    first, second = files.figure_list(folder / "figures")
    assert (first.title, first.suffix) == ("Figure 4: Training curves", ".svg")
    assert (first.width, first.height) == (288, 216)  # 4 x 3 inches of 72 points
    assert first.description == f"A curve. {HOSTILE}"
    assert (second.key, second.width, second.height) == ("another", 400, 300)  # at 100 points an inch
    assert [d.name for d in first.data] == ["figure4_training_curves.csv"]


def test_finished_sweeps_carry_their_names(folder: Path) -> None:
    """Not those that have only begun. Every sweep's files have the same names."""
    (found,) = files.sweeps(folder)
    assert (found.key, found.title) == (
        "grid_robustness",
        "Robustness of BAPO: Small <b>grid</b> at smoke scale (Model M)",
    )
    assert "<li>the v: from 1 to 10 accuracy changes by +18.0 points" in found.body
    assert "<h4>Trials, the best first</h4>" in found.body and "Trial 3 failed: &lt;script&gt;" in found.body
    (data,), (figure,) = found.data, found.figures
    assert (data.name, data.rows) == ("grid_robustness.csv", 7)  # 4 trials and 3 levels
    assert (figure.key, figure.suffix, figure.title) == ("grid_robustness", ".svg", "Small <b>grid</b>")
    assert figure.description.startswith("Every point is a trial")
    inputs = [path.relative_to(folder) for path in inputs_of_report(folder)]
    assert [str(path) for path in inputs if "sweeps" in path.parts] == [
        f"sweeps/grid/robustness.{suffix}" for suffix in ("md", "svg", "csv")
    ]


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "f.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"f\.png is damaged"):
        files.figure_list(tmp_path)


def test_every_configuration_is_kept_once(folder: Path) -> None:
    found = provenance.collect(folder)
    base, one, two, bapo, missing = found.runs
    assert (one.configuration, two.configuration, bapo.configuration) == (0, 0, 1)
    assert found.configurations[0] == {"method.kl_to": "reference", "method.name": "grpo", "train.steps": "150"}
    assert (bapo.reference, one.reference) == (1, None)  # GRPO with the same seed
    assert len(found.environments) == 1 and found.having(0) == 3
    assert (one.status, missing.status) == ("finished", "not run yet")
    assert "base/manifest.json is damaged" in base.status


def test_text_and_number_are_told_apart() -> None:
    assert provenance.flatten({"a": {"b": "5", "c": 5, "d": "on", "e": None}, "f": [1, "x"], "g": {}}) == {
        "a.b": '"5"',
        "a.c": "5",
        "a.d": "on",
        "a.e": "null",
        "f": '[1, "x"]',
        "g": "{}",
    }


def test_costs_by_hand(folder: Path) -> None:
    grpo, bapo, total = provenance.costs(provenance.collect(folder).runs)
    assert (grpo["name"], grpo["runs"], grpo["evaluation"]) == (("Countdown", "Qwen2", "+GRPO"), 2, 5.0)
    assert grpo["sums"] == {"seconds": 90.0, "rollouts": 2000, "updates": 6}
    assert (bapo["runs"], bapo["sums"]["seconds"]) == (1, 45.5)
    assert (total["runs"], total["sums"]["rollouts"], total["sums"]["seconds"]) == (3, 3100, 135.5)


def test_a_run_of_two_studies_is_listed_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    content = json.loads((folder / "studies" / "table1.json").read_text())
    for name in ("one", "two"):
        (tmp_path / "studies" / f"{name}.json").write_text(json.dumps({**content, "name": name}))
    found = provenance.collect(tmp_path)
    assert len(found.runs) == 5
    assert {tuple(r.studies) for r in found.runs} == {("one", "two")}


def test_runs_are_found_where_their_results_were_moved_to(folder: Path, tmp_path: Path, monkeypatch) -> None:
    """The studies name the runs by paths that were right where the results were made."""
    moved = tmp_path / "elsewhere" / "laptop"
    shutil.copytree(folder, moved)
    for path in (moved / "studies").glob("*.json"):
        path.write_text(path.read_text().replace(str(folder), "results/laptop"))
    monkeypatch.chdir(tmp_path)
    found = provenance.collect(moved)
    assert [r.status for r in found.runs][1:] == [r.status for r in provenance.collect(folder).runs][1:]
    assert {r.configuration for r in found.runs} == {None, 0, 1}
    assert all(Path(r.folder).is_relative_to(moved) for r in found.runs)


def test_claims_in_words(folder: Path) -> None:
    found = claims.load(folder / "claims.json")
    assert (found[0].estimate, found[0].interval, found[0].paper) == ("10.0", "1.2 to 11.5", "12.5")
    assert (found[3].estimate, found[3].interval, found[3].sort) == (MISSING, "", None)
    facts = dict(found[0].facts)
    assert facts["Parameters"] == "of: bapo, over: grpo, dapo"
    assert facts["p, Holm over the ledger"] == "0.0123"
    assert [p.interval for p in found[0].parts] == ["0.50 to 1.50", "0.50 to 3.50"]
    assert claims.tally(found)[:2] == [("reproduced", "good", 2), ("contradicted", "bad", 2)]


def test_quotations_lose_the_marks_of_their_source() -> None:
    quote = "removing \\mathcal{X}_2 causes a $\\sim 21\\%$ drop; **31%** <u>35.73</u> with $c_2 = 0$, MoPPS* and $5"
    assert claims.readable(quote) == "removing X2 causes a ~21% drop; 31% 35.73 with c2 = 0, MoPPS* and $5"


@pytest.mark.parametrize("content", ['{"a": 1}', '[{"quote": "no id"}]', "[1]", "{"])
def test_a_ledger_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "claims.json").write_text(content)
    with pytest.raises(UserError, match=r"claims\.json"):
        claims.load(tmp_path / "claims.json")


def test_numbers() -> None:
    seconds = [page.duration(s) for s in (14.55, 59.96, 95, 7500, None)]
    assert seconds == ["14.6 s", "1 min 00 s", "1 min 35 s", "2 h 05 min", MISSING]
    amounts = [page.amount(n) for n in (0, 42240, 643204, 2_599_999, 643_204_000, 262_454_844_416.0, None)]
    assert amounts == ["0", "42,240", "643,204", "2.60M", "643M", "2.62e11", MISSING]
    assert [page.readable_bytes(n) for n in (999, 1000, 999_960, 4_100_000)] == ["999 B", "1.0 kB", "1.0 MB", "4.1 MB"]


# ------------------------------------------------------------------------------------------------ the page


def test_nothing_in_the_page_runs_or_loads_but_its_own_script_and_style(html: str) -> None:
    found = Elements(html)
    tags = [tag for tag, _ in found.found]
    assert (tags.count("script"), tags.count("style")) == (2, 1)
    assert not {"iframe", "object", "embed", "link", "base", "foreignobject", "image", "use"} & set(tags)
    assert {a.get("class") for tag, a in found.found if tag == "svg"} <= {"gains"}  # of the template, from no file
    for tag, attributes in found.found:
        assert not [a for a in attributes if a.startswith("on") or a == "style"], (tag, attributes)
        for name in ("src", "href", "action", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    assert HOSTILE not in html


def test_the_policy_names_exactly_the_script_and_the_style(html: str) -> None:
    found = Elements(html)
    policy = next(a["content"] for tag, a in found.found if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        text = next(t for name, a, t in found.inside if name == tag and a.get("type") != "application/json")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["img-src"] == "data:"


def test_the_script_never_writes_markup() -> None:
    for path in page.FOLDER.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )


def test_the_data_of_the_runs_are_json(html: str) -> None:
    text = next(t for name, a, t in Elements(html).inside if a.get("type") == "application/json")
    content = json.loads(text)
    assert content["configurations"][1]["method.note"] == HOSTILE
    assert [r.get("configuration") for r in content["runs"]] == [None, 0, 0, 1, None]
    assert "<" not in text


def test_the_sweeps_have_a_section_where_there_are_any(html: str, tmp_path: Path) -> None:
    assert '<li><a href="#sweeps">Sweeps <span>1</span></a></li>' in html
    assert html.index('<section id="figures"') < html.index('<section id="sweeps"') < html.index('<section id="claims"')
    (tmp_path / "smoke").mkdir()
    without = write(tmp_path / "smoke").path.read_text(encoding="utf-8")
    assert "#sweeps" not in without and 'id="sweeps"' not in without


def test_no_name_is_given_twice_and_every_picture_has_words(html: str) -> None:
    found = Elements(html).found
    names = [a["id"] for _, a in found if "id" in a]
    assert len(names) == len(set(names)) and {"table-grid_robustness", "figure-grid_robustness"} <= set(names)
    words = [a["alt"] for tag, a in found if tag == "img" and "src" in a]
    assert all(words) and any(w.startswith("Small <b>grid</b>. Every point is a trial") for w in words)


def test_the_page_holds_every_finding_of_the_audit(html: str) -> None:
    count = len(audit(load(SETUP)))
    assert count > 0
    assert html.count("<tbody data-check=") == count


def test_the_same_results_give_the_same_page(folder: Path, html: str, tmp_path: Path) -> None:
    assert write(folder, tmp_path / "again.html").path.read_text(encoding="utf-8") == html


def test_an_empty_folder_says_what_makes_the_rest(tmp_path: Path) -> None:
    (tmp_path / "smoke").mkdir()
    made = write(tmp_path / "smoke")
    text = made.path.read_text(encoding="utf-8")
    for target in ("table1", "figures", "claims"):
        assert f"<pre>snakemake --cores all {target} --config scale=smoke</pre>" in text
    assert (made.runs, made.tables, made.figures, made.sweeps, made.claims) == (0, 0, 0, 0, 0)
    assert made.findings > 0


def test_the_command_of_a_study_is_that_which_was_given(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "table1.json").write_text((folder / "studies" / "table1.json").read_text())
    text = write(tmp_path).path.read_text(encoding="utf-8")
    assert "<pre>snakemake --cores all claims --config &#39;seeds=[1,2]&#39;</pre>" in text


def test_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(folder), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"wrote {out} (")
    assert "3 tables, 2 figures, 1 sweeps, 8 claims" in said and "5 runs of 2 configurations" in said
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "none does not exist" in capsys.readouterr().err


def test_a_study_without_runs_is_named(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "x.json").write_text("{}")
    with pytest.raises(UserError, match=r"x\.json: cells: has no value"):
        write(tmp_path)


# ------------------------------------------------------------------------------------------------ Snakemake's report


def test_every_caption_of_snakemakes_report_is_there_and_valid() -> None:
    """The captions are Jinja2 templates of reStructuredText, which Snakemake fills in and turns into HTML."""
    core = pytest.importorskip("docutils.core", reason="captions are turned into HTML with docutils, as by Snakemake")
    for path in (WORKFLOWS / "report").glob("*.rst"):
        job = SimpleNamespace(config={"scale": "smoke"}, params=SimpleNamespace(title="Table 2: overhead"))
        template = jinja2.Template(path.read_text("utf-8"), undefined=jinja2.StrictUndefined)
        text = template.render(snakemake=job)
        core.publish_parts(text, writer="html", settings_overrides={"halt_level": 2, "report_level": 2})  # 2: warnings
