"""Prompts by the base model's solve rate: classes, levels and differences by hand, on runs made here."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.runs import place, probe_rows, write_run, write_study

from analysis import study
from analysis.__main__ import main
from analysis.beyond import solve_rate
from bapo.errors import UserError


def asked(root: Path, shift: int = 0) -> Path:
    """Write three seeds of two methods, with 8 samples of 24 prompts: the base solves 12 never, 12 half the time.

    BAPO solves a quarter of the first at the end, once each, and all of the second; GRPO solves none and all. shift: of
    BAPO's prompts.
    """
    ends = {"grpo": [0] * 12 + [6] * 12, "bapo": [1] * 3 + [0] * 9 + [4] * 12}
    for method, end in ends.items():
        for seed in (1, 2, 3):
            probe = probe_rows({0: [0] * 12 + [4] * 12, 10: end})
            if shift and method == "bapo":
                probe["prompt_id"] = probe["prompt_id"].str.replace("t", "u")
            write_run(place(root, method, seed), probe=probe)
    cells = [("tiny", method, seed) for method in ends for seed in (1, 2, 3)]
    return write_study(root, cells, name="asked", reference="grpo")


def test_each_class_has_its_levels_and_differences(tmp_path: Path) -> None:
    file = asked(tmp_path)
    assert main(["solve_rate", "--study", str(file), "--out", str(tmp_path)]) == 0
    rows = pd.read_csv(tmp_path / "solve_rate_asked.csv").set_index(["method", "class"])
    assert sorted({name for _, name in rows.index}) == ["above 15%", "never"]
    assert (rows["prompts"] == 12).all() and (rows["tries"] == 24).all()
    assert rows.loc[("grpo", "never"), ["solved", "accuracy"]].tolist() == [0, 0]
    assert rows.loc[("bapo", "never"), ["solved", "accuracy"]].tolist() == [25, 3.125]
    assert rows.loc[("bapo", "never"), ["minus_solved", "minus_accuracy"]].tolist() == [25, 3.125]
    assert rows.loc[("bapo", "above 15%"), ["solved", "accuracy", "minus_accuracy"]].tolist() == [100, 50, -25]
    page = (tmp_path / "solve_rate_asked.md").read_text()
    assert "| BAPO | 25.0 (3.1) | 100.0 (50.0) |" in page


def test_few_probed_prompts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_rate, "FEWEST", 13)
    with pytest.raises(UserError, match=r"probe.prompts to 13"):
        solve_rate.write(study.load(asked(tmp_path)), tmp_path)


def test_other_prompts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="asked"):
        solve_rate.write(study.load(asked(tmp_path, shift=1)), tmp_path)
