"""Training logs of verl, TRL and OpenRLHF in their true formats, and every line that cannot be read named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.paths import needs_shared

from analysis.__main__ import LOGS, main
from analysis.imports import lines
from analysis.imports.folders import write_study
from analysis.imports.formats import FORMATS, Settings, detect, read_log
from bapo.errors import UserError
from bapo.store.files import MANIFEST, STEPS, read_json, read_table

SETTINGS = Settings(batch=4, group=2)

# ruff: noqa: E501 (real lines of logs are long)

#: what verl's console logger prints under Ray, with other output between
VERL_CONSOLE = """\
\x1b[36m(TaskRunner pid=812)\x1b[0m Training Progress:   0%|          | 0/2 [00:00<?, ?it/s]
\x1b[36m(TaskRunner pid=812)\x1b[0m step:0 - val-core/openai/gsm8k/reward/mean@1:0.31
\x1b[36m(TaskRunner pid=812)\x1b[0m step:1 - actor/entropy:0.41 - critic/score/mean:0.25 - actor/grad_norm:1.5e-01 - actor/lr:np.float64(1e-06) - training/global_step:1
\x1b[36m(TaskRunner pid=812)\x1b[0m step:2 - actor/entropy:0.40 - critic/score/mean:0.5 - actor/grad_no
\x1b[36m(TaskRunner pid=812)\x1b[0m step:3 - actor/entropy:0.39 - critic/score/mean:0.75 - actor/grad_norm:nan
"""
#: verl's file logger
VERL_FILE = (
    '{"step":1,"data":{"critic/score/mean":0.25,"timing_s/step":9.5}}\n{"step":2,"data":{"critic/score/mean":0.5}}\n'
)
#: OpenRLHF's console (its logger's prefix, both kinds of trainers)
OPENRLHF_CONSOLE = """\
(PPOTrainer pid=31) INFO 08-13 19:25:45 ppo_trainer.py:547] ✨ Global step 1: {'policy_loss': 0.01, 'reward': 0.2, 'response_length': 210.0, 'kl': 0.0, 'actor_lr': 5e-07, 'actor_grad_norm': 0.7, 'timing/generation': 12.5, 'rollout/reward_mean': 0.25, 'rollout/response_length_mean': 200.5, 'rollout/num_samples': 64.0, 'timing/step_total': 40.0}
(PPOTrainer pid=31) INFO 08-13 19:26:45 ppo_trainer_async.py:244] Global step 2: {'policy_loss': nan, 'reward': 0.4, 'rollout/reward_mean': 0.5, 'rollout/num_samples': 64.0}
(PPOTrainer pid=31) INFO 08-13 19:27:45 ppo_trainer.py:547] ✨ Global step 3: {'policy_loss': 0.0
"""
TRAINER_STATE = {
    "best_metric": None,
    "global_step": 3,
    "log_history": [
        {"step": 1, "epoch": 0.1, "loss": 0.0, "grad_norm": 0.3, "learning_rate": 1e-06, "num_tokens": 999.0,
         "completions/mean_length": 101.5, "completions/clipped_ratio": 0.0, "rewards/accuracy_reward/mean": 0.25,
         "rewards/format_reward/mean": 0.5, "reward": 0.75, "reward_std": 0.4, "frac_reward_zero_std": 0.5,
         "kl": 0.001, "entropy": 0.6, "clip_ratio/region_mean": 0.01, "step_time": 7.5},
        {"step": 2, "epoch": 0.2, "loss": 0.1, "reward": "n/a", "rewards/accuracy_reward/mean": 0.5},
        "not a record",
        {"step": 3, "epoch": 0.3, "loss": 0.1, "reward": 1.25, "rewards/accuracy_reward/mean": 0.75},
        {"step": 3, "epoch": 0.3, "eval_loss": 0.2, "eval_reward": 0.9},
        {"step": 3, "train_runtime": 90.0, "train_loss": 0.05},
    ],
}  # fmt: skip


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_command_knows_every_format() -> None:
    assert tuple(FORMATS) == LOGS


def test_verls_console(tmp_path: Path) -> None:
    path = write(tmp_path, "verl.log", VERL_CONSOLE)
    tables, log = read_log(path, SETTINGS)
    assert detect(path) == "verl" and tables.steps["step"].tolist() == [1, 3]
    assert tables.steps["reward_mean"].tolist() == [0.25, 0.75] and tables.steps["entropy"].tolist() == [0.41, 0.39]
    assert tables.steps["learning_rate"].iloc[0] == 1e-6 and tables.steps["gradient_norm"].isna().tolist() == [
        False,
        True,
    ]
    assert log.passed == 1 and len(log.refused) == 1  # the progress bar; the line that is cut off
    assert log.said() == [
        f"{path}, line 4: 'actor/grad_no' is no NAME:NUMBER; the line is cut off or mixed with another"
    ]


def test_verls_file_logger(tmp_path: Path) -> None:
    tables, _ = read_log(write(tmp_path, "verl.jsonl", VERL_FILE), SETTINGS)
    assert tables.steps["reward_mean"].tolist() == [0.25, 0.5] and tables.steps["seconds_total"].iloc[0] == 9.5
    assert tables.steps["fresh_rollouts"].tolist() == [8, 8]


def test_openrlhfs_console(tmp_path: Path) -> None:
    path = write(tmp_path, "openrlhf.log", OPENRLHF_CONSOLE)
    tables, log = read_log(path, SETTINGS)
    assert detect(path) == "openrlhf" and tables.steps["reward_mean"].tolist() == [0.25, 0.5]
    assert tables.steps["fresh_rollouts"].tolist() == [64, 64]  # logged, not assumed
    assert tables.steps["response_length"].iloc[0] == 200.5 and tables.steps["loss"].isna().tolist() == [False, True]
    assert [place for place, _ in log.refused] == ["line 3"] and "cut off" in log.refused[0][1]


def test_openrlhfs_wandb_history(tmp_path: Path) -> None:
    rows = [{"_step": i, "train/global_step": i, "train/policy_loss": 0.1, "train/reward": i / 4} for i in (1, 2)]
    path = write(tmp_path, "history.jsonl", "".join(json.dumps(r) + "\n" for r in [*rows, {"eval/epoch": 1}]))
    tables, _ = read_log(path, SETTINGS)
    assert detect(path) == "openrlhf" and tables.steps["reward_mean"].tolist() == [0.25, 0.5]
    assert any("1 lines without training metrics" in note for note in tables.notes)


def test_trls_trainer_state(tmp_path: Path) -> None:
    path = write(tmp_path, "trainer_state.json", json.dumps(TRAINER_STATE, indent=2))
    tables, log = read_log(path, SETTINGS)
    first = tables.steps.iloc[0]
    assert detect(path) == "trl" and tables.steps["step"].tolist() == [1, 3]
    assert (first["reward_mean"], first["response_length"], first["clip_fraction"]) == (0.75, 101.5, 0.01)
    assert first["seconds_total"] == 7.5 and any("weighted sum" in note for note in tables.notes)
    assert [place for place, _ in log.refused] == ["log_history entry 3", "log_history entry 2"]
    assert "2 lines without training metrics" in " ".join(tables.notes)


def test_one_of_trls_rewards_may_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "trainer_state.json", json.dumps(TRAINER_STATE))
    steps = read_log(path, Settings(reward="rewards/accuracy_reward/mean"))[0].steps
    assert steps["reward_mean"].tolist() == [0.25, 0.5, 0.75]
    with pytest.raises(UserError, match=r"no line has 'rewards/none'"):
        read_log(path, Settings(reward="rewards/none"))


def test_trls_console_has_no_steps(tmp_path: Path) -> None:
    line = "{'loss': 0.0, 'grad_norm': 0.3, 'completion_length': 99.0, 'reward': %s, 'reward_std': 0.4, 'epoch': 0.1}\n"
    path = write(tmp_path, "train.log", "Loading\n" + line % 0.25 + "  5%|#  | 1/20\n" + line % 0.5)
    tables, log = read_log(path, SETTINGS)
    assert detect(path) == "trl" and tables.steps["step"].tolist() == [1, 2] and log.passed == 2
    assert tables.steps["reward_mean"].tolist() == [0.25, 0.5] and any("numbered" in note for note in tables.notes)


def test_a_resumed_run_counts_a_step_once(tmp_path: Path) -> None:
    tables, log = read_log(write(tmp_path, "v.jsonl", VERL_FILE + VERL_FILE.replace("0.25", "0.3")), SETTINGS)
    assert tables.steps["reward_mean"].tolist() == [0.3, 0.5]
    assert [place for place, _ in log.refused] == ["line 3", "line 4"]


def test_broken_lines_are_refused_one_by_one(tmp_path: Path) -> None:
    rows = [json.dumps({"step": i, "critic/score/mean": i / 8}) for i in range(1, 6)]
    rows[1], rows[3] = "{broken", "[1, 2]"
    rows += ['{"critic/score/mean": 1}', "x" * 1_100_000, '{"step": 9, "critic/score/mean": 1}']
    tables, log = read_log(write(tmp_path, "v.jsonl", "\n".join(rows) + "\n"), SETTINGS, "verl")
    assert tables.steps["step"].tolist() == [1, 3, 5, 9]
    refused = dict(log.refused)
    assert "is no JSON" in refused["line 2"] and refused["line 4"] == "must be a JSON object"
    assert refused["line 6"] == "field 'step' is missing" and refused["line 7"] == "too long; is this a log?"


@pytest.mark.parametrize("broken", ['"step": 1e999', '"step": 1e30', '"step": 2, "actor/lr": 1' + "0" * 400])
def test_numbers_that_overflow_are_refused(tmp_path: Path, broken: str) -> None:
    good, score = '{"step": 1, "critic/score/mean": 0.5}', '"critic/score/mean": 0.5'
    text = f"{good}\n{{{broken}, {score}}}\n"
    tables, log = read_log(write(tmp_path, "v.jsonl", text), SETTINGS)
    assert tables.steps["step"].tolist() == [1] and [place for place, _ in log.refused] == ["line 2"]


def test_a_document_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LARGEST", 100)
    path = write(tmp_path, "trainer_state.json", json.dumps(TRAINER_STATE))
    with pytest.raises(UserError, match=r"trainer_state\.json: has .* MB.*; write its records as JSON lines"):
        detect(path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "Qwen/Qwen2.5-7B"], "for example Qwen--Qwen2.5-7B"),
        (["--model", "a\\b"], "for example a--b"),
        (["--task", ".."], "--task '..': must be the name of one folder"),
        (["--method", "."], "--method '.'"),
        (["--method", ""], "--method ''"),
        (["--batch", "0"], "--batch 0: must be at least 1"),
        (["--group", "-1"], "--group -1: must be at least 1"),
        (["--benchmark", "gsm8k"], "must be THEIRS=OURS"),
        (["--benchmark", "=cd"], "must be THEIRS=OURS"),
        (["--benchmark", "gsm8k=cd"], "is no evaluation, for which --metric and --benchmark are"),
        (["--metric", "acc"], "is no evaluation"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(tmp_path: Path, capsys, words: list[str], said: str) -> None:
    path = write(tmp_path, "v.jsonl", VERL_FILE)
    out = tmp_path / "results" / "imported"
    names = ["--task", "t", "--model", "m", "--method", "grpo", "--out", str(out)]
    assert main(["import", str(path), *names, *words]) == 2
    assert said in capsys.readouterr().err and not out.parent.exists()


def test_a_task_without_runs_has_no_study(tmp_path: Path) -> None:
    write_study(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_log_of_nothing_but_broken_lines_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"v\.jsonl, line 1: is no JSON .*\(all 2 records were refused\)"):
        read_log(write(tmp_path, "v.jsonl", "{broken\n{too\n"), SETTINGS, "verl")


def test_the_command_counts_and_names_what_it_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "verl.log", VERL_CONSOLE)
    names = ["--task", "t", "--model", "m", "--method", "grpo", "--out", str(tmp_path / "imported")]
    assert main(["import", str(path), *names]) == 0
    shown = capsys.readouterr()
    assert "1 refused:" in shown.out and "verl.log, line 4:" in shown.out and "from 3 records" in shown.err
    run = tmp_path / "imported/t/m/grpo/seed1"
    source = read_json(run / MANIFEST)["imported"]
    assert (source["refused"], source["format"], source["passed_over"]) == (1, "verl", 1)
    assert source["refused_first"][0]["place"] == "line 4" and len(read_table(run / STEPS)) == 2


def test_a_real_log_of_verl_has_no_refused_line() -> None:
    path = needs_shared("data", "runs", "yushengsu_grpo_deepseek7b_gsm8k.jsonl.gz")
    tables, log = read_log(path, Settings())
    assert len(tables.steps) == 1119 and log.refused == [] and log.passed == 0
