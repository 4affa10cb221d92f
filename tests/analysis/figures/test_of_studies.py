"""Figures that any study may name, by hand: the share at 0/G, pass@k, and what off-policy responses are worth."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.runs import place, probe_rows, write_run, write_study

from analysis import figures, style
from analysis.study import load
from bapo.algorithm.rollouts import FRESH, REPLAYED

#: correct answers of 8 to four prompts, seed -> step -> each
PROBED = {1: {0: (0, 0, 4, 8), 2: (0, 4, 4, 8)}, 2: {0: (0, 4, 4, 8), 2: (0, 0, 4, 8)}}
#: two problems, four samples
ANSWERS = {1: [[1, 0, 0, 0], [1, 1, 0, 0]], 2: [[0, 1, 0, 0], [0, 0, 0, 0]]}
#: step, origin, version, used
BATCH = [(1, FRESH, 0, True), (2, FRESH, 1, True), (2, REPLAYED, 0, True), (2, REPLAYED, 1, False)]
GROUPS = pd.DataFrame(BATCH, columns=["step", "origin", "version", "used"])
NAN = float("nan")


def drawn(root: Path, name: str, seeds: tuple[int, ...] = (1, 2)) -> pd.DataFrame:
    """Return the data of a figure of GRPO's runs. Seed 2 comes from before clips were recorded by origin."""
    for seed in seeds:
        steps = [{"surrogate_x1": 0.1, "surrogate_x3": NAN}, {"surrogate_x1": 0.3, "surrogate_x3": 0.2}]
        if seed == 1:
            steps[0] |= {"clipped_x1": 0.0, "ess_x1": 1.0, "clipped_x3": NAN, "ess_x3": NAN}
            steps[1] |= {"clipped_x1": 0.02, "ess_x1": 0.9, "clipped_x3": 0.25, "ess_x3": 0.5}
        probe = probe_rows(PROBED[seed])
        write_run(place(root, "grpo", seed), {"a": ANSWERS[seed]}, steps=steps, probe=probe, groups=GROUPS)
    file = write_study(root, [("tiny", "grpo", seed) for seed in seeds], ["a"])
    with style.settings():
        return figures.function(name)(load(file))[1]


def test_share_at_0_of_8(tmp_path: Path) -> None:
    frame = drawn(tmp_path, "unsolved_share").set_index(["seed", "step"]).sort_index()
    assert frame["unsolved"].tolist() == [50, 25, 25, 50]
    assert frame["unsolved_unchanged"].tolist() == [25, 25, 50, 50]  # the other seed's base
    # seed 2's base has the first prompt at 0/8, which seed 1 never solves; of seed 1's two, seed 2's base solves one
    assert frame["still"].tolist() == [100, 100, 50, 100]
    assert frame["still_unchanged"].tolist() == [100, 100, 50, 50]


def test_share_at_0_of_8_of_one_seed_has_no_chance_line(tmp_path: Path) -> None:
    frame = drawn(tmp_path, "unsolved_share", (1,))
    assert frame["unsolved"].tolist() == [50, 25]
    assert not {"still", "unsolved_unchanged"} & {*frame}


def test_pass_at_k(tmp_path: Path) -> None:
    frame = drawn(tmp_path, "pass_at_k").set_index("k")
    # 1 - C(4 - c, 2) / C(4, 2) for c = 1, 2, 0: 1/2, 5/6, 0; problems 1/2 and (5/6 + 0) / 2
    assert frame["mean"].to_dict() == pytest.approx({1: 25.0, 2: 100 * (1 / 2 + 5 / 12) / 2, 4: 75.0})
    half = (frame["high"] - frame["low"])[2] / 2
    assert half == pytest.approx(12.7062 * 100 * (1 / 12) / 2, rel=1e-4)  # t with one degree of freedom; half the range


def test_off_policy_signal_by_origin_and_age(tmp_path: Path) -> None:
    frame = drawn(tmp_path, "off_policy_signal").set_index(["seed", "part", "step"])
    columns = ["surrogate", "clipped", "ess", "staleness"]
    assert frame.loc[(1, "x3"), columns].values.tolist() == [[0.2, 25, 50, 1]]  # the group that was not used: age 0
    assert frame.loc[(1, "x1"), columns].values.tolist() == [[0.1, 0, 100, 0], [0.3, 2, 90, 0]]
    assert frame.loc[(2, "x3"), "surrogate"].tolist() == [0.2] and frame.loc[2, ["clipped", "ess"]].isna().all(
        axis=None
    )
    assert "x2" not in frame.index.get_level_values("part")
