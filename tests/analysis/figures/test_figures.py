"""The figures: the numbers behind each, recomputed from the run directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import figure_studies
from support.figure_studies import NAMES, THREE, figure, rewrite_steps, run_of, write_all, write_figure6
from support.run_directories import write_study

from analysis import products, style
from analysis.figures import common, probed
from analysis.study import Study, load
from bapo.store.files import read_json, read_table


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def studies(files: dict[str, Path]) -> dict[str, Study]:
    return {name: load(path) for name, path in files.items()}


@pytest.fixture(scope="module")
def drawn(files: dict[str, Path]) -> dict[str, tuple[Any, pd.DataFrame]]:
    studies = products.drawn_by(products.figures_of, "laptop")
    return {name: figure_studies.drawn(name, files[studies[name]]) for name in NAMES}


def probe(run: Path, probed_set: str = "train") -> pd.DataFrame:
    """Correct answers, rows prompts, columns steps."""
    return (
        read_table(run / "probe.parquet")
        .query("set == @probed_set")
        .pivot(index="prompt_id", columns="step", values="correct")
    )


# ------------------------------------------------------------------------------------------------ pure parts


def test_smooth_by_hand() -> None:
    assert style.smooth(np.array([0.0, 3, 6, 9]), 3).tolist() == [1.5, 3, 6, 7.5]  # shorter at the ends
    assert style.smooth(np.array([[1.0, 5], [2, 4]]), 1).tolist() == [[1, 5], [2, 4]]
    assert style.smooth(np.array([1.0, 2, 3]), 99).tolist() == [2, 2, 2]


def test_spaced_steps() -> None:
    assert probed.spaced([0, 25, 50, 75, 100], 4) == [0, 25, 75, 100]
    assert probed.spaced([0, 118, 236, 354, 471], 4) == [0, 118, 354, 471]
    assert probed.spaced([100, 0], 4) == [0, 100]


def test_variants_are_called_by_what_they_change() -> None:
    titles = ("BAPO, v = 10", "BAPO without X2", "BAPO (mini test)", "BAPO", "GRPO (v = 5)")
    assert [common.short(t) for t in titles] == ["v = 10", "without X2", "mini test", "BAPO", "GRPO (v = 5)"]


# ------------------------------------------------------------------------------------------------ the data behind


def test_1_accuracy_groups_before_and_after(studies: dict, drawn: dict) -> None:
    fig, frame = drawn["figure1_accuracy_groups"]
    assert set(frame.task) == {"mathematics"} and set(frame.method) == {"grpo"} and set(frame.step) == {0, 20}
    assert (frame.groupby(["seed", "step"]).prompts.sum() == 60).all()
    wide = probe(run_of(studies["table1"], "mathematics", "grpo", 2))
    mine = frame.query("seed == 2")
    for step in (0, 20):
        assert mine[mine.step == step].prompts.tolist() == [(wide[step] == c).sum() for c in range(9)]
    differences = [abs((wide[0] == c).sum() - (wide[20] == c).sum()) for c in range(9)]
    assert mine.moved_within_run.iloc[0] == pytest.approx(sum(differences) / 2 / 60)
    other = probe(run_of(studies["table1"], "mathematics", "grpo", 1))  # the base of seed 1 against both of seed 2
    across = {
        step: sum(abs((other[0] == c).sum() - (wide[step] == c).sum()) for c in range(9)) / 2 / 60 for step in wide
    }
    assert mine.moved_across_seeds.iloc[0] == pytest.approx(across[20])
    assert mine.unchanged_base_across_seeds.iloc[0] == pytest.approx(across[0])
    assert 0 < across[0] < across[20]
    mean = {column: frame.groupby("seed")[column].first().mean() for column in frame.columns if "_" in column}
    detail = [t.get_text() for t in fig.axes[0].texts if t.get_text().startswith("moved")]
    assert detail == [
        f"moved within a run: {mean['moved_within_run']:.0%}   across seeds: {mean['moved_across_seeds']:.0%}   "
        f"unchanged base: {mean['unchanged_base_across_seeds']:.0%}"
    ]


def test_4_training_curves_hold_every_seed(studies: dict, drawn: dict) -> None:
    frame = drawn["figure4_training_curves"][1]
    for block in studies["table1"].blocks:
        seeds = frame[frame.task == block.task].groupby("method").seed.nunique()
        assert seeds.to_dict() == dict.fromkeys(block.methods, 2)
    mine = frame.query("task == 'mathematics' and method == 'repo' and seed == 2")
    raw = read_table(run_of(studies["table1"], "mathematics", "repo", 2) / "steps.parquet").reward_mean
    assert mine.reward_mean.tolist() == raw.tolist()
    assert mine.smoothed.tolist() == pytest.approx(raw.rolling(3, center=True, min_periods=1).mean().tolist())


def test_6_ablations_hold_rewards_and_test_accuracy(studies: dict, drawn: dict) -> None:
    fig, frame = drawn["figure6_ablations"]
    run = run_of(studies["figure6"], "countdown", "bapo+v10", 2)
    mine = frame.query("method == 'bapo+v10' and seed == 2")
    assert (
        mine.query("measure == 'reward_mean'").value.tolist() == read_table(run / "steps.parquet").reward_mean.tolist()
    )
    by_hand = np.mean([read_table(run / "eval" / f"{name}.parquet").correct.mean() for name in ("cd34", "cd4")])
    assert mine.query("measure == 'test_accuracy'").value.item() == pytest.approx(by_hand)
    accuracy = frame.query("method == 'bapo+v10' and measure == 'test_accuracy'")
    mean = accuracy[accuracy.seed.isna()].iloc[0]
    assert (
        mean.value == pytest.approx(accuracy.value[accuracy.seed.notna()].mean()) and mean.low < mean.value < mean.high
    )
    shown = [[t.get_text() for t in axes.texts if t.get_text()] for axes in fig.axes[3:]]
    assert [sorted(set(s)) for s in shown] == [
        ["m = 1", "v = 10", "v = 5, m = 5"],
        ["BAPO", "without X2", "without X3"],
        ["adaptive", "c2 = 0, c3 = 0.25"],
    ]


def test_6_ablations_without_evaluations(tmp_path: Path) -> None:
    study = load(write_figure6(tmp_path, ("bapo+m1", "bapo")))
    (run_of(study, "countdown", "bapo+m1", 2) / "eval" / "summary.json").unlink()
    fig, frame = figure("figure6_ablations", study)
    accuracy = frame[frame.measure == "test_accuracy"]
    assert set(accuracy.method) == {"bapo", "base"}
    assert [t.get_text() for axes in fig.axes for t in axes.texts].count("not evaluated") == 1


@pytest.mark.parametrize(
    ("name", "tasks"), [("figure7_tracking", {"mathematics"}), ("figure13_tracking", {"countdown", "geometry"})]
)
def test_7_and_13_tracking_counts_and_improvement(name: str, tasks: set[str], studies: dict, drawn: dict) -> None:
    frame = drawn[name][1]
    assert set(frame.task) == tasks and set(frame.method) == set(THREE)
    assert (frame.groupby(["task", "method", "seed", "step"]).prompts.sum() == 60).all()
    task = min(tasks)
    wide = probe(run_of(studies["table1"], task, "grpo", 1))
    mine = frame.query("task == @task and method == 'grpo' and seed == 1 and step == 20")
    assert mine.query("correct == 0").prompts.item() == (wide[20] == 0).sum()
    assert mine.improved_within_run.iloc[0] == pytest.approx((wide[20][wide[0] == 0] > 0).mean())
    hard = probe(run_of(studies["table1"], task, "grpo", 2))[0] == 0  # seed 2 chooses, seed 1 answers
    assert mine.improved_across_seeds.iloc[0] == pytest.approx((wide[20][hard] > 0).mean())
    assert mine.unchanged_base_across_seeds.iloc[0] == pytest.approx((wide[0][hard] > 0).mean())
    # within a run nothing has improved at step 0, whatever sampling would show; across seeds it shows
    assert (frame[frame.step == 0].improved_within_run == 0).all()
    assert 0 < mine.unchanged_base_across_seeds.iloc[0] < mine.improved_across_seeds.iloc[0]


def test_8_batch_composition_is_x1_x2_x3(drawn: dict) -> None:
    fig, frame = drawn["figure8_batch_composition"]
    assert frame.method.unique().tolist() == ["bapo", "bapo_without_x2", "bapo_without_x3"]
    assert set(frame.task) == {"mathematics"} and set(frame.batch_size) == {16}
    assert (frame.x1 + frame.x2 + frame.x3 == frame.batch_groups).all()
    assert frame[frame.method == "bapo_without_x2"].x2.sum() == 0
    # what is drawn: parts stacked to the mean batch, the red line at B
    axes = fig.axes[0]
    tops = axes.patches[-1].get_data().values
    assert tops == pytest.approx(frame[frame.method == "bapo"].groupby("step").batch_groups.mean().to_numpy())
    assert list(axes.lines[0].get_ydata()) == [16, 16]


def test_14_batch_composition_of_every_task(drawn: dict) -> None:
    fig, frame = drawn["figure14_batch_composition"]
    assert set(frame.method) == {"bapo"} and frame.task.unique().tolist() == ["mathematics", "countdown", "geometry"]
    assert [axes.get_title(loc="left") for axes in fig.axes] == ["Mathematics", "Countdown", "Visual geometry"]


def test_9_cumulative_rollouts_are_the_ledgers_sums(studies: dict, drawn: dict) -> None:
    frame = drawn["figure9_cumulative_rollouts"][1]
    ends = frame[frame.step == 20].set_index(["task", "method", "seed"]).cumulative_rollouts
    assert len(ends) == 3 * 3 * 2 and set(frame.method) == set(THREE)
    for (task, method, seed), total in ends.items():
        assert total == read_json(run_of(studies["table1"], task, method, seed) / "summary.json")["totals"]["rollouts"]


def test_10_filters_hold_held_out_accuracy_and_gradient_norm(studies: dict, drawn: dict) -> None:
    fig, frame = drawn["figure10_online_filters"]
    wide = probe(run_of(studies["figure10"], "mathematics", "bapo+uniform", 1), "probe")
    mine = frame.query("method == 'bapo+uniform' and seed == 1")
    found = mine.query("measure == 'held_out_accuracy'").set_index("step").value
    assert found.to_dict() == pytest.approx({step: wide[step].mean() / 8 for step in (0, 5, 10, 15, 20)})
    assert mine.query("measure == 'gradient_norm'").value.tolist() == [0.5] * 20
    best = frame.query("method == 'bapo' and measure == 'held_out_accuracy'").groupby("step").value.mean()
    (star,) = [line for line in fig.axes[0].lines if line.get_marker() == "*"]
    assert star.get_xdata() == [best.idxmax()] and star.get_ydata() == pytest.approx([100 * best.max()])


def test_11_dynamics_are_the_recorded_measures(studies: dict, drawn: dict) -> None:
    frame = drawn["figure11_dynamics"][1]
    raw = read_table(run_of(studies["table1"], "geometry", "dapo", 2) / "steps.parquet")
    mine = frame.query("task == 'geometry' and method == 'dapo' and seed == 2")
    for measure in ("reward_mean", "entropy", "response_length"):
        assert mine[mine.measure == measure].value.tolist() == raw[measure].tolist()


def test_11_says_what_was_not_recorded(tmp_path: Path) -> None:
    study = load(write_study(tmp_path, THREE, (1,), problems=2, samples=2))
    rewrite_steps(run_of(study, "countdown", "dapo", 1), entropy=np.nan)
    fig, frame = figure("figure11_dynamics", study)
    assert "Not recorded: entropy of DAPO." in style.said(fig)
    assert frame.query("task == 'countdown' and measure == 'entropy'").method.unique().tolist() == ["grpo", "bapo"]


def test_15_migration_starts_from_the_other_seeds_base(studies: dict, drawn: dict) -> None:
    fig, frame = drawn["figure15_migration"]
    frame = frame.query("task == 'countdown'")
    assert set(frame.method) == {"bapo"} and sorted(frame.step.unique()) == [0, 5, 15, 20]
    assert frame.groupby(["compared", "step"]).prompts.sum().tolist() == pytest.approx([60] * 8)
    a, b = (probe(run_of(studies["table1"], "countdown", "bapo", k)) for k in (1, 2))
    own, across = (frame[frame.compared == compared] for compared in ("within a run", "across seeds"))

    def cell(table: pd.DataFrame, step: int) -> float:
        return table.query("step == @step and initial == 0 and current == 1").prompts.item()

    def below(table: pd.DataFrame) -> list[float]:
        return table.groupby("step").share_below_diagonal.first()[[0, 20]].tolist()

    # the paper's: both bins from one run, in which the base never leaves the diagonal
    start = own[own.step == 0]
    assert start[start.initial != start.current].prompts.sum() == 0
    assert cell(own, 20) == sum(((w[0] == 0) & (w[20] == 1)).sum() for w in (a, b)) / 2
    assert below(own) == pytest.approx([0, sum((w[20] < w[0]).sum() for w in (a, b)) / 120])
    # what is drawn: rows from the other seed's base, also for the unchanged base
    for step in (0, 20):
        assert cell(across, step) == (((b[0] == 0) & (a[step] == 1)).sum() + ((a[0] == 0) & (b[step] == 1)).sum()) / 2
    expected = [((a[step] < b[0]).sum() + (b[step] < a[0]).sum()) / 120 for step in (0, 20)]
    assert below(across) == pytest.approx(expected)
    titles = [axes.get_title(loc="left") for axes in fig.axes[4:8]]
    assert titles == ["unchanged base", "step 5", "step 15", "step 20"]
    assert f"below diagonal: {expected[0]:.1%}" in [t.get_text() for t in fig.axes[4].texts]
    assert "ANOTHER seed's probe" in style.said(fig) and "no fair chance level" not in style.said(fig).lower()


def test_15_with_one_seed_is_the_papers_count(tmp_path: Path) -> None:
    study = load(write_study(tmp_path, ("bapo",), (1,), problems=2, samples=2))
    fig, frame = figure("figure15_migration", study)
    assert set(frame.compared) == {"within a run"} and (frame.prompts == frame.prompts.round()).all()
    assert fig.axes[0].get_title(loc="left") == "step 0 (base)"
    assert "There is no fair chance level here (one seed:" in style.said(fig)
