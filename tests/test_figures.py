"""The figures: the numbers behind each, recomputed from the run directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import figure_studies
import numpy as np
import pandas as pd
import pytest
from figure_studies import NAMES, THREE, figure, rewrite_steps, run_of, write_all, write_figure6
from run_directories import write_study

from analysis import figures, style
from analysis.figures import common, probed
from analysis.study import Study, load
from bapo.runs import read_json, read_table


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def studies(files: dict[str, Path]) -> dict[str, Study]:
    return {name: load(path) for name, path in files.items()}


@pytest.fixture(scope="module")
def drawn(files: dict[str, Path]) -> dict[str, tuple[Any, pd.DataFrame]]:
    return {name: figure_studies.drawn(name, files[figures.FIGURES[name].study]) for name in NAMES}


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


def test_migration_by_hand() -> None:
    counts = probed.migration(np.array([0, 0, 2, 2, 1]), np.array([0, 2, 1, 2, 0]), 2)
    assert counts.tolist() == [[1, 0, 1], [1, 0, 0], [0, 1, 1]]  # row: before, column: now
    assert probed.degraded(counts) == pytest.approx(2 / 5)  # 2 -> 1 and 1 -> 0
    assert probed.degraded(np.diag([3, 4])) == 0


def test_improved_by_hand() -> None:
    assert probed.improved(np.array([0, 0, 0, 5]), np.array([0, 1, 8, 0])) == pytest.approx(2 / 3)
    assert np.isnan(probed.improved(np.array([1]), np.array([2])))


def test_distance_of_histograms_by_hand() -> None:
    before, after = probed.histogram(np.array([0, 0, 1, 2]), 2), probed.histogram(np.array([0, 1, 2, 2]), 2)
    assert (before.tolist(), after.tolist()) == ([2, 1, 1], [1, 1, 2])
    assert probed.distance(before, after) == pytest.approx(1 / 4)  # of four prompts at least one has moved
    assert probed.distance(before, before) == 0 and probed.distance(np.array([3, 0]), np.array([0, 5])) == 1


def test_spaced_steps() -> None:
    assert probed.spaced([0, 25, 50, 75, 100], 4) == [0, 25, 75, 100]
    assert probed.spaced([0, 118, 236, 354, 471], 4) == [0, 118, 354, 471]
    assert probed.spaced([100, 0], 4) == [0, 100]


def test_base_pairs_are_independent_samplings_of_the_base() -> None:
    def at_start(values: list[int]) -> pd.DataFrame:
        return pd.DataFrame({0: values, 9: [8, 8]}, index=["a", "b"])

    pairs = probed.base_pairs({1: at_start([0, 3]), 2: at_start([1, 3])})
    assert [(x.tolist(), y.tolist()) for x, y in pairs] == [([0, 3], [1, 3]), ([1, 3], [0, 3])]
    assert probed.base_pairs({1: at_start([0, 3]), 2: at_start([0, 3])}) == []  # the same samples say nothing
    assert probed.base_pairs({1: at_start([0, 3])}) == []


def test_variants_are_called_by_what_they_change() -> None:
    titles = ("BAPO, v = 10", "BAPO without X2", "BAPO (mini test)", "BAPO", "GRPO (v = 5)")
    assert [common.short(t) for t in titles] == ["v = 10", "without X2", "mini test", "BAPO", "GRPO (v = 5)"]


# ------------------------------------------------------------------------------------------------ the data behind


def test_1_accuracy_groups_before_and_after(studies: dict, drawn: dict) -> None:
    frame = drawn["figure1_accuracy_groups"][1]
    assert set(frame.task) == {"mathematics"} and set(frame.method) == {"grpo"} and set(frame.step) == {0, 20}
    assert (frame.groupby(["seed", "step"]).prompts.sum() == 60).all()
    wide = probe(run_of(studies["table1"], "mathematics", "grpo", 2))
    mine = frame.query("seed == 2")
    for step in (0, 20):
        assert mine[mine.step == step].prompts.tolist() == [(wide[step] == c).sum() for c in range(9)]
    differences = [abs((wide[0] == c).sum() - (wide[20] == c).sum()) for c in range(9)]
    assert mine.moved_share.iloc[0] == pytest.approx(sum(differences) / 2 / 60)
    assert 0 < mine.unchanged_base_share.iloc[0] < mine.moved_share.iloc[0]


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
    run = run_of(studies["figure6"], "countdown", "bapo_v10", 2)
    mine = frame.query("method == 'bapo_v10' and seed == 2")
    assert (
        mine.query("measure == 'reward_mean'").value.tolist() == read_table(run / "steps.parquet").reward_mean.tolist()
    )
    by_hand = np.mean([read_table(run / "eval" / f"{name}.parquet").correct.mean() for name in ("cd34", "cd4")])
    assert mine.query("measure == 'test_accuracy'").value.item() == pytest.approx(by_hand)
    accuracy = frame.query("method == 'bapo_v10' and measure == 'test_accuracy'")
    mean = accuracy[accuracy.seed.isna()].iloc[0]
    assert (
        mean.value == pytest.approx(accuracy.value[accuracy.seed.notna()].mean()) and mean.low < mean.value < mean.high
    )
    shown = [[t.get_text() for t in axes.texts if t.get_text()] for axes in fig.axes[3:]]
    assert [sorted(set(s)) for s in shown] == [
        ["m = 1", "v = 10", "v = 5, m = 5"], ["BAPO", "without X2", "without X3"], ["adaptive", "c2 = 0, c3 = 0.25"],
    ]  # fmt: skip


def test_6_ablations_without_evaluations(tmp_path: Path) -> None:
    study = load(write_figure6(tmp_path, ("bapo_m1", "bapo")))
    (run_of(study, "countdown", "bapo_m1", 2) / "eval" / "summary.json").unlink()
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
    assert mine.improved_share.iloc[0] == pytest.approx((wide[20][wide[0] == 0] > 0).mean())
    # an unchanged base "improves" about as much as the difference between two samplings of it
    assert 0 < frame.unchanged_base_share.iloc[0] < mine.improved_share.iloc[0]


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
    wide = probe(run_of(studies["figure10"], "mathematics", "bapo_uniform", 1), "probe")
    mine = frame.query("method == 'bapo_uniform' and seed == 1")
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


def test_15_migration_counts_every_prompt_once_a_seed(studies: dict, drawn: dict) -> None:
    frame = drawn["figure15_migration"][1].query("task == 'countdown'")
    assert set(frame.method) == {"bapo"} and sorted(frame.step.unique()) == [0, 5, 15, 20]
    assert (frame.groupby("step").prompts.sum() == 2 * 60).all()
    start = frame[frame.step == 0]
    assert start[start.initial != start.current].prompts.sum() == 0 and start.share_below_diagonal.eq(0).all()
    wide = [probe(run_of(studies["table1"], "countdown", "bapo", k)) for k in (1, 2)]
    assert sum(((w[0] == 0) & (w[20] == 1)).sum() for w in wide) == (
        frame.query("step == 20 and initial == 0 and current == 1").prompts.item()
    )
    worse = sum((w[20] < w[0]).sum() for w in wide) / 120
    assert frame[frame.step == 20].share_below_diagonal.iloc[0] == pytest.approx(worse)
    by_chance = np.mean([(b[0] < a[0]).mean() for a in wide for b in wide if a is not b])
    assert frame.unchanged_base_below_diagonal.iloc[0] == pytest.approx(by_chance)
