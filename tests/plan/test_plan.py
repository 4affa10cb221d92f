"""The plan: the jobs of a dry run, hours by hand, what is done already, and no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from support.paths import ROOT

from bapo import __main__
from bapo.errors import UserError
from bapo.experiments import budgets
from bapo.experiments import compose as configuration
from bapo.experiments.cells import Cell
from bapo.experiments.identity import data_identity, identity_of_evaluation, train_identity
from bapo.experiments.places import data_directory, run_directory
from bapo.experiments.settings import Settings
from bapo.plan import costs as plan_costs
from bapo.plan import estimates
from bapo.plan import jobs as plan
from bapo.plan import text as plan_text
from bapo.store.files import SUMMARY, write_json

PAPER = Settings(scale="paper")
#: kind of a job -> rules of the workflow; every other rule that makes a file belongs to the analysis
RULES = {
    "data": ("data",),
    "base": ("base",),
    "train": ("train",),
    "evaluate": ("evaluate", "evaluate_base"),
    "curve": ("evaluate_curve",),
    "sweep": ("sweep_slot",),
}
#: rules that make no file
TARGETS = ("all", "comparisons", "sweep")


def dry_run(folder: Path, target: str, *settings: str) -> dict[str, int]:
    """Jobs by kind of `snakemake -n` in an empty folder."""
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "-n", target]
    command += ["--config", *settings] if settings else []
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("Job stats:")[1].split("total")[0]
    rules = {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}
    kinds = {rule: kind for kind, names in RULES.items() for rule in names}
    counted = Counter({kind: 0 for kind in plan.KINDS})
    for rule, count in rules.items():
        counted[kinds.get(rule, "analysis")] += count if rule not in TARGETS else 0
    return dict(counted)


def planned(target: str, settings: Settings) -> dict[str, int]:
    counted = Counter(job.kind for job in plan.jobs(target, settings))
    return {kind: counted.get(kind, 0) for kind in plan.KINDS}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["all", "comparisons", "sweep"])
def test_the_jobs_are_those_of_a_dry_run(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scale = "smoke" if target == "comparisons" else "paper"
    assert planned(target, Settings(scale=scale)) == dry_run(tmp_path, target, f"scale={scale}")


def test_the_laptops_table(tmp_path: Path) -> None:
    """Three tasks, nine methods, three seeds (tests/workflows/test_workflow.py counts the same in a dry run)."""
    found = planned("table1", Settings(results=str(tmp_path)))
    assert (found["data"], found["base"], found["train"], found["evaluate"]) == (3, 3, 81, 84)


def test_tuning_trains_and_evaluates_nothing(tmp_path: Path) -> None:
    found = planned("tuning", Settings(scale="smoke", results=str(tmp_path)))
    assert found == {"data": 1, "base": 1, "train": 8, "evaluate": 0, "curve": 0, "sweep": 0, "analysis": 2}


def test_hours_of_the_paper_are_table_2s() -> None:
    """estimates.PAPER_HOURS against analysis/paper/table2.yaml, whose times are as printed."""
    printed = yaml.safe_load((ROOT / "analysis" / "paper" / "table2.yaml").read_text(encoding="utf-8"))
    unit = {"d": 24.0, "h": 1.0, "m": 1 / 60}
    hours = {}
    for block in printed["tasks"]:
        hours[block["task"]] = {
            row["method"]: sum(int(n) * unit[u] for n, u in re.findall(r"(\d+)([dhm])", row["time"]))
            for row in block["rows"]
        }
    models = {
        "mathematics": "deepseek-r1-distill-qwen-1.5b",
        "countdown": "qwen2.5-math-1.5b",
        "geometry": "qwen2.5-vl-3b",
    }
    for task, model in models.items():
        assert estimates.PAPER_HOURS[model] == pytest.approx(hours[task]), task


def test_gpu_hours_of_the_papers_table_by_hand() -> None:
    """13 of the 21 runs are in Table 2: the sum of its hours times 8 GPUs, the ablations of Figure 6 apart."""
    named = {"grpo", "dapo", "bapo", "bapo_without_x2", "bapo_without_x3"}
    expected = 8 * sum(h for rows in estimates.PAPER_HOURS.values() for m, h in rows.items() if m in named)
    trained = [job.cost for job in plan.jobs("table1", PAPER) if job.kind == "train"]
    paper = [c.gpu_hours for c in trained if c.source == plan_costs.PAPER]
    assert len(trained) == 21 and len(paper) == 13 and sum(paper) == pytest.approx(expected)
    # 40:58 + 63:30 + 46:37 + 3:47 + 6:35 + 3:23 + 2:38 + 3:04 + 7:55 + 12:19 + 5:50 + 3:42 + 4:31 hours
    assert expected == pytest.approx(8 * (12289 / 60))
    others = [c for c in trained if c.source != plan_costs.PAPER]
    assert {c.source for c in others} == {plan_costs.MODEL} and all(c.cpu_hours == 0 for c in trained)


def test_the_model_is_that_of_the_estimates() -> None:
    config = configuration.run_config("paper", "countdown", "qwen2.5-math-7b", "dapo", 42)
    expected = 8 * estimates.estimate(config).seconds * budgets.steps(config) / 3600
    found = plan_costs.train_of(PAPER, "countdown", "qwen2.5-math-7b", "dapo")
    assert found.source == plan_costs.MODEL and found.gpu_hours == pytest.approx(expected)


def test_cpu_hours_at_laptop_scale_by_hand(tmp_path: Path) -> None:
    settings = Settings(results=str(tmp_path))
    times = plan_costs.measured()
    cost = plan_costs.train_of(settings, "countdown", "qwen2-112k", "bapo")
    assert cost.source == plan_costs.MEASURED
    assert cost.cpu_hours == pytest.approx((times["start"] + 150 * times["step"]["countdown"]["bapo"]) / 3600)
    # 6 models of 4 bytes a parameter; tables; where they are kept, two states of 12 bytes, and 4 of the delayed policy
    assert cost.disk == 112_000 * 6 * 4 + plan_costs.TABLES_BYTES
    keeping = Settings(results=str(tmp_path), set=("checkpoint.keep_state=true",))
    assert (
        plan_costs.train_of(keeping, "countdown", "qwen2-112k", "bapo").disk
        == 112_000 * (6 * 4 + 2 * 16) + plan_costs.TABLES_BYTES
    )
    compute = plan_costs.train_of(settings, "countdown", "qwen2-112k", "bapo+compute")
    steps = 150 * times["budget"]["flops"]
    assert compute.cpu_hours == pytest.approx((times["start"] + steps * times["step"]["countdown"]["bapo"]) / 3600)
    # half the responses a step at smoke scale, 12 steps
    smoke = plan_costs.train_of(Settings(scale="smoke"), "countdown", "qwen2-112k", "grpo")
    share = 16 * 8 / times["responses"]
    assert smoke.cpu_hours == pytest.approx((times["start"] + 12 * share * times["step"]["countdown"]["grpo"]) / 3600)
    assert plan_costs.train_of(Settings(scale="gpu"), "countdown", "qwen2-25m", "grpo").source == plan_costs.UNKNOWN
    evaluation = plan_costs.evaluate(configuration.run_config("laptop", "countdown", "qwen2-112k", "grpo", 1))
    assert evaluation.cpu_hours == pytest.approx((times["start"] + 800 * 32 / times["samples"]["countdown"]) / 3600)


@pytest.mark.parametrize("scale, overrides", [("pocket", ()), ("single_gpu", ("device=cpu",))])
def test_a_pretrained_model_on_the_cpu_has_no_known_hours(scale: str, overrides: tuple[str, ...]) -> None:
    jobs = plan.jobs("table1", Settings(scale=scale, set=overrides))
    assert {j.cost.source for j in jobs if j.kind in ("train", "evaluate")} == {plan_costs.UNKNOWN}
    assert all(j.cost.gpu_hours == 0 for j in jobs)


def test_a_sweep_costs_its_trials_and_the_runs_that_it_shares(tmp_path: Path) -> None:
    settings = Settings(results=str(tmp_path), trials=5)
    listed = plan.jobs("sweep_free_countdown", settings)
    slots = [job for job in listed if job.kind == "sweep"]
    one = plan_costs.train_of(settings, "countdown", "qwen2-112k", "bapo")
    assert len(slots) == 5 and not any(job.done for job in slots)
    assert slots[0].cost.cpu_hours == pytest.approx(3 * one.cpu_hours) and slots[0].cost.disk == pytest.approx(
        3 * one.disk
    )
    home = tmp_path / "laptop" / "countdown" / "qwen2-112k"
    trained = [job.output.parent.relative_to(home) for job in listed if job.kind == "train"]
    assert trained == [Path(method, f"seed{seed}") for method in ("bapo", "grpo") for seed in (1, 2, 3)]
    assert "take at most this" in plan_text.as_text(plan_text.summary("sweep_free_countdown", settings))


def test_a_run_that_sets_a_budget_is_among_the_jobs(tmp_path: Path) -> None:
    settings = Settings(methods=("bapo+rollouts",), seeds=(1,), results=str(tmp_path))
    trained = [job.output for job in plan.jobs("runs_controls", settings) if job.kind == "train"]
    home = tmp_path / "laptop" / "countdown" / "qwen2-112k"
    assert trained == [home / "bapo+rollouts/seed1/summary.json", home / "grpo/seed1/summary.json"]
    assert sum(job.kind == "evaluate" for job in plan.jobs("runs_controls", settings)) == 2  # the run's and the base's


def test_only_what_has_the_right_identity_is_done(tmp_path: Path) -> None:
    settings = Settings(methods=("grpo", "dapo"), seeds=(1, 2), results=str(tmp_path))
    cells = [Cell("countdown", "qwen2-112k", method, seed) for method in ("grpo", "dapo") for seed in (1, 2)]

    def missing() -> list[str]:
        jobs = plan.jobs("runs_controls", settings)
        return [str(job.output.relative_to(tmp_path / "laptop" / "countdown")) for job in jobs if not job.done]

    every = missing()
    assert len(every) == 1 + 1 + 4 + 5
    config = settings.run(cells[0])
    write_json(data_directory(config) / SUMMARY, {"identity": data_identity(config)})
    write_json(run_directory(config) / SUMMARY, {"identity": train_identity(config)})
    write_json(run_directory(settings.run(cells[1])) / SUMMARY, {"identity": "of something else"})
    damaged = run_directory(settings.run(cells[2])) / SUMMARY
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    assert [p for p in every if p not in missing()] == ["data/summary.json", "qwen2-112k/grpo/seed1/summary.json"]
    content = plan_text.summary("runs_controls", settings)
    assert content["jobs"]["train"] == {"total": 4, "missing": 3}
    identity = identity_of_evaluation(config, "abc")
    summary = {"identity": identity, "checkpoint": "checkpoints/step_000150", "checkpoint_sha256": "abc"}
    write_json(run_directory(config) / "eval" / SUMMARY, summary)
    assert "qwen2-112k/grpo/seed1/eval/summary.json" not in missing()


def test_downloads_are_named_once_with_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["plan", "runs_figure6", "--config", "scale=paper"]) == 0
    text = capsys.readouterr().out
    assert text.count("model Qwen/Qwen2.5-Math-1.5B: about 3.1 GB (2 bytes a parameter)") == 1
    assert text.count("data Jiayi-Pan/Countdown-Tasks-3to4: size not in the configuration") == 1
    assert "9 jobs: the paper's Table 2" not in text and "5 jobs: the paper's Table 2" in text
    assert __main__.main(["plan", "runs_figure6", "--config", "scale=smoke"]) == 0
    assert "Downloads: none" in capsys.readouterr().out


def test_a_local_folder_needs_no_download_of_the_sets() -> None:
    given = plan_text.settings_of(["scale=paper", "data_folder=sets"])
    configs = [plan_costs.of_model(given, "countdown", "qwen2.5-math-1.5b")]
    assert [what for what, _ in plan_text.downloads(configs)] == ["model Qwen/Qwen2.5-Math-1.5B"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table9"], "plan table9: no such target (did you mean 'table"),
        (["table1", "--config", "scale=papre"], "unknown scale (did you mean 'paper'?)"),
        (["table1", "--config", "paper"], "--config paper: must be KEY=VALUE"),
        (["runs_controls", "--config", "scale=gpu"], "scales has no 'gpu'"),
    ],
)
def test_wrong_words_take_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_settings_are_read_as_snakemake_reads_them() -> None:
    given = plan_text.settings_of(["scale=smoke", "seeds=[3,4]", "methods=grpo,bapo", 'set=["train.steps=6"]'])
    assert given == Settings(scale="smoke", seeds=(3, 4), methods=("grpo", "bapo"), set=("train.steps=6",))
    with pytest.raises(UserError, match="--config a b"):
        plan_text.settings_of(["a b=3"])


def test_nothing_slow_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys; from bapo.__main__ import main; main(['plan', 'table1', '--config', 'scale=paper', "
        f"'results={tmp_path}']); print(sorted({{'torch', 'pandas', 'snakemake'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_json_is_the_same_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert __main__.main(["plan", "runs_figure10", "--json", "--config", "scale=smoke", f"results={tmp_path}"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["jobs"]["train"] == {"total": 3, "missing": 3}
    assert content["disk_bytes"]["total"] == content["disk_bytes"]["missing"] > 3 * plan_costs.TABLES_BYTES
    trained = [row for row in content["hours"] if row["kind"] == "train"]
    assert sum(row["total"]["jobs"] for row in trained) == 3
