"""The figures: the numbers behind them against the runs, and their layout after drawing."""

from __future__ import annotations

import importlib
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from run_directories import write_study

from analysis import figures, style
from analysis.__main__ import main
from analysis.figures import common
from analysis.study import Study, load
from bapo.errors import UserError
from bapo.runs import read_table


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"), problems=4, samples=2)


@pytest.fixture(scope="module")
def study(file: Path) -> Study:
    return load(file, "figures")


@pytest.fixture(scope="module")
def drawn(study: Study) -> dict[str, tuple[Any, pd.DataFrame]]:
    with style.settings():
        return {name: importlib.import_module(f"analysis.figures.{name}").figure(study) for name in figures.NAMES}


def run_of(study: Study, method: str, seed: int) -> Path:
    return next(c.run for c in study.blocks[0].methods[method] if c.seed == seed)


# ------------------------------------------------------------------------------------------------ pure parts


def test_smooth_by_hand() -> None:
    assert style.smooth(np.array([0.0, 3, 6, 9]), 3).tolist() == [1.5, 3, 6, 7.5]  # shorter at the ends
    assert style.smooth(np.array([[1.0, 5], [2, 4]]), 1).tolist() == [[1, 5], [2, 4]]
    assert style.smooth(np.array([1.0, 2, 3]), 99).tolist() == [2, 2, 2]


def test_migration_by_hand() -> None:
    counts = common.migration(np.array([0, 0, 2, 2, 1]), np.array([0, 2, 1, 2, 0]), 2)
    assert counts.tolist() == [[1, 0, 1], [1, 0, 0], [0, 1, 1]]  # row: before, column: now
    assert common.degraded(counts) == pytest.approx(2 / 5)  # 2 -> 1 and 1 -> 0
    assert common.degraded(np.diag([3, 4])) == 0


def test_improved_by_hand() -> None:
    assert common.improved(np.array([0, 0, 0, 5]), np.array([0, 1, 8, 0])) == pytest.approx(2 / 3)
    assert np.isnan(common.improved(np.array([1]), np.array([2])))


def test_spaced_steps() -> None:
    assert common.spaced([0, 25, 50, 75, 100], 4) == [0, 25, 75, 100]
    assert common.spaced([0, 118, 236, 354, 471], 4) == [0, 118, 354, 471]
    assert common.spaced([100, 0], 4) == [0, 100]


def test_base_pairs_are_independent_samplings_of_the_base() -> None:
    def probe(values: list[int]) -> pd.DataFrame:
        return pd.DataFrame({0: values, 9: [8, 8]}, index=["a", "b"])

    pairs = common.base_pairs({1: probe([0, 3]), 2: probe([1, 3])})
    assert [(x.tolist(), y.tolist()) for x, y in pairs] == [([0, 3], [1, 3]), ([1, 3], [0, 3])]
    assert common.base_pairs({1: probe([0, 3]), 2: probe([0, 3])}) == []  # the same samples say nothing
    assert common.base_pairs({1: probe([0, 3])}) == []


def test_every_method_has_a_look_of_its_own() -> None:
    looks = [str(look) for look in style.METHODS.values()]
    assert len(set(looks)) == len(looks)
    unknown = [str(style.method_line("gspo", i)) for i in (0, 1)]
    assert unknown[0] != unknown[1] and not set(unknown) & set(looks)


# ------------------------------------------------------------------------------------------------ the data behind


def test_training_curves_hold_every_seed(study: Study, drawn: dict) -> None:
    frame = drawn["training_curves"][1]
    assert frame.groupby("method").seed.nunique().to_dict() == dict.fromkeys(study.blocks[0].methods, 3)
    mine = frame[(frame.method == "repo") & (frame.seed == 2)]
    raw = read_table(run_of(study, "repo", 2) / "steps.parquet")
    assert mine.reward_mean.tolist() == raw.reward_mean.tolist()
    assert mine.smoothed.tolist() == pytest.approx(
        raw.reward_mean.rolling(3, center=True, min_periods=1).mean().tolist()
    )


def test_cumulative_rollouts_are_the_ledgers_sums(study: Study, drawn: dict) -> None:
    frame = drawn["cumulative_rollouts"][1]
    ends = frame[frame.step == 20].set_index(["method", "seed"]).cumulative_rollouts
    for (method, seed), total in ends.items():
        summary = json.loads((run_of(study, method, seed) / "summary.json").read_text())
        assert total == summary["totals"]["rollouts"]


def test_batch_composition_is_x1_x2_x3(study: Study, drawn: dict) -> None:
    fig, frame = drawn["batch_composition"]
    assert frame.method.unique().tolist() == ["bapo", "bapo_without_x2", "bapo_without_x3"]
    assert (frame.x1 + frame.x2 + frame.x3 == frame.batch_groups).all() and set(frame.batch_size) == {16}
    assert frame[frame.method == "bapo_without_x2"].x2.sum() == 0
    # what is drawn: bars stacked to the mean batch, the red line at B
    axes = fig.axes[0]
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
    assert tops == pytest.approx(frame[frame.method == "bapo"].groupby("step").batch_groups.mean().tolist())
    assert list(axes.lines[0].get_ydata()) == [16, 16]


def test_migration_counts_every_prompt_once_a_seed(study: Study, drawn: dict) -> None:
    frame = drawn["migration_matrix"][1]
    assert set(frame.method) == {"bapo"} and sorted(frame.step.unique()) == [0, 5, 15, 20]
    assert (frame.groupby("step").prompts.sum() == 3 * 60).all()
    start = frame[frame.step == 0]
    assert start[start.initial != start.current].prompts.sum() == 0
    assert start.share_below_diagonal.eq(0).all()
    probes = [read_table(run_of(study, "bapo", k) / "probe.parquet").query("set == 'train'") for k in (1, 2, 3)]
    wide = [p.pivot(index="prompt_id", columns="step", values="correct") for p in probes]
    assert sum(((w[0] == 0) & (w[20] == 1)).sum() for w in wide) == (
        frame.query("step == 20 and initial == 0 and current == 1").prompts.item()
    )
    worse = sum((w[20] < w[0]).sum() for w in wide) / 180
    assert frame[frame.step == 20].share_below_diagonal.iloc[0] == pytest.approx(worse)


def test_tracking_counts_and_improvement(study: Study, drawn: dict) -> None:
    frame = drawn["tracking"][1]
    assert frame.method.unique().tolist() == ["grpo", "dapo", "bapo"]
    assert (frame.groupby(["method", "seed", "step"]).prompts.sum() == 60).all()
    probe = read_table(run_of(study, "grpo", 1) / "probe.parquet").query("set == 'train'")
    wide = probe.pivot(index="prompt_id", columns="step", values="correct")
    mine = frame.query("method == 'grpo' and seed == 1 and step == 20")
    assert mine.query("correct == 0").prompts.item() == (wide[20] == 0).sum()
    assert mine.improved_share.iloc[0] == pytest.approx((wide[20][wide[0] == 0] > 0).mean())
    # an unchanged base "improves" about as much as the difference between two samplings of it
    assert 0 < frame.unchanged_base_share.iloc[0] < mine.improved_share.iloc[0]


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


@pytest.mark.parametrize("name", figures.NAMES)
def test_no_text_is_cut_off_or_overlaps(name: str, drawn: dict) -> None:
    fig = drawn[name][0]
    width, height = fig.get_size_inches() * fig.dpi
    drawn_texts = texts_of(fig)
    assert len(drawn_texts) > 8
    for words, box in drawn_texts:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, words
    for (a, x), (b, y) in combinations(drawn_texts, 2):
        across = min(x.x1, y.x1) - max(x.x0, y.x0)
        along = min(x.y1, y.y1) - max(x.y0, y.y0)
        assert across <= 1 or along <= 2, (a, b)  # pixels: ink boxes of neighbouring lines may touch


@pytest.mark.parametrize("name", figures.NAMES)
def test_caption_says_how_many_seeds_and_what_the_scale_shows(name: str, drawn: dict) -> None:
    caption = " ".join(max((words for words, _ in texts_of(drawn[name][0])), key=len).split())
    assert "3 seeds" in caption and caption.endswith("Synthetic numbers for tests: they show nothing.")


# ------------------------------------------------------------------------------------------------ files and errors


def test_all_figures_by_one_command_and_again_with_the_same_bytes(file: Path, tmp_path: Path) -> None:
    assert main(["figures", "--study", str(file), "--out", str(tmp_path / "a")]) == 0
    names = {p.name for p in (tmp_path / "a").iterdir()}
    assert names == {f"{n}.{suffix}" for n in figures.NAMES for suffix in ("pdf", "png", "csv")}
    assert main(["figure", "tracking", "--study", str(file), "--out", str(tmp_path / "b")]) == 0
    for suffix in ("pdf", "png", "csv"):
        first, second = (tmp_path / d / f"tracking.{suffix}" for d in "ab")
        assert first.read_bytes() == second.read_bytes()
    assert (tmp_path / "a" / "tracking.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "a" / "tracking.pdf").read_bytes()[:5] == b"%PDF-"


def test_two_models_and_one_seed(tmp_path: Path) -> None:
    first = write_study(tmp_path, methods=("grpo", "bapo"), seeds=(1,), steps=4, problems=4, samples=2)
    content = json.loads(first.read_text())
    second = json.loads(
        write_study(tmp_path, ("grpo",), (1,), model="other", steps=4, problems=4, samples=2).read_text()
    )
    first.write_text(json.dumps({**content, "cells": content["cells"] + second["cells"]}))
    study = load(first, "figures")
    with style.settings():
        data = {n: importlib.import_module(f"analysis.figures.{n}").figure(study)[1] for n in figures.NAMES}
    methods = {"synthetic-112k": 2, "other": 1}
    for name in ("training_curves", "cumulative_rollouts", "tracking"):
        assert data[name].groupby("model").method.nunique().to_dict() == methods
    for name in ("migration_matrix", "batch_composition"):
        assert set(data[name].model) == {"synthetic-112k"}
    assert data["tracking"].unchanged_base_share.isna().all()  # one seed: chance cannot be told


def test_a_study_without_the_method(tmp_path: Path) -> None:
    study = load(write_study(tmp_path, ("grpo",), (1,), steps=2), "figures")
    matrix = importlib.import_module("analysis.figures.migration_matrix")
    with pytest.raises(UserError, match=r"method bapo: the study has no run of it; it has grpo"):
        matrix.figure(study, "bapo")
    composition = importlib.import_module("analysis.figures.batch_composition")
    with style.settings():  # not asked for by name, the figures show what there is
        for module in (matrix, composition):
            assert set(module.figure(study)[1].method) == {"grpo"}


def test_damaged_and_incomplete_runs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_study(tmp_path, ("bapo",), (1,), steps=4)
    run = run_of(load(file, "figures"), "bapo", 1)
    good = (run / "steps.parquet").read_bytes()
    (run / "steps.parquet").write_bytes(good[: len(good) // 2])
    assert main(["figure", "training_curves", "--study", str(file), "--out", str(tmp_path / "out")]) == 2
    assert str(run / "steps.parquet") in capsys.readouterr().err
    (run / "steps.parquet").write_bytes(good)
    (run / "summary.json").unlink()
    assert main(["figure", "training_curves", "--study", str(file), "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert str(run) in message and "`snakemake --cores all figures`" in message
    assert not (tmp_path / "out").exists()


def test_unknown_figure_lists_the_names(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["figure", "trainingcurves", "--study", str(file), "--out", "x"])
    assert "training_curves" in capsys.readouterr().err
