"""The figures as files and pages: layout after drawing, captions, bytes, and what is said where runs are missing."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from support import figure_studies
from support.figure_studies import NAMES, figure, run_of, write_all, write_table1
from support.run_directories import write_study

from analysis import figures, products, style
from analysis.__main__ import main
from analysis.study import load
from bapo.errors import UserError

KINDS = ("pdf", "png", "svg", "csv")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def drawn(files: dict[str, Path]) -> dict[str, Any]:
    studies = products.drawn_by(products.figures_of, "laptop")
    return {name: figure_studies.drawn(name, files[studies[name]])[0] for name in NAMES}


# ------------------------------------------------------------------------------------------------ the registry


def test_a_figure_is_a_function_named_by_number_and_content() -> None:
    numbers = [int(entry.number.removeprefix("Figure ")) for entry in products.FIGURES.values()]
    assert numbers == [1, *range(4, 17)]
    for name, entry in products.FIGURES.items():
        assert name.startswith(f"figure{entry.number.removeprefix('Figure ')}_")
        assert callable(figures.function(name))


def test_every_method_has_a_look_of_its_own() -> None:
    looks = [str(look) for look in style.METHODS.values()]
    assert len(set(looks)) == len(looks)
    unknown = [str(tuple(style.method_line("gspo", i).values())) for i in range(9)]
    assert len(set(unknown)) == 9 and not set(unknown) & set(looks)


# ------------------------------------------------------------------------------------------------ layout


def outside(fig: Any) -> set[int]:
    """Labels of ticks beyond the axis limits: they exist but are not drawn."""
    found = set()
    for axis in (a for axes in fig.axes for a in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        found |= {id(t.label1) for t in axis.get_major_ticks() if not low <= t.get_loc() <= high}
    return found


def texts_of(fig: Any) -> list[tuple[str, Any]]:
    """(words, box in pixels) of every visible text after drawing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(fig)
    with style.settings():
        canvas.draw()
    shown = [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip()]
    shown = [t for t in shown if (t.axes is None or t.axes.get_visible()) and id(t) not in outside(fig)]
    return [(t.get_text(), Text.get_window_extent(t, canvas.get_renderer())) for t in shown]


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_cut_off_or_overlaps(name: str, drawn: dict) -> None:
    fig = drawn[name]
    width, height = fig.get_size_inches() * fig.dpi
    drawn_texts = texts_of(fig)
    assert len(drawn_texts) > 8
    for words, box in drawn_texts:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, words
    for (a, x), (b, y) in combinations(drawn_texts, 2):
        across = min(x.x1, y.x1) - max(x.x0, y.x0)
        along = min(x.y1, y.y1) - max(x.y0, y.y0)
        assert across <= 1 or along <= 2, (a, b)  # pixels: ink boxes of neighbouring lines may touch


@pytest.mark.parametrize("name", NAMES)
def test_caption_says_how_many_seeds_and_what_the_scale_shows(name: str, drawn: dict) -> None:
    caption = " ".join(max((words for words, _ in texts_of(drawn[name])), key=len).split())
    assert "2 seeds" in caption and caption.endswith("Synthetic numbers for tests: they show nothing.")


# ------------------------------------------------------------------------------------------------ files


@pytest.mark.slow
def test_all_figures_of_a_study_by_one_command_and_again_with_the_same_bytes(
    files: dict[str, Path], tmp_path: Path
) -> None:
    assert main(["figures", "--study", str(files["table1"]), "--out", str(tmp_path / "a")]) == 0
    names = [name for name, study in products.drawn_by(products.figures_of, "laptop").items() if study == "table1"]
    assert {p.name for p in (tmp_path / "a").iterdir() if p.is_file()} == {
        f"{n}.{kind}" for n in names for kind in KINDS
    }
    for name in ("figure7_tracking", "figure8_batch_composition", "figure15_migration"):
        assert main(["figure", name, "--study", str(files["table1"]), "--out", str(tmp_path / "b")]) == 0
        for kind in KINDS:
            first, second = (tmp_path / d / f"{name}.{kind}" for d in "ab")
            assert first.read_bytes() == second.read_bytes()
    assert (tmp_path / "a" / "figure7_tracking.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "a" / "figure7_tracking.pdf").read_bytes()[:5] == b"%PDF-"


def test_an_svg_opens_everywhere_and_says_what_it_shows(files: dict[str, Path], tmp_path: Path) -> None:
    assert main(["figures", "--study", str(files["figure6"]), "--out", str(tmp_path)]) == 0
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} == {f"figure6_ablations.{kind}" for kind in KINDS}
    root = ElementTree.parse(tmp_path / "figure6_ablations.svg").getroot()
    assert [e for e in root.iter("{http://www.w3.org/2000/svg}text")] == []  # letters are paths: no font is needed
    names = {"dc": "http://purl.org/dc/elements/1.1/", "cc": "http://creativecommons.org/ns#"}
    words = {field: root.findtext(f".//cc:Work/dc:{field}", None, names) for field in ("title", "description", "date")}
    assert words["title"] == "Figure 6: Ablations of BAPO" and words["date"] is None
    assert words["description"].startswith("Above: mean reward") and words["description"].endswith("they show nothing.")


def test_two_models_and_one_seed(tmp_path: Path) -> None:
    first = write_study(tmp_path, methods=("grpo", "bapo"), seeds=(1,), steps=4, problems=4, samples=2)
    content = json.loads(first.read_text())
    second = json.loads(
        write_study(tmp_path, ("grpo",), (1,), model="other", steps=4, problems=4, samples=2).read_text()
    )
    first.write_text(json.dumps({**content, "cells": content["cells"] + second["cells"]}))
    study = load(first)
    data = {name: figure(name, study)[1] for name in NAMES}  # a study of one task, with few of the methods: all drawn
    methods = {"synthetic-112k": 2, "other": 1}
    for name in ("figure4_training_curves", "figure9_cumulative_rollouts", "figure7_tracking", "figure13_tracking"):
        assert data[name].groupby("model").method.nunique().to_dict() == methods
    for name in ("figure15_migration", "figure8_batch_composition", "figure14_batch_composition"):
        assert set(data[name].model) == {"synthetic-112k"}
    for name in ("figure1_accuracy_groups", "figure7_tracking"):  # one seed: chance cannot be told
        assert data[name].unchanged_base_across_seeds.isna().all()
        fig = figure(name, study)[0]
        assert "There is no fair chance level here (one seed:" in style.said(fig)
        assert not [words for words, _ in texts_of(fig) if "unchanged base" in words]


# ------------------------------------------------------------------------------------------------ errors


def test_a_study_without_the_method(tmp_path: Path) -> None:
    study = load(write_study(tmp_path, ("grpo",), (1,), steps=2))
    with pytest.raises(UserError, match=r"method bapo: the study has no run of it; it has grpo"):
        figures.draw("figure15_migration", study, tmp_path, "bapo")
    for name in NAMES:  # not asked for by name, the figures show what there is
        methods = set(figure(name, study)[1].method)
        assert "grpo" in methods and methods <= {"grpo", "base"}


def test_missing_runs_are_all_named_with_the_command_that_makes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_table1(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"config": ["scale=smoke"]}))
    study = load(file)
    missing = [run_of(study, "countdown", method, seed) for method, seed in (("grpo", 1), ("grpo", 2), ("bapo", 2))]
    for run in missing:
        (run / "summary.json").unlink()
    assert main(["figure", "figure13_tracking", "--study", str(file), "--out", str(tmp_path / "out")]) == 2
    place = missing[0].parents[1]
    assert capsys.readouterr().err == (
        f"error: 3 of the 12 runs that the figure shows are not finished: {place}/grpo/{{seed1,seed2}}, "
        f"{place}/bapo/seed2; make what is missing with `snakemake --cores all runs_table1 --config scale=smoke`\n"
    )
    assert not (tmp_path / "out").exists()
    # mathematics is there
    assert main(["figure", "figure7_tracking", "--study", str(file), "--out", str(tmp_path / "out")]) == 0


def test_a_study_file_without_a_name_points_to_all_figures(tmp_path: Path) -> None:
    study = load(write_study(tmp_path, ("bapo",), (1,), steps=2))
    (study.blocks[0].methods["bapo"][0].run / "summary.json").unlink()
    with pytest.raises(
        UserError, match=r"1 of the 1 runs .* is not finished: .*seed1; .*`snakemake --cores all figures`"
    ):
        figure("figure4_training_curves", study)
    assert figures.of_study("") == figures.of_study("table1") and figures.of_study("figure6") == ["figure6_ablations"]


def test_a_damaged_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_study(tmp_path, ("bapo",), (1,), steps=4)
    path = load(file).blocks[0].methods["bapo"][0].run / "steps.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert main(["figure", "figure4_training_curves", "--study", str(file), "--out", str(tmp_path / "out")]) == 2
    assert str(path) in capsys.readouterr().err


def test_unknown_figure_lists_the_names(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["figure", "figure4", "--study", str(files["table1"]), "--out", "x"])
    assert "figure4_training_curves" in capsys.readouterr().err
