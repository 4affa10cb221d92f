"""The figures: the data behind each against the runs' own tables, what is drawn of it, layout, files and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from support.runs import rewrite
from support.simulated import MODEL, write_simulated

from analysis import figures, products, reading, style
from analysis.__main__ import main
from analysis.figures import bins, curves, frames
from analysis.study import StudyFile, load
from bapo.errors import UserError
from bapo.store.files import read_table

KINDS = ("pdf", "png", "svg", "csv")
STUDIES = ("table1", "figure5", "figure6", "figure10", "figure16")
#: figure -> the study that it is drawn from
NAMES = {name: study for study in STUDIES for name in products.figures_of(study)}
COUNTDOWN, MATHEMATICS = ("countdown", MODEL), ("mathematics", MODEL)
Drawn = Callable[[str], tuple[Any, pd.DataFrame]]


def draw(name: str, study: StudyFile) -> tuple[Any, pd.DataFrame]:
    with style.settings():
        return figures.function(name)(study)


@pytest.fixture(scope="module")
def drawn(simulated: dict[str, Path]) -> Drawn:
    """Return what draws a figure of the simulated studies, once."""
    kept: dict[str, tuple[Any, pd.DataFrame]] = {}

    def once(name: str) -> tuple[Any, pd.DataFrame]:
        if name not in kept:
            kept[name] = draw(name, load(simulated[NAMES[name]]))
        return kept[name]

    return once


def caption(fig: Any) -> str:
    return str(fig.get_label())


def test_smooth_by_hand() -> None:
    assert frames.smooth(pd.Series([0.0, 3, 6, 9]), 3).tolist() == [1.5, 3, 6, 7.5]  # shorter at the ends
    assert frames.smooth(pd.Series([1.0, 5]), 1).tolist() == [1, 5]
    assert frames.smooth(pd.Series([1.0, 2, 3]), 99).tolist() == [2, 2, 2]


def test_spaced_steps_and_looks() -> None:
    assert bins.spaced([0, 118, 236, 354, 471], 4) == [0, 118, 354, 471]
    assert bins.spaced([100, 0], 4) == [0, 100]
    looks = [str(look) for look in style.METHODS.values()]
    unknown = [style.method_line("gspo", i) for i in range(35)]
    assert len(set(looks)) == len(looks) and not any("marker" in style.method_line(m) for m in style.METHODS)
    assert len({(look["color"], look["marker"]) for look in unknown}) == 35


def test_seeds_are_compared_at_the_steps_that_all_have(tmp_path: Path) -> None:
    study = load(write_simulated(tmp_path, "table1", {COUNTDOWN: ("grpo",)}, curves=("grpo",)))
    first, second = study.blocks[0].methods["grpo"]
    table = read_table(second.run / "curve" / "cd4.parquet")
    rewrite(second.run / "curve", cd4=table[table["step"] != 6])
    assert reading.curves((first, second), "cd4", study).steps == (0, 3, 9, 12)
    rewrite(second.run / "curve", cd4=table.replace({"step": {12: 10}}))  # a budget may end a seed earlier
    earlier = reading.curves((first, second), "cd4", study)
    assert earlier.steps == (0, 3, 6, 9, 12)
    assert earlier.correct[1, -1].tolist() == table.loc[table["step"] == 12, "correct"].tolist()
    for broken, message in (
        (table[table["problem_id"] != "p01"], "grpo/seed2/curve/cd4.parquet"),
        (table.iloc[1:], "grpo/seed2/curve/cd4.parquet"),
    ):
        rewrite(second.run / "curve", cd4=broken)
        with pytest.raises(UserError, match=message):
            reading.curves((first, second), "cd4", study)


def texts_of(fig: Any) -> list[tuple[str, Any]]:
    """Return (words, box in pixels) of every text that is seen after drawing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(fig)
    with style.settings():
        canvas.draw()
    beyond = set()  # labels of ticks outside the axis limits exist and are not drawn
    for axis in (a for axes in fig.axes for a in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        beyond |= {id(t.label1) for t in axis.get_major_ticks() if not low <= t.get_loc() <= high}
    shown = [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip() and id(t) not in beyond]
    shown = [t for t in shown if t.axes is None or t.axes.get_visible()]
    return [(t.get_text(), Text.get_window_extent(t, canvas.get_renderer())) for t in shown]


def assert_readable(fig: Any) -> None:
    """Assert that no text is cut off or overlaps another."""
    width, height = fig.get_size_inches() * fig.dpi
    found = texts_of(fig)
    assert len(found) > 8
    for words, box in found:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, words
    for (a, x), (b, y) in combinations(found, 2):
        across, along = min(x.x1, y.x1) - max(x.x0, y.x0), min(x.y1, y.y1) - max(x.y0, y.y0)
        assert across <= 1 or along <= 2, (a, b)  # pixels: ink boxes of neighbouring lines may touch


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_cut_off_or_overlaps_and_the_caption_is_whole(name: str, drawn: Drawn) -> None:
    fig, _ = drawn(name)
    assert_readable(fig)
    assert "2 seeds" in caption(fig) and caption(fig).endswith("it shows nothing.")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> StudyFile:
    """Return a study of eleven methods, some with long titles."""
    equal = ("bapo", "bapo+v2", "bapo+v10", "bapo+fixed_0_2", "bapo_without_x3", "dapo", "bapo+gaussian")
    methods = ("grpo", "dapo", "bapo", "bapo_without_x2", *(f"{m}+rollouts" for m in equal))
    return load(write_simulated(tmp_path_factory.mktemp("many"), "many", {COUNTDOWN: methods}))


@pytest.mark.parametrize("name", ["training_curves", "unsolved_share", "pass_at_k"])
def test_many_methods_are_told_apart_in_the_legend_and_the_panels(name: str, many: StudyFile) -> None:
    fig, _ = draw(name, many)
    assert_readable(fig)
    labels = fig.axes[0].get_legend_handles_labels()[1]
    looks = {str(curves.look(many.blocks[0], method)) for method in many.blocks[0].methods}
    assert len(looks) == len(many.blocks[0].methods) == 11 and len(set(labels)) == len(labels) >= 10


def test_many_curves_have_no_bands(many: StudyFile) -> None:
    fig, _ = draw("training_curves", many)
    assert "at most 6 lines" in caption(fig) and not any(axes.collections for axes in fig.axes)


def test_a_panel_of_more_than_six_lines_has_no_bands(drawn: Drawn) -> None:
    fig, frame = drawn("figure4_training_curves")
    assert frame.groupby("task", sort=False)["method"].nunique().to_dict() == {"mathematics": 5, "countdown": 7}
    assert [len(axes.collections) for axes in fig.axes[:2]] == [5, 0]


def test_files_open_everywhere_and_have_the_same_bytes_again(simulated: dict[str, Path], tmp_path: Path) -> None:
    name = "figure10_online_filters"
    for out in ("a", "b"):
        assert main(["figure", name, "--study", str(simulated["figure10"]), "--out", str(tmp_path / out)]) == 0
    assert {p.name for p in (tmp_path / "a").iterdir() if p.is_file()} == {f"{name}.{kind}" for kind in KINDS}
    for kind in KINDS:
        assert (tmp_path / "a" / f"{name}.{kind}").read_bytes() == (tmp_path / "b" / f"{name}.{kind}").read_bytes()
    root = ElementTree.parse(tmp_path / "a" / f"{name}.svg").getroot()
    assert [e for e in root.iter("{http://www.w3.org/2000/svg}text")] == []  # letters are paths: no font is needed
    names = {"dc": "http://purl.org/dc/elements/1.1/", "cc": "http://creativecommons.org/ns#"}
    title, words, date = (root.findtext(f".//cc:Work/dc:{f}", None, names) for f in ("title", "description", "date"))
    assert title == "Figure 10: Online filters" and date is None and words and words.endswith("it shows nothing.")


def test_one_seed_knows_no_chance_and_two_models_stand_apart(tmp_path: Path) -> None:
    parts = {COUNTDOWN: ("grpo", "bapo"), ("countdown", "other"): ("grpo",)}
    study = load(write_simulated(tmp_path, "table1", parts, (1,), curves=("grpo", "bapo")))
    with pytest.raises(UserError, match="curves"):
        draw("figure12_test_curves", replace(study, curves=()))
    data = {name: draw(name, study) for name in NAMES}  # a study with few of the methods: all figures are drawn
    for name in ("figure4_training_curves", "figure9_cumulative_rollouts", "figure7_tracking"):
        assert data[name][1].groupby("model").method.nunique().to_dict() == {MODEL: 2, "other": 1}
    for name in ("figure15_migration", "figure8_batch_composition"):
        assert set(data[name][1].model) == {MODEL}
    for name in ("figure1_accuracy_groups", "figure7_tracking", "figure15_migration"):
        assert "Not shown: one seed" in caption(data[name][0])
    assert data["figure7_tracking"][1].unchanged_base_across_seeds.isna().all()
    assert set(data["figure15_migration"][1].compared) == {"within a run"}
