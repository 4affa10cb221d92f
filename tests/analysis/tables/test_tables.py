"""Tables 2 to 4 from run directories with hand-worked numbers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.runs import place, write_run, write_study

from analysis.__main__ import main
from analysis.study import load
from analysis.tables import table2 as overhead
from analysis.tables import table3 as hyperparameters
from analysis.text import MISSING
from bapo.experiments import compose as configuration
from bapo.validate import plain


def rows_of(markdown: str, title: str) -> dict[str, list[str]]:
    """The table under a heading: first cell -> the other cells."""
    part = markdown.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")][2:]
    cells = [[c.strip() for c in line.strip("|").split(" | ")] for line in lines]
    return {row[0]: row[1:] for row in cells}


# ------------------------------------------------------------------------------------------------ Table 2


def test_printed_times() -> None:
    times = overhead.times("countdown")
    assert times["bapo"][2] == pytest.approx(203 / 227)  # 3h 23m over 3h 47m
    assert times["bapo+fixed_3_4"][1] == "3h 4m"
    assert overhead.times("mathematics")["dapo"][2] == pytest.approx(3810 / 2458)
    assert overhead.times("chess") == {}


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    """GRPO's runs take 10 and 20 seconds, BAPO's 12 and 18."""
    for method, seconds in (("grpo", (10.0, 20.0)), ("bapo", (12.0, 18.0))):
        for seed, total in enumerate(seconds, start=1):
            step = {"seconds_rollout": 0.25 * total, "seconds_update": 0.5 * total}
            step |= {"seconds_probe": 100.0, "seconds_total": total + 100.0}
            totals = dict.fromkeys(overhead.QUANTITIES, 600.0) | {"seconds": total}
            more = {"grpo": (1000.0, 4e3), "bapo": (1100.0, 3e3)}[method]
            totals |= dict(zip(("rollouts", "trained_tokens"), more, strict=True))
            write_run(place(tmp_path, method, seed), totals=totals, steps=[step])
    return write_study(tmp_path, [("tiny", m, s) for m in ("grpo", "bapo") for s in (1, 2)])


def test_costs_relative_to_grpo(costs: Path, tmp_path: Path) -> None:
    assert main(["table2", "--study", str(costs), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "table2.md").read_text()
    absolute = rows_of(text, "Countdown, Tiny: absolute, mean over seeds")
    assert absolute["+GRPO"][:2] == ["15.0 s (sd 7.1 s)", "1.0k"]  # sqrt(50) = 7.07; two equal counts
    # the means are 15 and 15; 12/10 and 18/20
    relative = rows_of(text, "Countdown, Tiny: relative to GRPO")
    assert relative["+BAPO"] == ["1.00 (0.90 to 1.20)", "1.10", "1.00", "0.75", "1.00", "1.00", "1.00"]
    phases = rows_of(text, "Countdown, Tiny: phases of the time")
    # of 15 s on average a quarter, nothing, nothing, a half, and what is left; the probes' 100 s are not in it
    assert phases["+BAPO"] == ["3.8 s (25%)", "0.0 s (0%)", "0.0 s (0%)", "7.5 s (50%)", "3.8 s (25%)"]
    title = "Countdown, Tiny: time relative to GRPO, the paper's (Table 2, appendix A.5, 8 A100 GPUs) and ours"
    beside = rows_of(text, title)
    assert beside["BAPO"] == ["3h 23m", "0.89", "1.00 (0.90 to 1.20)"]
    assert beside["BAPO (w/o X2)"] == ["2h 38m", "0.70", MISSING]  # not run

    frame = pd.read_csv(tmp_path / "out" / "table2.csv").set_index(["method", "quantity"])
    row = frame.loc["bapo", "seconds"]
    assert (row["mean"], row.ratio_to_grpo, row.ratio_low, row.ratio_high) == (15, 1, 0.9, 1.2)
    assert row.ratio_sd == pytest.approx(0.212132, abs=1e-5)  # 0.3 / sqrt(2)
    assert row.paper_ratio == pytest.approx(0.894273, abs=1e-5)
    assert frame.loc[("grpo", "seconds_other"), "seed_2"] == pytest.approx(5.0)  # 120 - 100 - 5 - 10


def test_the_papers_own_runs_differ_in_nothing_that_table_3_prints(tmp_path: Path) -> None:
    name = "deepseek-r1-distill-qwen-1.5b"
    config = plain(configuration.run_config("paper", "mathematics", name, "bapo", 42, ()))
    write_run(place(tmp_path, "bapo", 42, "mathematics", name), config=config)
    study = load(write_study(tmp_path, [(name, "bapo", 42)], task="mathematics"))
    rows = hyperparameters.beside_the_paper(study.blocks[0], hyperparameters.configurations(study.blocks[0]))
    assert {r["parameter"]: r["used"] for r in rows if r["differs"]} == {}
    assert {r["parameter"] for r in rows if r["used"] == "not in the configuration"} == set()
