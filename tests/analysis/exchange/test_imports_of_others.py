"""Logs of verl and TRL and evaluations of lm-eval in their true formats: what is read, refused and written."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from support.paths import needs_shared

from analysis import study as studies
from analysis.__main__ import main
from analysis.exchange import imports
from analysis.exchange.imports import read, scores_of, steps_of
from bapo.errors import UserError
from bapo.store.files import MANIFEST, STEPS, SUMMARY, read_json, read_table

LOGS = Path(__file__).with_name("logs")
#: what verl's console logger prints under Ray, with other output between; one line is cut off
VERL_CONSOLE = (LOGS / "verl.log").read_text(encoding="utf-8")
VERL_FILE = (
    '{"step":1,"data":{"critic/score/mean":0.25,"timing_s/step":9.5}}\n{"step":2,"data":{"critic/score/mean":0.5}}\n'
)
TRAINER_STATE, LM_EVAL = (
    json.loads((LOGS / f"{name}.json").read_text(encoding="utf-8")) for name in ("trainer_state", "lm_eval")
)


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def bring(folder: Path, file: Path, *more: str) -> int:
    names = ["--task", "countdown", "--model", "big", "--method", "theirs", "--out", str(folder / "imported")]
    return main(["import", str(file), *names, *more])


def test_verls_console(tmp_path: Path) -> None:
    log = read(write(tmp_path, "verl.log", VERL_CONSOLE))
    steps = steps_of(log)
    assert steps["step"].tolist() == [1, 3] and steps["reward_mean"].tolist() == [0.25, 0.75]
    assert steps["entropy"].tolist() == [0.41, 0.39] and steps["learning_rate"].iloc[0] == 1e-6
    assert steps["gradient_norm"].isna().tolist() == [False, True]
    assert [place for place, _ in log.refused] == ["line 4"] and "actor/grad_no" in log.refused[0][1]


def test_verls_file_logger(tmp_path: Path) -> None:
    path = tmp_path / "verl.jsonl.gz"
    path.write_bytes(gzip.compress((VERL_FILE + VERL_FILE.replace("0.25", "0.3")).encode()))  # a step counts once
    steps = steps_of(read(path))
    assert steps["reward_mean"].tolist() == [0.3, 0.5] and steps["seconds_total"].iloc[0] == 9.5


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_trls_trainer_state(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path, f"trainer_state{ending}", TRAINER_STATE)
    if ending.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    log = read(path)
    steps = steps_of(log)
    first = steps.iloc[0]
    assert steps["step"].tolist() == [1, 3] and first["seconds_total"] == 7.5
    assert (first["reward_mean"], first["response_length"], first["clip_fraction"]) == (0.75, 101.5, 0.01)
    assert [place for place, _ in log.refused] == ["log_history entry 3", "log_history entry 2"]


#: what wandb's "Export as CSV" writes of a panel: one run, then two
WANDB_CSV = '"Step","a - b - reward","a - b - reward__MIN"\n"5","0.25","0.2"\n"10","",""\n"15","0.75","0.7"\n'
WANDB_RUNS = '"Step","a - reward","b - reward"\n"1","0.25","0.5"\n"2","0.5","0.75"\n'
#: TRL's console: numbers as text since transformers 5, nan without quotes, and a line that is cut off
TRL_CONSOLE = (
    "  0%|  | 0/3 [00:00<?]\r{'loss': '0.1', 'reward': '0.25', 'kl': nan}\n{'loss': 0.1, 'rew\n"
    "{'reward': 0.75, 'rewards/format/mean': 0.5}\n{'train_runtime': 9.5}\n"
)
VERL_WORDS = "step:4 - critic/score/mean:0.25 - val-aux/num turns/mean:None - actor/skipped:True - actor/kl_loss:None\n"
LINES = '{"step": 1, "reward": 1, "a": "\u2028"}\r{"step": 2, "reward": 0}'
OTHERS = {"step": 1, "critic/score/mean": 0.5, "critic/rewards/mean": 0.75}


@pytest.mark.parametrize(
    ("name", "text", "metric", "steps", "rewards", "refused", "said"),
    [
        ("panel.csv", WANDB_CSV, None, [5, 15], [0.25, 0.75], [], "reward: reward, 2 steps, 0.25 at step 5"),
        # as Excel does
        ("Panel.CSV", f"\ufeff{WANDB_CSV}", None, [5, 15], [0.25, 0.75], [], "2 steps, 0.25 at step 5"),
        ("bom.jsonl", f"\ufeff{json.dumps(OTHERS)}", None, [1], [0.5], [], "1 steps"),
        ("lines.jsonl", LINES, None, [1, 2], [1.0, 0.0], [], ""),
        ("runs.csv", WANDB_RUNS, "b - reward", [1, 2], [0.5, 0.75], [], "there are also a - reward"),
        ("cells.csv", "Step,reward\n1,0,5\n2\n\n3,0.5", None, [3], [0.5], ["row 1"], "1 steps"),
        ("trl.log", TRL_CONSOLE, None, [1, 2], [0.25, 0.75], ["line 3"], "the records are counted"),
        ("deep.log", "{'reward': " + "[" * 9000 + "\n{'reward': 1}", None, [1], [1.0], ["line 1"], "1 steps"),
        ("long.log", "{'reward': 1, '': '" + "x" * 1_000_000 + "'}\n{'reward': 1}", None, [1], [1.0], ["line 1"], ""),
        ("verl.log", VERL_WORDS, None, [4], [0.25], [], "critic/score/mean, 1 steps"),
        ("verl.jsonl", json.dumps(OTHERS), None, [1], [0.5], [], "there are also critic/rewards/mean"),
        ("verl.jsonl", json.dumps(OTHERS), "critic/rewards/mean", [1], [0.75], [], "there are also critic/score/mean"),
        ("wandb.jsonl", '{"train/reward": 1, "_step": 3}\n{"reward": null}', "train/reward", [3], [1.0], [], ""),
    ],
)
def test_logs_and_what_was_taken_of_them(
    tmp_path: Path, name: str, text: str, metric: str, steps: Any, rewards: Any, refused: Any, said: str
) -> None:
    log = read(write(tmp_path, name, text))
    found = steps_of(log, metric)
    assert (found["step"].tolist(), found["reward_mean"].tolist()) == (steps, rewards)
    assert [place for place, _ in log.refused] == refused and said in "\n".join(log.notes)


REWARD = '"critic/score/mean": '


@pytest.mark.parametrize(
    "broken",
    [
        "{broken",
        f'{{"step": 1e999, {REWARD}0.5}}',
        f'{{"step": 1e30, {REWARD}0.5}}',
        f'{{"step": 1.5, {REWARD}0.5}}',
        f'{{"step": -1e30, {REWARD}0.5}}',
        f'{{"step": 7, {REWARD}NaN}}',
        f'{{"step": 7, {REWARD}true}}',
        f'{{"step": true, {REWARD}0.5}}',
        f'{{"step": 7, {REWARD}-Infinity}}',
        "step:7 - critic/score/mean:nan",
        "step:7 - critic/score/mean:0.5 - critic/score/mean:0.75",
        f'{{"step": 7, {REWARD}0.5, {REWARD}0.75}}',
        "{'step': 7, 'reward': inf}",
    ],
)
def test_broken_lines_are_refused_one_by_one(tmp_path: Path, broken: str) -> None:
    lines = [json.dumps({"step": i, "critic/score/mean": i / 8}) for i in (1, 2)]
    log = read(write(tmp_path, "v.jsonl", "\n".join([lines[0], broken, lines[1]])))
    assert steps_of(log)["step"].tolist() == [1, 2] and [place for place, _ in log.refused] == ["line 2"]


def test_a_file_without_metrics_is_named(tmp_path: Path) -> None:
    files = (("a.jsonl", "{broken\n"), ("b.log", "Loading\n"), ("c.json", "{}"), ("b - reward.csv", WANDB_RUNS))
    for name, text in files:
        with pytest.raises(UserError, match=name):
            steps_of(read(write(tmp_path, name, text)))
    with pytest.raises(UserError, match=r"none\.log: not readable .*; name another file"):
        read(tmp_path / "none.log")
    for columns in ("reward,reward", "reward,train/reward", "a - reward,a - reward"):
        with pytest.raises(UserError, match=r"d\.csv: two columns are reward"):
            read(write(tmp_path, "d.csv", f"step,{columns}\n1,0.5,0.75\n"))
    content = bytearray(gzip.compress(VERL_CONSOLE.encode()))
    content[20:30] = b"\xff" * 10
    (tmp_path / "v.log.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"v\.log\.gz: not readable"):
        read(tmp_path / "v.log.gz")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"results": {"gsm8k": {"acc,none": 0.1}, "gsm8k": {"acc,none": 0.9}}}', "gsm8k"),
        ('{"log_history": [{"step": 1, "reward": 0.5, "reward": 0.75}]}', "reward"),
    ],
)
def test_a_json_file_that_gives_a_name_twice_is_refused(tmp_path: Path, capsys: Any, text: str, name: str) -> None:
    assert bring(tmp_path, file := write(tmp_path, "r.json", text)) == 2
    assert f"{file}: {name} is given twice" in capsys.readouterr().err and not (tmp_path / "imported").exists()


def test_a_real_log_of_verl_has_no_refused_line() -> None:
    log = read(needs_shared("data", "runs", "yushengsu_grpo_deepseek7b_gsm8k.jsonl.gz"))
    assert len(steps_of(log)) == 1119 and log.refused == []


LIMITED = {"config": {"limit": 10.0}, "n-samples": {"gsm8k": {"original": 1319, "effective": 10}}}
STRICT, FLEXIBLE = (f"exact_match,{name}" for name in ("strict-match", "flexible-extract"))


@pytest.mark.parametrize(
    ("more", "metric", "score", "said"),
    [
        ({}, None, {"metric": STRICT, "accuracy": 0.5}, f"gsm8k: {STRICT} 0.5; there is also acc,none 0.7"),
        ({}, "flexible-extract", {"metric": FLEXIBLE, "accuracy": 0.6}, f"there is also {STRICT} 0.5"),
        ({}, "acc", {"metric": "acc,none", "accuracy": 0.7}, f"there is also {FLEXIBLE} 0.6"),
        *(
            ({"config": {"limit": limit}}, FLEXIBLE, {"accuracy": 0.6}, f"{FLEXIBLE} 0.6; there")
            for limit in (math.inf, 10**400)
        ),
        (LIMITED, FLEXIBLE, {"samples": 10, "limit": 10.0}, f"{FLEXIBLE} 0.6, samples 10, limit 10; there"),
    ],
)
def test_results_of_lm_eval(tmp_path: Path, more: Any, metric: str, score: dict[str, Any], said: str) -> None:
    file = write(tmp_path, "results_2026-01-02T03-04-05.json", LM_EVAL | more)
    scores, log = scores_of(file, metric) or ({}, None)
    assert log and scores["gsm8k"].items() >= score.items() and said in log.notes[0]
    assert [place for place, _ in log.refused] == ["results.wikitext"]
    for metric, said in (("f1,none", "has none of exact_match"), ("acc,none", "acc,none is 45.2, not in 0 to 1")):
        with pytest.raises(UserError, match=rf"results\.f: {said}"):
            scores_of(write(tmp_path, "none.json", {"results": {"f": {metric: 45.2}}}))


def test_a_log_becomes_a_run_that_figures_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bring(tmp_path, write(tmp_path, "verl.log", VERL_CONSOLE), "--batch", "4", "--group", "2") == 0
    said = capsys.readouterr().out
    assert "line 4" in said and "reward: critic/score/mean, 2 steps, 0.25 at step 1, 0.75 at step 3" in said
    home = tmp_path / "imported" / "countdown"
    run = home / "big" / "theirs" / "seed1"
    assert read_table(run / STEPS)["fresh_rollouts"].tolist() == [8, 16]  # step 2 is not logged
    assert read_json(run / SUMMARY)["totals"] == {"rollouts": 24}
    (source,) = read_json(run / MANIFEST)["imported"]
    assert source["refused"] == 1 and source["notes"][0] in said
    (block,) = studies.load(home / imports.STUDY).blocks
    assert [cell.seed for cell in block.methods["theirs"]] == [1]
    figure = ["figure", "figure4_training_curves", "--study", str(home / imports.STUDY), "--out", str(tmp_path)]
    assert main(figure) == 0 and (tmp_path / "figure4_training_curves.svg").stat().st_size


def test_two_files_become_one_evaluation(tmp_path: Path) -> None:
    first = write(tmp_path, "a.json", LM_EVAL)
    second = write(tmp_path, "b.json", {"results": {"aime24": {"exact_match,none": 0.75}}})
    assert bring(tmp_path, first) == bring(tmp_path, second) == bring(tmp_path, second) == 0
    folder = tmp_path / "imported" / "countdown" / "big" / "theirs" / "seed1" / "eval"
    scores = {name: score["accuracy"] for name, score in read_json(folder / SUMMARY)["benchmarks"].items()}
    assert scores == {"gsm8k": 0.5, "aime24": 0.75} and len(read_json(folder / MANIFEST)["imported"]) == 2


@pytest.mark.parametrize(
    ("first", "second", "part"),
    [
        (VERL_CONSOLE, VERL_CONSOLE.replace("0.75", "0.5"), ""),
        (LM_EVAL, {"results": {"gsm8k": {"acc,none": 0.1}, "aime24": {"acc,none": 0.1}}}, "eval"),
    ],
)
def test_another_file_under_the_same_names_is_refused(
    tmp_path: Path, capsys: Any, first: Any, second: Any, part: str
) -> None:
    ending = "json" if part else "log"
    file, other = (write(tmp_path, f"{name}.{ending}", text) for name, text in (("a", first), ("b", second)))
    folder = tmp_path / "imported" / "countdown" / "big" / "theirs" / "seed1" / part
    assert bring(tmp_path, file) == 0
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert bring(tmp_path, other) == 2
    assert f"{folder}: was imported from {file.name}, of other content than {other};" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
    assert bring(tmp_path, other, "--seed", "2") == bring(tmp_path, file) == 0


@pytest.mark.parametrize("name", ["r.json", "v.log"])
@pytest.mark.parametrize("lies", ["manifest.json", "summary.json", "steps.parquet", "checkpoints"])
@pytest.mark.parametrize("part", ["", "eval"])
def test_results_that_were_not_imported_are_not_mixed_with_others(
    tmp_path: Path, capsys: Any, name: str, lies: str, part: str
) -> None:
    file = write(tmp_path, name, LM_EVAL if name == "r.json" else VERL_CONSOLE)
    folder = tmp_path / "imported" / "countdown" / "big" / "theirs" / "seed1" / part
    folder.mkdir(parents=True)
    write(folder, lies, {"identity": "f00"})
    assert bring(tmp_path, file) == 2
    assert f"{folder}: holds {lies}" in capsys.readouterr().err
    assert [(p.name, p.read_text()) for p in folder.iterdir()] == [(lies, '{"identity": "f00"}')]


def test_a_copy_of_an_imported_run_is_no_run(tmp_path: Path) -> None:
    file = write(tmp_path, "v.log", VERL_CONSOLE)
    assert bring(tmp_path, file) == 0
    home = tmp_path / "imported" / "countdown"
    for copy in ("seed1_old", "seed01", "seed2"):
        shutil.copytree(home / "big" / "theirs" / "seed1", home / "big" / "theirs" / copy)
    write(home / "big" / "theirs" / "seed2", "manifest.json", "{damaged")
    assert bring(tmp_path, file) == 0
    assert [cell.seed for cell in studies.load(home / imports.STUDY).blocks[0].methods["theirs"]] == [1]


@pytest.mark.parametrize("name", ["v.log", "v.log.gz", "r.json.gz"])
def test_a_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(imports, "LARGEST", 1000)
    for size, status in ((900, 0), (1001, 2)):
        text = (json.dumps(LM_EVAL) if "json" in name else VERL_CONSOLE).ljust(size).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        assert bring(tmp_path, path) == status
    assert f"{path}: not readable (more than 1,000 bytes)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "number"),
    [
        *(("--batch", "0"), ("--group", "-2"), ("--seed", "x"), ("--batch", "1" + 30 * "0"), ("--group", "9" * 5000)),
        *(("--batch", str(10**6)), ("--seed", str(2**63)), ("--seed", "9" * 30)),
    ],
)
def test_a_count_is_from_1(tmp_path: Path, capsys: Any, option: str, number: str) -> None:
    with pytest.raises(SystemExit):
        bring(tmp_path, write(tmp_path, "r.json", LM_EVAL), f"{option}={number}")
    assert f"{option}: {number:.40}: must be" in capsys.readouterr().err and not (tmp_path / "imported").exists()


def test_a_history_is_a_list(tmp_path: Path, capsys: Any) -> None:
    assert bring(tmp_path, file := write(tmp_path, "r.json", {"log_history": 3})) == 2
    assert f"{file}: log_history" in capsys.readouterr().err


def test_a_run_is_imported_once_and_each_run_of_a_panel_is_one(tmp_path: Path, capsys: Any) -> None:
    """By its numbers: packed it has another checksum, and several runs of a panel have the same."""
    packed = tmp_path / "verl.log.gz"
    packed.write_bytes(gzip.compress(VERL_CONSOLE.encode()))
    assert bring(tmp_path, write(tmp_path, "verl.log", VERL_CONSOLE)) == 0
    assert bring(tmp_path, packed, "--batch", "4", "--seed", "2") == 2
    run = tmp_path / "imported" / "countdown" / "big" / "theirs"
    assert f"{packed}: has the numbers of {run / 'seed1'}" in capsys.readouterr().err
    assert not (run / "seed2").exists()
    panel = write(tmp_path, "runs.csv", WANDB_RUNS)
    for seed, name in (("2", "a - reward"), ("3", "b - reward")):
        assert bring(tmp_path, panel, "--metric", name, "--seed", seed) == 0
    (block,) = studies.load(run.parents[1] / imports.STUDY).blocks
    assert [cell.seed for cell in block.methods["theirs"]] == [1, 2, 3]


def test_a_table_of_many_columns_is_read_quickly(tmp_path: Path) -> None:
    header = ",".join(["Step", "reward", *(f"metric_{i}" for i in range(100_000))])
    began = time.monotonic()
    assert steps_of(read(write(tmp_path, "wide.csv", f"{header}\n1,0.5\n")))["reward_mean"].tolist() == [0.5]
    assert time.monotonic() - began < 30  # counting each name among all takes minutes


@pytest.mark.parametrize("option", ["--batch", "--group"])
def test_an_evaluation_has_no_steps(tmp_path: Path, capsys: Any, option: str) -> None:
    assert bring(tmp_path, file := write(tmp_path, "r.json", LM_EVAL), option, "4") == 2
    assert f"{file}: an evaluation has no training steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "name"), [("--model", "Qwen/Qwen2.5-7B"), ("--task", ".."), ("--method", ""), ("--method", "_theirs")]
)
def test_a_name_that_is_no_folders_is_refused(tmp_path: Path, capsys: Any, option: str, name: str) -> None:
    assert bring(tmp_path, write(tmp_path, "r.json", LM_EVAL), option, name) == 2
    assert option in capsys.readouterr().err and not (tmp_path / "imported").exists()
