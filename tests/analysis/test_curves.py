"""Figures 5, 12 and 16: the numbers behind the test curves against the runs, and what is drawn of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.run_directories import write_study

from analysis import reading, statistics, style
from analysis.figures import test_curves
from analysis.study import Study, load
from bapo.errors import UserError

pytestmark = pytest.mark.filterwarnings("error")

#: benchmarks whose names the paper knows, so that they need no stand-in
BENCHMARKS = {"amc": ("AMC", 1.6), "sums": ("Sums", 2.4, "aime24")}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"steps": 8, "problems": 12, "samples": 4, "task": "mathematics", "task_title": "Mathematics"}
    return write_study(
        tmp_path_factory.mktemp("study"), ("grpo", "dapo", "repo", "bapo"), (1, 2), benchmarks=BENCHMARKS, **sizes
    )


def renamed(file: Path, out: Path, names: dict[str, str], **changes: Any) -> Study:
    """The study with other methods' names on its runs; a run may stand under two."""
    content = json.loads(file.read_text())
    cells = [
        {**c, "method": new, "method_title": f"+{new}"}
        for new, old in names.items()
        for c in content["cells"]
        if c["method"] == old
    ]
    out.write_text(json.dumps({**content, "cells": cells, "curves": list(names), **changes}))
    return load(out)


def draw(function: Any, study: Study) -> tuple[Any, pd.DataFrame]:
    with style.settings():
        fig, frame = function(study)
        fig.canvas.draw()
    return fig, frame


def shown(fig: Any) -> list[Any]:
    return [a for a in fig.axes if a.get_visible()]


def lines(axes: Any) -> dict[str, np.ndarray]:
    """The thick lines by their labels: [T, 2]."""
    return {line.get_label(): line.get_xydata() for line in axes.lines if not line.get_label().startswith("_")}


# ------------------------------------------------------------------------------------------------ reading


def test_a_curve_is_the_tables_counts(file: Path) -> None:
    study = load(file)
    cells = study.blocks[0].methods["bapo"]
    found = reading.curves(cells, "amc", study)
    assert found.steps == (0, 2, 4, 6, 8) and found.correct.shape == (2, 5, 12) and found.samples == 4
    for seed, cell in enumerate(cells):
        table = pd.read_parquet(cell.run / "curve" / "amc.parquet")
        for row in table.sample(20, random_state=1).itertuples():
            where = found.steps.index(row.step), found.problems.index(row.problem_id)
            assert found.correct[seed][where] == row.correct
    assert found.accuracy.max() <= 1 and reading.validation(cells, study) == "probe"


def test_seeds_are_compared_at_the_steps_that_all_have(file: Path, tmp_path: Path) -> None:
    study = load(write_study(tmp_path, ("grpo",), (1, 2), steps=8, problems=3, samples=2))
    first, second = study.blocks[0].methods["grpo"]
    rewrite(second.run, lambda t: t[t["step"] != 6])
    assert reading.curves((first, second), "cd4", study).steps == (0, 2, 4, 8)
    rewrite(second.run, lambda t: t[t["problem_id"] != "synthetic-cd4-0001"])
    with pytest.raises(UserError, match=r"grpo/seed2/curve/cd4.parquet: its problems, samples or steps are not those"):
        reading.curves((first, second), "cd4", study)
    rewrite(first.run, lambda t: t.iloc[1:])
    with pytest.raises(UserError, match=r"grpo/seed1/curve/cd4.parquet: every problem must have one row a step"):
        reading.curve(first, "cd4", study)


def rewrite(run: Path, change: Any) -> None:
    from bapo.store.files import fingerprints, read_json, write_json, write_parquet

    path = run / "curve" / "cd4.parquet"
    write_parquet(path, change(pd.read_parquet(path)))
    summary = read_json(run / "curve" / "summary.json")
    summary["files"] |= fingerprints(run / "curve", ["cd4.parquet"])
    write_json(run / "curve" / "summary.json", summary)


# ------------------------------------------------------------------------------------------------ figures


def test_figure_12_draws_what_stands_in_the_runs(file: Path) -> None:
    study = load(file)
    fig, frame = draw(test_curves.figure12_test_curves, study)
    (axes,) = shown(fig)
    assert list(lines(axes)) == ["GRPO", "DAPO", "BAPO"]  # RePO has no curve
    assert set(frame["benchmark"]) == {"amc"} and len(frame) == 3 * 5
    curve = reading.curves(study.blocks[0].methods["dapo"], "amc", study)
    own = frame[frame["method"] == "dapo"]
    np.testing.assert_allclose(own["accuracy"], 100 * curve.correct.mean(axis=(0, 2)) / 4)
    np.testing.assert_allclose(own["seed_2"], 100 * curve.correct[1].mean(axis=1) / 4)
    interval = statistics.clustered(100 * curve.accuracy[:, 3].mean(axis=0))  # by problem, seeds averaged
    assert own["low"].iloc[3] == pytest.approx(interval.low) and own["high"].iloc[3] == pytest.approx(interval.high)
    np.testing.assert_allclose(lines(axes)["DAPO"], own[["step", "accuracy"]])
    thin = [line.get_ydata() for line in axes.lines if line.get_linewidth() < 1]
    assert len(thin) == 3 * 2
    assert any(np.allclose(y, own["seed_2"]) for y in thin)
    assert axes.get_title(loc="left") == "Mathematics, Synthetic 112k\nAMC"


def test_figure_5_has_the_papers_three_pairs_on_what_stands_for_aime(file: Path, tmp_path: Path) -> None:
    names = {"grpo": "grpo", "dapo": "dapo", "bapo+mini": "repo", "bapo": "bapo"}
    study = renamed(file, tmp_path / "study.json", {**names, "bapo+mini": "grpo"})
    fig, frame = draw(test_curves.figure5_test_curves, study)
    assert [list(lines(a)) for a in shown(fig)] == [["grpo", "bapo"], ["grpo", "bapo+mini"], ["dapo", "bapo"]]
    assert set(frame["benchmark"]) == {"sums"}
    assert len(frame) == 4 * 5  # a method in two panels has its rows once
    assert len({a.get_ylim() for a in shown(fig)}) == 1
    assert "Sums (for AIME24)" in style.said(fig) or "Sums (for aime24)" in style.said(fig)


def test_figure_16_has_a_star_at_the_highest_point(file: Path, tmp_path: Path) -> None:
    study = renamed(file, tmp_path / "study.json", {"ppo": "grpo", "ba_ppo": "bapo"})
    fig, frame = draw(test_curves.figure16_ppo, study)
    (axes,) = shown(fig)
    stars = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() == "*"]
    for (step, height), method in zip(stars, ("ppo", "ba_ppo"), strict=True):
        own = frame[frame["method"] == method]
        best = own.loc[own["accuracy"].idxmax()]
        assert (step, height) == (best["step"], pytest.approx(best["accuracy"]))
        assert own.loc[own["highest"], "step"].tolist() == [step]
    assert [line.get_marker() for line in axes.lines if not line.get_label().startswith("_")] == ["^", "o"]
    assert "chosen on the test problems" in style.said(fig)


def test_nothing_overlaps_or_leaves_the_page(file: Path, tmp_path: Path) -> None:
    fig, _ = draw(test_curves.figure12_test_curves, load(file))
    page = fig.bbox
    for axes in shown(fig):
        box = axes.get_tightbbox()
        assert page.x0 <= box.x0 and box.x1 <= page.x1 + 1 and box.y1 <= page.y1
        caption = next(t for t in fig.texts if t.get_gid() == "caption").get_window_extent()
        assert caption.y0 >= 0 and caption.x1 <= page.x1 and box.y0 > caption.y1
        assert fig.legends[0].get_window_extent().y0 > axes.title.get_window_extent().y1 - 1


def test_missing_curves_are_all_named_with_the_command(file: Path, tmp_path: Path) -> None:
    study = renamed(file, tmp_path / "study.json", {"ppo": "repo", "ba_ppo": "bapo"}, name="figure16")
    with pytest.raises(UserError) as error:
        test_curves.figure16_ppo(study)
    said = str(error.value)
    assert "2 of the 4 runs" in said and "seed1" in said and "seed2" in said
    assert "/repo/" in said and "/bapo/" not in said
    assert "`snakemake --cores all runs_figure16`" in said
    with pytest.raises(UserError, match="no test curves; name the methods that need them under 'curves'"):
        test_curves.figure12_test_curves(renamed(file, tmp_path / "other.json", {"grpo": "grpo"}, curves=[]))
