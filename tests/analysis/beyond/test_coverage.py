"""Test problems by the base model's solve rate: classes, levels and differences by hand, on runs made here."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.runs import outcomes, place, write_evaluation, write_run, write_study

from analysis import study
from analysis.__main__ import main
from analysis.beyond import coverage
from bapo.errors import UserError

#: correct answers of 4 to 24 problems: the base never solves the first 12, and half of the time the others
BASE = [0] * 12 + [2] * 12
ENDS = {"grpo": [0] * 12 + [4] * 12, "bapo": [1] * 3 + [0] * 9 + [2] * 12}


def asked(root: Path, models: tuple[str, ...], seeds: tuple[int, ...], problems: str = "p") -> Path:
    """Write runs of two methods. problems: what the base models' problems are called."""
    cells = [(model, method, seed) for method in ENDS for model, seed in zip(models, seeds, strict=True)]
    config = {"task": {}, "data": {}, "model": {}, "base": {}}  # base models of one kind
    for model, method, seed in cells:
        write_run(place(root, method, seed, model=model), {"a": outcomes(ENDS[method], 4)}, config=config)
    bases = [{"task": "countdown", "model": m, "run": str(place(root, "base", 1, model=m).parent)} for m in {*models}]
    for base in bases:
        write_run(Path(base["run"]))
        write_evaluation(Path(base["run"]) / "eval", {"a": outcomes(BASE, 4)}, problems)
    return write_study(root, cells, ["a"], name="asked", reference="grpo", bases=bases)


@pytest.mark.parametrize(
    ("models", "seeds"), [(("tiny", "tiny", "tiny"), (1, 2, 3)), (("tiny", "small", "other"), (1, 2, 3))]
)
def test_each_class_has_its_levels_and_differences(
    tmp_path: Path, models: tuple[str, ...], seeds: tuple[int, ...]
) -> None:
    file = asked(tmp_path, models, seeds)
    assert main(["coverage", "--study", str(file), "--out", str(tmp_path)]) == 0
    rows = pd.read_csv(tmp_path / "coverage_asked.csv").set_index(["method", "k", "class"]).sort_index()
    assert {*rows["model"]} == {"tiny" if len({*models}) == 1 else "tiny over 3 bases"}
    assert (rows["problems"] == 12).all() and (rows["runs"] == len(seeds)).all()
    assert {place: row["solved"] for place, row in rows.loc["grpo"].iterrows()} == {
        (1, "never"): 0,
        (1, "above 15%"): 100,
        (4, "never"): 0,
        (4, "above 15%"): 100,
    }
    solved, minus = rows.loc["bapo", "solved"], rows.loc["bapo", "minus"]
    assert (solved[1, "never"], minus[1, "never"], minus[1, "above 15%"]) == (6.25, 6.25, -50)
    assert (solved[4, "never"], minus[4, "never"], minus[4, "above 15%"]) == (25, 25, 0)
    assert main(["coverage", "--reference", "bapo", "--study", str(file), "--out", str(tmp_path)]) == 0
    rows = pd.read_csv(tmp_path / "coverage_asked.csv").set_index(["method", "k", "class"])
    assert rows.loc[("grpo", 1, "never"), "minus"] == -6.25


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"base: evaluated on other problems than its runs of grpo"):
        coverage.write(study.load(asked(tmp_path, ("tiny", "small"), (1, 2), problems="q")), tmp_path)
    with pytest.raises(UserError, match=r"asked: no method has 3 runs, .* 10 problems"):
        coverage.write(study.load(asked(tmp_path, ("tiny", "tiny"), (1, 2))), tmp_path)
