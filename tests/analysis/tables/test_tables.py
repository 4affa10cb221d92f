"""Tables 2 to 4 from run directories with hand-worked numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.runs import place, write_run, write_study

from analysis.__main__ import main
from analysis.study import load
from analysis.tables import table2 as overhead
from analysis.tables import table3 as hyperparameters
from analysis.tables import table4 as data_sets
from analysis.text import MISSING
from bapo.experiments import compose as configuration
from bapo.store.files import fingerprints, write_json, write_parquet
from bapo.tasks.base import Problem
from bapo.tasks.files import write_problems
from bapo.validate import plain


def rows_of(markdown: str, title: str) -> dict[str, list[str]]:
    """The table under a heading: first cell -> the other cells."""
    part = markdown.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")][2:]
    cells = [[c.strip() for c in line.strip("|").split(" | ")] for line in lines]
    return {row[0]: row[1:] for row in cells}


# ------------------------------------------------------------------------------------------------ Table 2


def test_printed_times() -> None:
    assert overhead.minutes("1d 16h 58m") == 1440 + 16 * 60 + 58 == 2458
    assert overhead.minutes("3h 4m") == 184
    times = overhead.times("countdown")
    assert times["bapo"][2] == pytest.approx(203 / 227)  # 3h 23m over 3h 47m
    assert times["bapo+fixed_3_4"][1] == "3h 4m"
    assert overhead.times("mathematics")["dapo"][2] == pytest.approx(3810 / 2458)
    assert overhead.times("chess") == {}
    spoken = {14.56: "14.6 s", 754: "12.6 min", 9720: "2.70 h", float("nan"): MISSING}
    assert [overhead.amount("seconds", x) for x in spoken] == list(spoken.values())


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


def test_who_pays_for_a_reference_model_and_a_study_without_grpo(costs: Path, tmp_path: Path) -> None:
    for coefficient, who in ((0.001, "GRPO"), (0.0, "none")):  # a penalty of 0 needs no pass
        for method, kl_to in (("grpo", "reference"), ("bapo", "rollout")):
            for seed in (1, 2):
                content = {"method": {"kl_to": kl_to, "kl_coef": coefficient}}
                write_json(place(costs.parent, method, seed) / "config.yaml", content)
        overhead.write(load(costs), tmp_path / "out")
        assert f"reference model's forward pass for: {who}." in (tmp_path / "out" / "table2.md").read_text()
    overhead.write(load(write_study(costs.parent, [("tiny", "bapo", 1)])), tmp_path / "out")
    text = (tmp_path / "out" / "table2.md").read_text()
    assert "relative to GRPO\n" not in text and "(sd" not in text
    assert pd.read_csv(tmp_path / "out" / "table2.csv")["ratio_to_grpo"].isna().all()


# ------------------------------------------------------------------------------------------------ Table 3

SMALL = {
    "seed": 1,
    "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": -1},
    "train": {"batch_size": 32, "group_size": 8, "learning_rate": 2e-4, "steps": 150, "epochs": None},
    "evaluation": {"backend": "torch", "samples": 32, "vllm": {"dtype": "bfloat16"}},
    "method": {
        "algorithm": "bapo",
        "name": "bapo",
        "title": "+BAPO",
        "kind": "off",
        "c1": 0.125,
        "c2_range": [0.125, 0.5],
        "kl_coef": 0.001,
        "max_reevaluated": None,
        "bad_capacity": None,
    },
}


@pytest.fixture
def used(tmp_path: Path) -> Path:
    write_run(place(tmp_path, "bapo", 1), config=SMALL)
    write_run(place(tmp_path, "bapo", 2), config={**SMALL, "seed": 2})
    dapo = {
        **SMALL,
        "method": {"algorithm": "dapo", "kl_coef": 0.0, "clip_high": 0.28},
        "train": {**SMALL["train"], "batch_size": 16},
    }
    write_run(place(tmp_path, "dapo", 1), config=dapo)
    return write_study(tmp_path, [("tiny", "bapo", 1), ("tiny", "bapo", 2), ("tiny", "dapo", 1)])


def test_what_was_used_beside_the_papers(used: Path, tmp_path: Path) -> None:
    assert main(["table3", "--study", str(used), "--out", str(tmp_path / "out")]) == 0
    frame = pd.read_csv(tmp_path / "out" / "table3.csv", dtype=str, keep_default_na=False).set_index("parameter")

    def row(parameter: str) -> tuple[str, str, str]:
        return tuple(frame.loc[parameter, ["paper", "used", "differs"]])

    assert row("Temperature") == ("1", "1", "False")
    assert row("Top-k") == ("-1", "-1", "False")
    assert row("Sample batch size") == ("256", "32", "True")
    assert frame.loc["Sample batch size", "others"] == "dapo: 16"
    assert row("Seed") == ("42", "1, 2", "True")
    assert row("Training epochs") == ("3", "150 steps", "True")
    assert row("c1 threshold") == ("1/8", "0.125", "False")
    assert row("c2 range") == ("[1/8, 4/8]", "[0.125, 0.5]", "False")
    assert row("Buffer size (|B|)") == ("256", "32 (the batch size)", "True")
    assert row("Max re-evaluate prompts") == ("128", "half of 32", "True")
    assert row("Rollout delay (v)")[1:] == ("not in the configuration", "False")
    assert frame.loc["KL coefficient (beta)", "others"] == "dapo: 0"
    assert row("GAE lambda")[1].startswith("not an option of BAPO")


def test_every_option_of_every_method(used: Path, tmp_path: Path) -> None:
    hyperparameters.write(load(used), tmp_path / "out")
    text = (tmp_path / "out" / "table3.md").read_text()
    options = rows_of(text, "Countdown, Tiny: every method's own options")
    assert options["kl_coef"] == ["0", "0.001"]  # DAPO, then BAPO: the paper's order
    assert options["clip_high"] == ["0.28", ""] and options["max_reevaluated"] == ["", "none"]
    assert "title" not in options and "kind" not in options
    fields = rows_of(text, "Countdown, Tiny: sampling, training with its budget, and evaluation")
    assert fields["train.batch_size"] == ["16 (bapo: 32)"] and fields["evaluation.samples"] == ["32"]
    assert "evaluation.vllm.dtype" not in fields  # the backend was another one
    every = pd.read_csv(tmp_path / "out" / "table3_options.csv", keep_default_na=False)
    vllm = every[every.key == "evaluation.vllm.dtype"]
    assert list(vllm.seed) == [1, 1, 2] and set(vllm.value) == {"bfloat16"}


def test_the_papers_own_runs_differ_in_nothing_that_table_3_prints(tmp_path: Path) -> None:
    name = "deepseek-r1-distill-qwen-1.5b"
    config = plain(configuration.run_config("paper", "mathematics", name, "bapo", 42, ()))
    write_run(place(tmp_path, "bapo", 42, "mathematics", name), config=config)
    study = load(write_study(tmp_path, [(name, "bapo", 42)], task="mathematics"))
    rows = hyperparameters.beside_the_paper(study.blocks[0], hyperparameters.configurations(study.blocks[0], study))
    assert {r["parameter"]: r["used"] for r in rows if r["differs"]} == {}
    assert {r["parameter"] for r in rows if r["used"] == "not in the configuration"} == set()


# ------------------------------------------------------------------------------------------------ Table 4


def problems(*rows: tuple[str, str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "prompt": [[{"role": "system", "content": "x" * 50}, {"role": "user", "content": p}] for _, p in rows],
            "extra_info": [{"id": i} for i, _ in rows],
        }
    )


@pytest.fixture
def loaded(tmp_path: Path) -> Path:
    """Training: three rows, an id twice, a text three times. cd34: one row of its own, one of training's."""
    folder = tmp_path / "results" / "laptop" / "countdown" / "data"
    folder.mkdir(parents=True)
    splits = {
        "train": problems(("i1", "1 2 : 3"), ("i1", "1 2 : 3"), ("i2", "1 2 : 3")),
        "cd34": problems(("i2", "1 2 : 3"), ("i9", "7 8 9 : 24")),
    }
    for name, frame in splits.items():
        write_parquet(folder / f"{name}.parquet", frame)
    files = fingerprints(folder, [f"{name}.parquet" for name in splits])
    counts = {"train": {"problems": 3, "three_numbers": 0}, "cd34": {"problems": 2}}
    write_json(folder / "summary.json", {"identity": "x", "problems": counts, "files": files})
    write_json(folder / "cleaning.json", {"rows": {"train": 9, "cd34": 2}, "problems": {"train": 3, "cd34": 2}})
    hub = {"train": {"repository": "some/set", "revision": "0123456789abcdef"}, "cd34": {"repository": "some/set"}}
    data = {"source": "hub", "split_sizes": {"train": 3, "cd34": 2}, "hub": hub}
    write_run(place(tmp_path, "grpo", 1), config={"seed": 1, "data": data})
    return write_study(tmp_path, [("tiny", "grpo", 1)])


def test_what_was_loaded(loaded: Path, tmp_path: Path) -> None:
    assert main(["table4", "--study", str(loaded), "--out", str(tmp_path / "out")]) == 0
    frame = pd.read_csv(tmp_path / "out" / "table4.csv", keep_default_na=False).set_index("split")
    assert list(frame.index) == ["train", "cd34"]
    train = frame.loc["train"]
    assert (train.rows, train.repeated_ids, train.repeated_contents) == (3, 1, 2)
    assert (train.shortest_prompt, train.longest_prompt) == (7, 7)  # the user's message alone
    assert train.removed == "6 of 9 rows"
    assert train.source == "some/set @ 0123456789ab" and frame.loc["cd34", "source"].endswith("newest at first use")
    assert (train.paper_set, train.paper) == ("COUNTDOWN-TASKS-3TO4", "49,000")
    assert "10,000" in train.remark and "49,000" in train.remark
    assert (frame.loc["cd34", "shortest_prompt"], frame.loc["cd34", "longest_prompt"]) == (7, 10)
    shared = pd.read_csv(tmp_path / "out" / "table4_overlap.csv").iloc[0]
    assert (shared["first"], shared["second"]) == ("train", "cd34")
    assert (shared.rows_of_second, shared.same_id, shared.same_content) == (2, 1, 1)
    assert np.isnan(shared.same_form)  # no problem of this task has a form


def test_diagrams_tell_problems_with_one_text_apart(tmp_path: Path) -> None:
    frame = problems(("g1", "<image>x"), ("g2", "<image>x"), ("g3", "<image>x"))
    frame["images"] = [[{"bytes": b"one"}], [{"bytes": b"two"}], [{"bytes": b"one"}]]
    write_parquet(tmp_path / "train.parquet", frame)
    write_json(tmp_path / "summary.json", {"files": fingerprints(tmp_path, ["train.parquet"])})
    assert data_sets.splits(tmp_path)["train"].repeated == (0, 1)


def test_forms_that_two_splits_share_are_counted(loaded: Path, tmp_path: Path) -> None:
    """Written as the data job writes them: two of the test's problems ask what training asks, none has its id."""
    folder = tmp_path / "results" / "laptop" / "countdown" / "data"
    made = {"train": ["a", "a", "b"], "cd34": ["b", "c", "a", "c"]}
    for split, forms in made.items():
        rows = [Problem(f"{split}{i}", "x", '{"answer": 1}', form=form) for i, form in enumerate(forms)]
        write_problems(folder / f"{split}.parquet", rows, "countdown", "planning", split)
    files = fingerprints(folder, ["train.parquet", "cd34.parquet"])
    write_json(folder / "summary.json", {"identity": "x", "problems": {}, "files": files})
    assert main(["table4", "--study", str(loaded), "--out", str(tmp_path / "out")]) == 0
    shared = pd.read_csv(tmp_path / "out" / "table4_overlap.csv").set_index(["first", "second"])
    assert shared.loc[("train", "cd34"), ["same_id", "same_form"]].tolist() == [0, 2]
