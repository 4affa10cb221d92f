"""The tuning table: the choice on hand-worked numbers, and its files from runs with numbers chosen by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from support.runs import place, write_run, write_study

from analysis.__main__ import main
from analysis.beyond import tuning
from analysis.study import load
from bapo.store.files import CONFIG, PROBE, SUMMARY, TABLES, fingerprints, read_json, write_json, write_parquet

# ------------------------------------------------------------------------------------------------ the choice


def one_seed(*solved: float) -> np.ndarray:
    return np.array([solved])


def test_the_error_of_a_difference_by_hand() -> None:
    """One seed, four prompts: differences 1/2, 1/2, 0, 0, so mean 1/4 and SE sqrt(4 (1/4)^2 / 3 / 4) = 1 / sqrt(48)."""
    difference, se = tuning.behind(one_seed(1, 1, 0.5, 0.5), one_seed(0.5, 0.5, 0.5, 0.5))
    assert (difference, se) == pytest.approx((0.25, 1 / math.sqrt(48)))


def test_two_seeds_that_disagree_widen_the_error() -> None:
    same = np.array([[1, 1, 0.5, 0.5], [1, 1, 0.5, 0.5]])
    apart = same + np.array([[0.25], [-0.25]])
    flat = np.full((2, 4), 0.5)
    assert tuning.behind(same, flat)[1] == pytest.approx(1 / math.sqrt(48))
    # V_seeds = var(1, 0.5) / 2 = 1/16 is added to 1/48; the seeds differ alike at every prompt, so no interaction
    assert tuning.behind(apart, flat) == pytest.approx((0.25, math.sqrt(1 / 48 + 1 / 16)))


def test_a_value_of_its_own_is_chosen_only_where_the_data_speak_for_it() -> None:
    plain = one_seed(0.5, 0.5, 0.5, 0.5)
    clear = {(): plain, ("rate",): one_seed(0.75, 0.75, 0.75, 0.5)}  # +3/16, SE 1/16
    assert tuning.choose(clear) == ("rate",)
    unclear = {(): plain, ("rate",): one_seed(1, 0.25, 0.5, 0.5)}  # +1/16, SE sqrt(0.0911) / 2 = 0.157
    assert tuning.near(unclear) == [("rate",), ()] and tuning.choose(unclear) == ()
    assert tuning.choose({(): plain, ("rate",): plain}) == ()  # a tie


def test_of_two_that_are_near_the_one_with_fewer_changes() -> None:
    scores = {
        (): one_seed(0, 0, 0, 0),
        ("v2", "rate"): one_seed(1, 0.75, 0.5, 0.75),  # mean 3/4
        ("v2",): one_seed(0.75, 1, 0.5, 0.5),  # 1/16 behind: differences 1/4, -1/4, 0, 1/4 with SE 0.12
        ("rate",): one_seed(0.5, 0.75, 0.75, 0.5),  # 1/8 behind: 1/2, 0, -1/4, 1/4 with SE 0.16
    }
    assert tuning.near(scores) == [("v2", "rate"), ("v2",), ("rate",)]
    assert tuning.choose(scores) == ("v2",)  # the higher of the two with one change


# ------------------------------------------------------------------------------------------------ the files


def probed(folder: Path, solved: list[int], rate: float) -> None:
    """A finished run that was probed at steps 0 and 1: correct answers of 8 of each held-out prompt at the end."""
    config = {"seed": 1, "train": {"learning_rate": rate}}
    totals = {"rollouts": 100.0, "updates": 4.0, "forward_flops": 1e9, "backward_flops": 2e9}
    write_run(folder, totals=totals, config=config)
    rows = [
        {"step": step, "set": name, "prompt_id": f"{name}{i}", "correct": c, "samples": 8, "mean": c / 8}
        for step, correct in ((0, [0] * len(solved)), (1, solved))
        for name in ("train", "probe")
        for i, c in enumerate(correct if name == "probe" else [8] * len(solved))
    ]
    write_parquet(folder / PROBE, pd.DataFrame(rows))
    write_json(folder / SUMMARY, read_json(folder / SUMMARY) | {"files": fingerprints(folder, TABLES)})


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """grpo is best as it is; bapo is better with the larger rate. The setting names bapo+v2 and nothing for grpo."""
    runs = {
        "grpo": ([4, 4, 4, 4], 2e-4),
        "grpo+rate_4e-4": ([2, 2, 2, 4], 4e-4),
        "bapo": ([4, 4, 4, 4], 2e-4),
        "bapo+rate_4e-4": ([6, 6, 6, 4], 4e-4),
        "bapo+v2": ([4, 2, 4, 4], 2e-4),
    }
    for method, (solved, rate) in runs.items():
        for seed in (101, 102):
            probed(place(tmp_path, method, seed), solved, rate)
    cells = [("tiny", method, seed) for method in runs for seed in (101, 102)]
    chosen = {"countdown": {"bapo": ["v2"], "dapo": ["rate_1e-4"]}}
    return write_study(tmp_path, cells, name="tuning", chosen=chosen)


def test_the_table_says_what_is_chosen_and_that_the_setting_is_stale(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert not list(tmp_path.rglob("eval"))  # no evaluation is read
    assert main(["tuning", "--study", str(study), "--out", str(out)]) == 0
    frame = pd.read_csv(out / "tuning.csv").set_index("candidate")
    assert list(frame.index) == ["grpo", "grpo+rate_4e-4", "bapo", "bapo+rate_4e-4", "bapo+v2"]
    assert list(frame.index[frame.chosen]) == ["grpo", "bapo+rate_4e-4"]
    assert list(frame.index[frame.named]) == ["grpo", "bapo+v2"]
    best = frame.loc["bapo+rate_4e-4"]
    assert (best["mean"], best.seed_101, best.seed_sd, best.seeds, best.problems) == (68.75, 68.75, 0, 2, 4)
    assert frame.loc["bapo"].minus_highest == -18.75 and frame.loc["bapo"].minus_highest_se == pytest.approx(6.25)
    page = (out / "tuning.md").read_text()
    assert "tuned: {dapo: dapo+rate_1e-4, bapo: bapo+rate_4e-4}" in page  # what another method has stays
    assert "another choice for BAPO." in page and (out / "tuning.tex").exists()
    assert page.count("is the largest tried") == page.count("is the smallest tried") == 1
    write_json(study, read_json(study) | {"chosen": {"countdown": {"bapo": ["rate_4e-4"]}}})
    for path in tmp_path.rglob(CONFIG):
        path.write_text(yaml.safe_dump({"seed": 1}))
    assert main(["tuning", "--study", str(study), "--out", str(out)]) == 0
    page = (out / "tuning.md").read_text()
    assert "tuned:" not in page and "tried" not in page  # the setting names the choice; no rate is known


def test_the_ledger_does_not_mix_tuned_and_other_runs_of_a_method(tmp_path: Path) -> None:
    from analysis.claims import view

    studies = []
    for name, seeds, tuned in (("first", (1, 2), []), ("second", (2, 3), ["rate 4e-4"]), ("third", (3,), [])):
        content = read_json(write_study(tmp_path, [("tiny", "bapo", seed) for seed in seeds], name=name))
        content["cells"] = [cell | {"tuned": tuned} for cell in content["cells"]]
        write_json(tmp_path / f"{name}.json", content)
        studies.append(load(tmp_path / f"{name}.json"))
    (block,) = view.merged(studies).blocks
    assert [(cell.seed, cell.tuned) for cell in block.methods["bapo"]] == [(1, ()), (2, ()), (3, ())]
    (block,) = view.merged(studies[1:]).blocks
    assert [cell.seed for cell in block.methods["bapo"]] == [2, 3]
