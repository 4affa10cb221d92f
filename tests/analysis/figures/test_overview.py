"""BAPO minus GRPO in every study: which rows there are, and their numbers by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.image import imread
from support.runs import outcomes, place, write_run, write_study

from analysis import study
from analysis.figures import overview

GRPO, BAPO = [(2, 4), (2, 5), (3, 4)], [(4, 6), (3, 7), (5, 6)]
#: of a base model: what makes it, by the seed of its weights
MADE = {"task": {"name": "countdown"}, "data": {}, "model": {"name": "tiny", "title": "Tiny"}}


def a_study(
    root: Path, models: dict[str, int], methods: tuple[str, ...], seeds: int, name: str, kind: str = ""
) -> study.StudyFile:
    """Write and load runs of two problems with 8 samples.

    models: the seed of each base model's weights; kind: what else makes them.
    """
    for model, base in models.items():
        for method in methods:
            for seed, counts in enumerate((GRPO if method == "grpo" else BAPO)[:seeds], start=1):
                config = {**MADE, "model": {"name": model, "title": model}, "base": {"seed": base, "kind": kind}}
                write_run(place(root, method, seed, model=model), {"a": outcomes(counts)}, config=config)
    cells = [(model, method, seed) for model in models for method in methods for seed in range(1, seeds + 1)]
    return study.load(write_study(root, cells, benchmarks=("a",), name=name))


def test_a_row_is_a_budget_and_a_kind_of_base_with_the_most_runs(tmp_path: Path) -> None:
    few = a_study(tmp_path / "few", {"tiny": 0}, ("grpo", "bapo", "bapo+rollouts"), 2, "few")
    more = a_study(tmp_path / "more", {"tiny": 0, "tiny+base_2": 1}, ("grpo", "bapo+rollouts"), 3, "more")
    frame = overview.data([few, more])
    assert frame[["method", "model", "runs", "study"]].to_numpy().tolist() == [
        ["bapo", "Tiny", 2, "few"],
        ["bapo+rollouts", "2 base models", 6, "more"],
    ]
    # eighths: 2, 2, then 1, 2 more than GRPO, on two problems
    assert frame["points"].tolist() == pytest.approx([100 * 7 / 4 / 8, 100 * (2 + 2 + 1 + 2 + 2 + 2) / 6 / 8])
    written = overview.write([few, more], tmp_path / "out", night=True)
    assert {file.suffix for file in written} == {".pdf", ".png", ".svg", ".csv"}
    light, dark = (imread(tmp_path / "out" / f"bapo_minus_grpo{name}.png") for name in ("", "_dark"))
    assert light.shape == dark.shape and light[0, 0, :3].min() > 0.9 > 0.1 > dark[0, 0, :3].max()
    assert pd.read_csv(tmp_path / "out" / "bapo_minus_grpo.csv")["paper"].notna().tolist() == [True, False]


def test_three_kinds_of_base_model_of_a_task_are_pooled(tmp_path: Path) -> None:
    """Kinds that agree: their mean, and its error by the square root of three, t with two degrees of freedom."""
    studies = [a_study(tmp_path / kind, {kind: 0}, ("grpo", "bapo"), 3, kind, kind) for kind in ("a", "b", "c")]
    assert overview.data(studies[:2])["pooled"].tolist() == [0, 0]
    frame = overview.data(studies)
    assert frame["pooled"].tolist() == [0, 0, 0, 3] and frame["runs"].tolist() == [3, 3, 3, 9]
    assert frame["points"].tolist() == pytest.approx([frame["points"][0]] * 4)
    # one kind: eighths 2 2, 1 2, 2 2 of two problems have an error of 1/6, to which seeds add nothing
    assert (frame["high"] - frame["points"])[3] == pytest.approx(100 * 4.302653 / 6 / 3**0.5 / 8, rel=1e-5)


def test_data_sets_are_one_row_in_which_each_counts_once(tmp_path: Path) -> None:
    """Leads of 2, 3/2 and 2 eighths in the first seed, the second and the third, which are of one data set each."""
    models, methods = {"tiny+a": 0, "tiny+b": 1, "tiny+c": 2}, ("grpo", "bapo")
    for model, counts in zip(models, zip(GRPO, BAPO, strict=True), strict=True):
        for method, of_method in zip(methods, counts, strict=True):
            config = {**MADE, "model": {"name": model}, "base": {"seed": models[model]}}
            config |= {"data": {"of_model": True, "seed": models[model]}}
            write_run(place(tmp_path, method, 1, model=model), {"a": outcomes(of_method)}, config=config)
    cells = [(model, method, 1) for model in models for method in methods]
    frame = overview.data([study.load(write_study(tmp_path, cells, benchmarks=("a",), name="angles"))])
    assert frame[["model", "runs", "pooled"]].to_numpy().tolist() == [["3 data sets", 3, 0]]
    assert frame["points"].tolist() == pytest.approx([100 * (2 + 3 / 2 + 2) / 3 / 8])
    # the error of a mean of three numbers, t with two degrees of freedom
    assert (frame["high"] - frame["points"])[0] == pytest.approx(100 * 4.302653 / 6 / 8, rel=1e-5)


def test_studies_without_both_methods_say_so(tmp_path: Path) -> None:
    svg = overview.write([a_study(tmp_path, {"tiny": 0}, ("grpo",), 2, "one")], tmp_path / "out")[2]
    assert "No study here" in svg.read_text()
