"""Figures that any study may name, by hand: the share at 0/G, pass@k, and what off-policy responses are worth."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.runs import place, probe_rows, write_run, write_study

from analysis import figures, style
from analysis.study import load
from bapo.algorithm.rollouts import FRESH, REPLAYED

#: correct answers of 8 to four prompts: method -> seed -> step -> each; BAPO ends a step later
PROBED = {
    "grpo": {1: {0: (0, 0, 4, 8), 2: (0, 4, 4, 8)}, 2: {0: (0, 4, 4, 8), 2: (0, 0, 4, 8)}},
    "bapo": {1: {0: (0, 0, 4, 8), 3: (4, 4, 4, 8)}, 2: {0: (0, 4, 4, 8), 3: (0, 4, 4, 8)}},
}
#: two problems, four samples
ANSWERS = {
    "grpo": {1: [[1, 0, 0, 0], [1, 1, 0, 0]], 2: [[0, 1, 0, 0], [0, 0, 0, 0]]},
    "bapo": {1: [[1, 1, 0, 0], [1, 1, 0, 0]], 2: [[0, 1, 0, 0], [1, 0, 0, 0]]},
}
#: step, origin, version, used
BATCH = [(1, FRESH, 0, True), (2, FRESH, 1, True), (2, REPLAYED, 0, True), (2, REPLAYED, 1, False)]
GROUPS = pd.DataFrame(BATCH, columns=["step", "origin", "version", "used"])
NAN = float("nan")


def drawn(root: Path, name: str, seeds: tuple[int, ...] = (1, 2), methods: tuple[str, ...] = ("grpo",)) -> pd.DataFrame:
    """Return the data of a figure. Seed 2 comes from before clips were recorded by origin."""
    for method, seed in ((method, seed) for method in methods for seed in seeds):
        steps = [{"surrogate_x1": 0.1, "surrogate_x3": NAN}, {"surrogate_x1": 0.3, "surrogate_x3": 0.2}]
        if seed == 1:
            steps[0] |= {"clipped_x1": 0.0, "ess_x1": 1.0, "clipped_x3": NAN, "ess_x3": NAN}
            steps[1] |= {"clipped_x1": 0.02, "ess_x1": 0.9, "clipped_x3": 0.25, "ess_x3": 0.5}
        probe, bits = probe_rows(PROBED[method][seed]), {"a": ANSWERS[method][seed]}
        write_run(place(root, method, seed), bits, steps=steps, probe=probe, groups=GROUPS)
    file = write_study(root, [("tiny", method, seed) for method in methods for seed in seeds], ["a"])
    with style.settings():
        return figures.function(name)(load(file))[1]


def test_share_at_0_of_8_minus_the_reference(tmp_path: Path) -> None:
    frame = drawn(tmp_path, "unsolved_share", methods=("grpo", "bapo")).set_index(["method", "step"])
    assert frame["unsolved"].to_dict() == {("grpo", 2): 37.5, ("bapo", 3): 12.5, ("base", 2): 37.5}
    # BAPO solves the first prompt with one seed, the second with the other: -1/2, -1/2, 0, 0 over seeds that agree
    half = 3.18245 * 100 * (1 / 12 / 4) ** 0.5  # t with three degrees of freedom
    row = frame.loc[("bapo", 3), ["difference", "difference_low", "difference_high"]]
    assert row.tolist() == pytest.approx([-25, -25 - half, -25 + half], rel=1e-5)
    assert frame.loc[("base", 2), "difference"] == 0 and pd.isna(frame.loc[("grpo", 2), "difference"])


def test_share_at_0_of_8_of_one_seed_has_the_interval_of_prompts(tmp_path: Path) -> None:
    frame = drawn(tmp_path, "unsolved_share", (1,), ("grpo", "bapo")).set_index("method")
    assert frame.loc["bapo", ["difference", "difference_low"]].tolist() == pytest.approx([-25, -25 - 3.18245 * 25])


def test_pass_at_k_minus_the_reference(tmp_path: Path) -> None:
    frame = drawn(tmp_path, "pass_at_k", methods=("grpo", "bapo")).set_index(["method", "k"])
    # 1 - C(4 - c, 2) / C(4, 2) for c = 1, 2, 0: 1/2, 5/6, 0; problems 1/2 and (5/6 + 0) / 2
    assert frame.loc["grpo", "mean"].to_dict() == pytest.approx({1: 25.0, 2: 100 * (1 / 2 + 5 / 12) / 2, 4: 75.0})
    half = (frame["high"] - frame["low"])["grpo", 2] / 2
    assert half == pytest.approx(12.7062 * 100 * (1 / 12) / 2, rel=1e-4)  # t with one degree of freedom; half the range
    # k = 1: 1/4 and 0, then 0 and 1/4; k = 4: three are solved by both, the last by BAPO alone
    assert frame.loc["bapo", "difference"].to_dict() == pytest.approx({1: 12.5, 2: 100 * (1 / 3 + 1 / 2) / 4, 4: 25.0})
    assert frame.loc[("bapo", 4), "difference_high"] == pytest.approx(25 + 12.7062 * 25, rel=1e-4)


@pytest.mark.parametrize("name", ["unsolved_share", "pass_at_k"])
def test_a_study_of_the_reference_alone_compares_nothing(name: str, tmp_path: Path) -> None:
    assert drawn(tmp_path, name)["difference"].isna().sum() >= 1


def test_off_policy_signal_by_origin_and_age(tmp_path: Path) -> None:
    frame = drawn(tmp_path, "off_policy_signal").set_index(["seed", "part", "step"])
    columns = ["surrogate", "clipped", "ess", "staleness"]
    assert frame.loc[(1, "x3"), columns].values.tolist() == [[0.2, 25, 50, 1]]  # the group that was not used: age 0
    assert frame.loc[(1, "x1"), columns].values.tolist() == [[0.1, 0, 100, 0], [0.3, 2, 90, 0]]
    assert frame.loc[(2, "x3"), "surrogate"].tolist() == [0.2]
    assert frame.loc[2, ["clipped", "ess"]].isna().all(axis=None)
    assert "x2" not in frame.index.get_level_values("part")
