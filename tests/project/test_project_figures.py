"""A figure of a project's own stands with its study's comparison; the example is that of docs/project.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pages import write_examples
from support.runs import place, write_run, write_study

from analysis import products, report
from analysis.__main__ import main
from bapo.errors import UserError
from bapo.experiments import studies

CODE = "figures/lengths.py"
FIGURE = f"{CODE}:response_lengths"
STUDY = """\
name: lengths
title: Lengths
figures: [{figure}]
scales:
  laptop:
    - {{task: countdown, models: [qwen2-112k], methods: [grpo, bapo], seeds: [1, 2]}}
"""


@pytest.fixture
def project(empty: Path) -> Path:
    write_examples(empty, CODE)
    (empty / "experiments" / "study").mkdir(parents=True)
    describe(empty, FIGURE)
    return empty


def describe(folder: Path, figure: str) -> None:
    (folder / "experiments" / "study" / "lengths.yaml").write_text(STUDY.format(figure=figure))


def test_the_comparison_draws_it_and_the_report_shows_it(project: Path) -> None:
    cells = [("tiny", method, seed) for method in ("grpo", "bapo") for seed in (1, 2)]
    for _, method, seed in cells:
        steps = [{"response_length": 10.0 * seed + i} for i in range(3)]
        write_run(place(project, method, seed), {"a": [[0, 1]] * 4, "b": [[1, 0]] * 4}, steps=steps)
    study = write_study(project, cells, name="lengths", reference="grpo")
    out = project / "tables"
    assert main(["comparison", "--study", str(study), "--out", str(out)]) == 0
    made = {f"tables/{path.name}" for path in out.glob("comparison_lengths_response_lengths.*")}
    assert {Path(file).suffix for file in made} == {".pdf", ".png", ".svg", ".csv"}
    data = (out / "comparison_lengths_response_lengths.csv").read_text().splitlines()
    assert data[0].startswith("step,response_length") and len(data) == 1 + 4 * 3
    (table,) = (part for part in report._parts(out, out) if part.key == "comparison_lengths")
    assert [picture.file for picture in table.pictures] == ["comparison_lengths_response_lengths.svg"]


def test_a_study_knows_it_and_names_what_is_wrong(project: Path) -> None:
    assert products.own_figures("lengths") == [FIGURE] and products.own_figures("table1") == []
    describe(project, "figures/none.py:draw")
    with pytest.raises(UserError, match=r"figures=figures/none\.py:draw: no file"):
        studies.load_study("lengths", "laptop")
    describe(project, "drifts")
    with pytest.raises(UserError, match="no figure 'drifts'"):
        products.compared_with("lengths")
    describe(project, f"{CODE}:other")
    from analysis import figures

    with pytest.raises(UserError, match=r"lengths\.py has no other"):
        figures.function(f"{CODE}:other")
