"""The first look: the numbers are the runs' own, and what is missing is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.runs import place, write_evaluation, write_run, write_study

from analysis.__main__ import main
from bapo.store.files import SUMMARY

RNG = np.random.default_rng(0)
CELLS = [("tiny", method, seed) for method in ("bapo", "grpo", "dapo", "repo") for seed in (1, 2)]


def outcomes(share: float) -> dict[str, list[list[int]]]:
    return {name: (RNG.random((40, 8)) < share).astype(int).tolist() for name in ("a", "b")}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Seed 1 of GRPO, DAPO and BAPO, and seed 2 of BAPO; RePO has no run yet."""
    base = tmp_path / "results" / "laptop" / "countdown" / "tiny" / "base"
    write_evaluation(base / "eval", outcomes(0.2))
    steps = [{"reward_mean": 0.2 + i / 50} for i in range(10)]
    for method, seed, share in (("grpo", 1, 0.4), ("dapo", 1, 0.41), ("bapo", 1, 0.8), ("bapo", 2, 0.7)):
        write_run(place(tmp_path, method, seed), outcomes(share), {"rollouts": 1000 * seed}, steps)
    bases = [{"task": "countdown", "model": "tiny", "run": str(base)}]
    return write_study(tmp_path, CELLS, name="table1", bases=bases)


def cells(page: str) -> dict[str, list[str]]:
    """The rows of a page's tables by their first cell."""
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows}


def accuracy(run: Path) -> list[float]:
    """Of each benchmark and of both, in percent, from the run's own tables."""
    import pandas as pd

    each = [100 * pd.read_parquet(run / "eval" / f"{name}.parquet")["correct"].mean() for name in ("a", "b")]
    return [*each, sum(each) / 2]


def test_the_first_look_shows_the_runs_own_accuracies(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["first_look", "--study", str(study), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "first_look.md").read_text(encoding="utf-8")
    assert page.strip() in capsys.readouterr().out  # for `--config progress=plain`, and the log
    rows = cells(page)
    assert list(rows)[2:] == ["base model", "GRPO", "DAPO", "BAPO"]
    for method in ("grpo", "dapo", "bapo"):
        *shown, rollouts = rows[method.upper()]
        assert [float(s.partition(" ")[0]) for s in shown] == pytest.approx(
            accuracy(place(tmp_path, method, 1)), abs=0.051
        )
        assert rollouts == "1.0k"
    (told,) = [line for line in page.splitlines() if line.startswith("- BAPO minus GRPO: ")]
    gain = accuracy(place(tmp_path, "bapo", 1))[2] - accuracy(place(tmp_path, "grpo", 1))[2]
    assert float(told.split()[4]) == pytest.approx(gain, abs=0.051) and told.endswith("these two models differ.")
    assert "8 runs" in page and "4 of them are evaluated" in page and "One seed is one model" in page
    assert (tmp_path / "first_look.png").read_bytes()[:4] == b"\x89PNG"


def test_two_models_that_are_alike_cannot_be_told_apart(study: Path, tmp_path: Path) -> None:
    other = place(tmp_path, "bapo", 1) / "eval"
    for file in (place(tmp_path, "dapo", 1) / "eval").iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    assert main(["first_look", "--study", str(study), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "first_look.md").read_text(encoding="utf-8")
    assert "- BAPO minus DAPO: +0.0 (+0.0 to +0.0) points; these two models cannot be told apart." in page
    (other / SUMMARY).unlink()
    assert main(["first_look", "--study", str(study), "--out", str(tmp_path)]) == 2
