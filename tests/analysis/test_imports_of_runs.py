"""Logs of others as run directories: three formats, what is assumed, and the batches that BAPO would have drawn."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pandas as pd
import pytest
from support.paths import needs_shared

from analysis import study as studies
from analysis.__main__ import main
from analysis.figures import draw
from analysis.imports.folders import import_file
from analysis.imports.formats import Settings, detect, read_log
from analysis.imports.what_if import what_if, write_what_if
from bapo.errors import UserError
from bapo.store.files import GROUPS, MANIFEST, PROBE, STEPS, read_json, read_table, write_parquet

G = 4


def write(path, records, packed=False):
    text = "".join(json.dumps(r) + "\n" for r in records)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.fixture
def log(tmp_path):
    """Ten prompts, eight visits each: prompt i is solved i of 10 times at first and improves."""
    rng = np.random.default_rng(0)
    records = [
        {"id": f"p{i}", "acc_history": [float(rng.binomial(G, min(1, i / 10 + v / 20)) / G) for v in range(8)]}
        for i in range(10)
    ]
    return write(tmp_path / "log.jsonl.gz", records, packed=True), records


SETTINGS = Settings(batch=5, group=G, points=5)


def test_histories_keep_every_group_in_the_order_of_its_prompt(log):
    path, records = log
    tables, _ = read_log(path, SETTINGS)
    assert len(tables.groups) == 80 and tables.groups["step"].value_counts().eq(5).all()
    for record in records:
        mine = tables.groups[tables.groups["prompt_id"] == record["id"]]
        assert mine["mean"].tolist() == record["acc_history"] and mine["step"].is_monotonic_increasing
        assert [sum(r) for r in mine["rewards"]] == [G * a for a in record["acc_history"]]
    by_step = tables.groups.groupby("step")["mean"].mean()
    assert np.allclose(tables.steps["reward_mean"], by_step)
    assert tables.steps["fresh_rollouts"].sum() == 80 * G
    assert sorted(tables.probe["step"].unique()) == [0, 4, 8, 12, 16]
    start = tables.probe[tables.probe["step"] == 0].set_index("prompt_id")["correct"]
    assert start.to_dict() == {r["id"]: round(G * r["acc_history"][0]) for r in records}
    assert any("placed at" in note for note in tables.notes)


def test_an_unfinished_last_step_is_left_out(log):
    tables, _ = read_log(log[0], Settings(batch=30, group=G, points=2))
    assert tables.steps["step"].tolist() == [1, 2] and len(tables.groups) == 60


def test_tracking_logs_drop_steps_with_other_numbers_of_samples(tmp_path):
    records = [{"prompt": p, "step": 0, "reward": 0.0} for p in "ab"]
    records += [{"prompt": p, "step": s, "reward": float(p == "a")} for s in (5, 10) for p in "ab" for _ in range(3)]
    tables, _ = read_log(write(tmp_path / "t.jsonl", records), SETTINGS)
    assert tables.probe.groupby("step")["correct"].sum().to_dict() == {5: 3, 10: 3}
    assert set(tables.probe["samples"]) == {3} and any("[0]" in note for note in tables.notes)
    assert tables.steps["reward_mean"].tolist() == [0.5, 0.5]


def test_verl_metrics_get_our_names(tmp_path):
    records = [
        {"step": 2, "critic/score/mean": 0.5, "actor/entropy_loss": 0.4, "actor/grad_norm": 1.5, "timing_s/step": 9.0},
        {"step": 1, "critic/score/mean": 0.25, "actor/entropy_loss": 0.3, "actor/grad_norm": 2.5, "timing_s/step": 8.0},
        {"step": 2, "val/test_score/x": 0.1},
    ]
    tables, _ = read_log(write(tmp_path / "v.jsonl", records), Settings(batch=16, group=8))
    assert tables.steps["step"].tolist() == [1, 2] and tables.steps["reward_mean"].tolist() == [0.25, 0.5]
    assert tables.steps["entropy"].tolist() == [0.3, 0.4] and tables.steps["seconds_total"].tolist() == [8.0, 9.0]
    assert tables.steps["kl"].isna().all() and tables.steps["fresh_rollouts"].tolist() == [128, 128]
    assert any("1 lines without" in note for note in tables.notes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ('{"a": 1}\n', "line 1: the fields a are of no known format"),
        ("[1]\n", "line 1: must be a JSON object"),
        ('{"id": "x", "acc_history": [0.3]}\n', r"x: accuracy 0\.3 is no multiple of 1/4; set --group"),
        ('{"id": "x", "acc_history": []}\n', "0 visits are less than one step of 5 prompts; lower --batch"),
        ('{"prompt": "x", "step": 1, "reward": 2}\n', "reward 2.*must be 0 or 1"),
        ('{"step": 1, "val/x": 1}\n', "no line has 'critic/score/mean'"),
        ("{broken\n", r"line 1: is no JSON .*; known are histories \("),
    ],
)
def test_wrong_files_are_named(tmp_path, content, message):
    path = tmp_path / "log.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=rf"log\.jsonl.*{message}"):
        read_log(path, SETTINGS, None if content else detect(path))


def test_a_damaged_archive_is_named(log, tmp_path):
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(log[0].read_bytes()[:-20])
    with pytest.raises(UserError, match=r"cut\.jsonl\.gz, after line .*unpack or repair"):
        read_log(cut, SETTINGS)


# ------------------------------------------------------------------------------------------------ what if


@pytest.fixture
def run(log, tmp_path):
    return import_file(log[0], tmp_path / "imported", ("toy", "small", "grpo", 1), SETTINGS).folder


def test_the_batches_are_those_of_the_method_itself(run):
    options = {"m": 4, "c1": 0.25, "c2_range": [0.5, 0.5], "c3_range": [0.5, 0.5]}
    tables, size = what_if(run, "bapo", options)
    groups = read_table(run / GROUPS)
    assert size == 5 and len(tables.steps) == 16
    informative = groups[(groups["mean"] > 0) & (groups["mean"] < 1)].groupby("step").size()
    assert tables.steps.set_index("step")["x1"].to_dict() == informative.reindex(range(1, 17), fill_value=0).to_dict()
    assert set(tables.steps.loc[tables.steps["reevaluated_prompts"] > 0, "step"]) <= {4, 8, 12, 16}
    assert tables.steps["x2"].sum() > 0 and tables.steps["x3"].sum() > 0
    assert (tables.steps["batch_groups"] == tables.steps[["x1", "x2", "x3"]].sum(axis=1)).all()


def test_a_reevaluated_prompt_has_the_accuracy_of_its_next_group(tmp_path):
    # a is at 0 in step 1 and at 1/2 in step 3: re-evaluated in step 2, it has improved; b never does
    rows = [(1, "a", 0), (1, "b", 0), (2, "c", 2), (2, "d", 2), (3, "a", 2), (3, "b", 0)]
    frame = pd.DataFrame(
        {
            "step": [s for s, _, _ in rows],
            "prompt_id": [n for _, n, _ in rows],
            "origin": "fresh",
            "version": [s - 1 for s, _, _ in rows],
            "generated_step": [s for s, _, _ in rows],
            "rewards": [[1.0] * c + [0.0] * (G - c) for _, _, c in rows],
            "mean": [c / G for _, _, c in rows],
            "used": True,
            "reason": "",
        }
    )
    folder = tmp_path / "toy" / "small" / "grpo" / "seed1"
    folder.mkdir(parents=True)
    write_parquet(folder / GROUPS, frame)
    write_parquet(folder / PROBE, frame.iloc[:0])
    tables, _ = what_if(folder, "bapo", {"m": 2, "c1": 0.0, "max_reevaluated": 2})
    assert tables.steps["x2"].tolist() == [0, 1, 0] and tables.steps["reevaluated_prompts"].tolist() == [0, 2, 0]
    assert tables.steps["regenerated_rollouts"].sum() == 2 * G


def test_figures_are_drawn_from_imported_runs(run, tmp_path):
    write_what_if(run, tmp_path / "imported", "bapo", {"m": 4})
    study = studies.load(tmp_path / "imported" / "toy" / "study.json", "figures")
    assert set(study.blocks[0].methods) == {"grpo", "bapo_on_grpo"}
    for name in ("figure15_migration", "figure7_tracking", "figure8_batch_composition", "figure4_training_curves"):
        assert all(p.stat().st_size > 0 for p in draw(name, study, tmp_path / "figures", None))
    matrix = pd.read_csv(tmp_path / "figures" / "figure15_migration.csv")
    assert matrix[matrix["step"] == 0]["prompts"].sum() == 10


def test_the_commands(log, tmp_path, capsys):
    out = tmp_path / "out"
    names = ["--task", "toy", "--model", "small", "--method", "grpo", "--out", str(out)]
    assert main(["import", str(log[0]), *names, "--batch", "5", "--group", "4"]) == 0
    assert main(["what-if", str(out / "toy/small/grpo/seed1"), "c1=0.25", "--out", str(out)]) == 0
    manifest = read_json(out / "toy/small/bapo_on_grpo/seed1" / MANIFEST)
    assert manifest["imported"]["options"] == {"c1": 0.25}
    assert main(["what-if", str(out / "toy/small/grpo/seed1"), "c9=1", "--out", str(out)]) == 2
    assert "method.c9: bapo has no such parameter" in capsys.readouterr().err
    assert main(["what-if", str(out / "toy/small/grpo/seed1"), "--algorithm", "dapo", "--out", str(out)]) == 2
    assert "which a recorded run cannot give" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ the real logs


def test_the_real_accuracy_history(tmp_path):
    path = needs_shared("data", "runs", "grpo_qwen2.5_math_1.5b_accuracy_history.jsonl.gz")
    run = import_file(path, tmp_path, ("mathematics", "qwen2.5-math-1.5b", "grpo", 1), Settings()).folder
    steps = read_table(run / STEPS)
    assert len(steps) == 500 and set(steps["groups_fresh"]) == {128}  # 500 steps x 128 prompts, as published
    assert steps["reward_mean"].tail(50).mean() > steps["reward_mean"].head(50).mean() + 0.05
    tables, size = what_if(run, "bapo", {})
    share = (tables.steps["batch_groups"] / size).mean()
    assert size == 128 and 0.4 < share < 0.8 and tables.steps["x1"].mean() > tables.steps["x3"].mean() > 0


@pytest.mark.parametrize("name", ["bapo-freq_2_2-qwen3_8b-val8k_aime", "dapo-qwen3_4b-freq_1_5-8nodes"])
def test_the_real_tracking_logs(name):
    tables, _ = read_log(needs_shared("data", "runs", f"bapo_authors_{name}_tracking.jsonl.gz"), Settings())
    assert tables.probe["prompt_id"].nunique() == 30 and set(tables.probe["samples"]) == {8}


def test_the_real_verl_metrics():
    tables, _ = read_log(needs_shared("data", "runs", "yushengsu_grpo_deepseek7b_gsm8k.jsonl.gz"), Settings())
    assert len(tables.steps) == 1119 and tables.steps["entropy"].notna().all()
