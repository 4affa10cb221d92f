"""The plan: hours by hand, the jobs that Snakemake lists, and what a run at paper scale is estimated to need."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from statistics import median

import pytest
import yaml
from support.paths import ROOT

from bapo import __main__
from bapo.errors import UserError
from bapo.experiments import budgets, studies
from bapo.experiments import compose as configuration
from bapo.experiments.schema import Config
from bapo.experiments.settings import Settings
from bapo.plan import costs, resources, text
from benchmarks import paper_scale

PAPER = Settings(scale="paper")


def run(scale: str, task: str, model: str, method: str, *overrides: str) -> Config:
    return configuration.run_config(scale, task, model, method, 42, overrides)


# ------------------------------------------------------------------------------------------------ the jobs


def test_the_plan_is_snakemakes_list_with_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that sets a budget is among the jobs; a damaged summary is not."""
    monkeypatch.chdir(tmp_path)
    words = ["methods=bapo+rollouts", "seeds=[1]"]
    listed = text.jobs("runs_controls", text.settings_of(words), words)
    home = Path("countdown", "qwen2-112k")
    trained = {job.output: job.cost for job in listed if job.kind == "train"}
    assert set(trained) == {home / "bapo+rollouts/seed1/summary", home / "grpo/seed1/summary"}
    assert trained[home / "grpo/seed1/summary"] == costs.train_of(Settings(), "countdown", "qwen2-112k", "grpo")
    assert sum(job.kind == "evaluate" for job in listed) == 2  # the run's and the base's
    assert not any(job.done for job in listed)
    assert __main__.main(["plan", "runs_figure6", "--config", "scale=paper", "seeds=[42]", "methods=[grpo,bapo]"]) == 0
    said = capsys.readouterr().out
    assert said.count("model Qwen/Qwen2.5-Math-1.5B: about 3.1 GB") == 1
    assert said.count("data Jiayi-Pan/Countdown-Tasks-3to4") == 1
    hours = 8 * sum(costs.PAPER_HOURS["qwen2.5-math-1.5b"][method] for method in ("grpo", "bapo"))
    assert re.search(rf"^train +2 +2 +{hours:.1f} +{hours:.1f} .*  {costs.PAPER}$", said, re.MULTILINE)


def test_a_sweep_costs_its_trials_and_the_runs_that_it_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(trials=5)
    listed = text.jobs("sweep_free_countdown", settings, ["trials=5"])
    slots = [job.cost for job in listed if job.kind == "sweep"]
    assert slots == 5 * [costs.train_of(settings, "countdown", "qwen2-112k", "bapo").times(3)]
    assert sum(job.kind == "train" for job in listed) == 2 * 3
    assert "take at most this" in text.as_text("sweep_free_countdown", settings, listed)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["table9"], "plan table9: "),
        (["table1", "--config", "scale=papre"], "'paper'"),
        (["table1", "--config", "paper"], "--config paper: must be KEY=VALUE"),
        (["table1", "--config", "a b=3"], "--config a b=3"),
        (["runs_controls", "--config", "scale=gpu"], "scales has no 'gpu'"),
    ],
)
def test_wrong_words_take_one_sentence(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


# ------------------------------------------------------------------------------------------------ hours by hand


def test_hours_of_the_paper_are_table_2s() -> None:
    """costs.PAPER_HOURS against analysis/paper/table2.yaml, whose times are as printed."""
    printed = yaml.safe_load((ROOT / "analysis" / "paper" / "table2.yaml").read_text(encoding="utf-8"))
    unit = {"d": 24.0, "h": 1.0, "m": 1 / 60}
    models = {
        "mathematics": "deepseek-r1-distill-qwen-1.5b",
        "countdown": "qwen2.5-math-1.5b",
        "geometry": "qwen2.5-vl-3b",
    }
    for block in printed["tasks"]:
        times = {row["method"]: re.findall(r"(\d+)([dhm])", row["time"]) for row in block["rows"]}
        hours = {method: sum(int(n) * unit[u] for n, u in parts) for method, parts in times.items()}
        assert costs.PAPER_HOURS[models[block["task"]]] == pytest.approx(hours), block["task"]


def test_where_hours_are_from() -> None:
    cell = ("countdown", "qwen2.5-math-1.5b", "grpo")
    assert costs.train(run("paper", *cell)).source == costs.PAPER
    single = costs.train(run("single_gpu", *cell))
    assert single.source == costs.MODEL and 3 < single.gpu_hours < 4
    large = costs.train_of(PAPER, "countdown", "qwen2.5-math-7b", "dapo")
    config = run("paper", "countdown", "qwen2.5-math-7b", "dapo")
    assert large.source == costs.MODEL
    assert large.gpu_hours == pytest.approx(8 * sum(costs.step_seconds(config)) * budgets.steps(config) / 3600)
    for unknown in (
        run("pocket", "countdown", "smollm2-135m-instruct", "grpo"),
        run("single_gpu", "mathematics", "qwen2.5-0.5b-instruct", "grpo", "device=cpu"),
    ):
        assert costs.train(unknown).source == costs.evaluate(unknown).source == costs.UNKNOWN
        assert costs.train(unknown).gpu_hours == 0


def test_cpu_hours_at_laptop_scale_by_hand() -> None:
    times = costs.measured()
    cost = costs.train_of(Settings(), "countdown", "qwen2-112k", "bapo")
    step = times["step"]["countdown"]
    assert cost.source == costs.MEASURED
    assert cost.cpu_hours == pytest.approx((times["start"] + 150 * step["bapo"]) / 3600)
    # 6 models of 4 bytes a parameter; tables; where they are kept, two states of 12 bytes, and 4 of the delayed policy
    assert cost.disk == 112_000 * 6 * 4 + costs.TABLES_BYTES
    keeping = Settings(set=("checkpoint.keep_state=true",))
    kept = costs.train_of(keeping, "countdown", "qwen2-112k", "bapo").disk
    assert kept == 112_000 * (6 * 4 + 2 * 16) + costs.TABLES_BYTES
    compute = costs.train_of(Settings(), "countdown", "qwen2-112k", "bapo+compute")
    assert compute.cpu_hours == pytest.approx((times["start"] + 150 * times["budget"]["flops"] * step["bapo"]) / 3600)
    # half the responses a step at smoke scale, 12 steps
    smoke = costs.train_of(Settings(scale="smoke"), "countdown", "qwen2-112k", "grpo")
    share = 16 * 8 / times["responses"]
    assert smoke.cpu_hours == pytest.approx((times["start"] + 12 * share * step["grpo"]) / 3600)
    assert costs.train_of(Settings(scale="gpu"), "countdown", "qwen2-25m", "grpo").source == costs.UNKNOWN
    evaluation = costs.evaluate(run("laptop", "countdown", "qwen2-112k", "grpo"))
    assert evaluation.cpu_hours == pytest.approx((times["start"] + 800 * 32 / times["samples"]["countdown"]) / 3600)


# ------------------------------------------------------------------------------------------------ the model


def test_estimates_follow_the_model_size() -> None:
    small, large, grpo = (
        run("paper", "countdown", f"qwen2.5-math-{size}", method)
        for size, method in (("1.5b", "bapo"), ("7b", "bapo"), ("7b", "grpo"))
    )
    logits = 16 * 152_000 * 2 * (512 + 2048) / 1e9  # two sequences a GPU
    training, generating, host = paper_scale.gigabytes(small, 8)
    assert (training - logits, generating) == pytest.approx((16 * 1.54 / 8, 12 * 1.54 / 8 + 40))
    assert paper_scale.gigabytes(grpo, 8)[0] == paper_scale.gigabytes(large, 8)[0]  # its reference lies in host memory
    assert (host, paper_scale.gigabytes(grpo, 8)[2]) == pytest.approx((8 * 1.54, 2 * 7.62))
    seconds = [sum(costs.step_seconds(config)) for config in (small, large)]
    assert seconds[1] / seconds[0] == pytest.approx(7.62 / 1.54)
    # 2048 responses of 1024 tokens at 5% of eight A100s, and BAPO's re-evaluation of 128 prompts every 5 steps
    one_batch = 2 * 7.62e9 * 2048 * 1024 / (8 * 312e12 * 0.05)
    assert [costs.step_seconds(c)[0] for c in (grpo, large)] == pytest.approx([one_batch, 1.1 * one_batch])


@pytest.mark.parametrize(
    ("method", "batches"), [("grpo", 1), ("dapo", 4), ("bapo+m1", 1.5), ("bapo+m10", 1.05), ("bapo_without_x2", 1)]
)
def test_generation_follows_the_method(method: str, batches: float) -> None:
    assert costs.generation_batches(run("paper", "countdown", "qwen2.5-math-1.5b", method)) == pytest.approx(batches)


def test_the_papers_mathematics_run_takes_its_471_steps() -> None:
    """The last step that Figure 15 shows."""
    assert budgets.steps(run("paper", "mathematics", "deepseek-r1-distill-qwen-1.5b", "bapo")) == 471


@pytest.mark.parametrize("scale", ["paper", "single_gpu"])
def test_the_document_holds_the_table_of_every_run(scale: str) -> None:
    table, page = paper_scale.table(scale), "paper_scale.md" if scale == "paper" else "single_gpu.md"
    assert (ROOT / "docs" / page).read_text(encoding="utf-8").endswith(table), f"benchmarks/paper_scale.py {scale}"
    cells = {cell for name in paper_scale.LISTED[scale] for cell in studies.load_study(name, scale).cells}
    assert len(table.splitlines()) == 2 + len({(c.task, c.model, c.method) for c in cells})


def test_a_policy_in_host_memory_needs_that_memory() -> None:
    bapo, grpo = (run("single_gpu", "geometry", "qwen2.5-vl-3b", method) for method in ("bapo", "grpo"))
    hosts = [paper_scale.gigabytes(config, 1)[2] for config in (grpo, bapo)]
    assert hosts == pytest.approx([18 * 3.75, 24 * 3.75])
    small = run("single_gpu", "mathematics", "qwen3-0.6b", "bapo")
    assert resources.training(bapo)["mem_mb"] - resources.training(small)["mem_mb"] == 75_000
    assert resources.training(bapo)["gpu"] == 1


@pytest.mark.parametrize(("parameters", "gpus", "fits"), [(1.54e9, 1, True), (3.09e9, 1, False), (3.09e9, 2, True)])
def test_what_public_runs_take_is_admitted(parameters: float, gpus: int, fits: bool) -> None:
    """TinyZero: one GPU for models of up to 1.5B, two for 3B; Countdown, vLLM beside the training, 80 GB."""
    from bapo.engines.verl import memory

    config = run("paper", "countdown", "qwen2.5-math-1.5b", "grpo", f"model.parameters={parameters}")
    if fits:
        assert memory.micro_batch_tokens(config, gpus, 100_000, 80) > 512 + 2048
    else:
        with pytest.raises(UserError, match=r"leaves 0\.\d+ of each card to vLLM"):
            memory.micro_batch_tokens(config, gpus, 100_000, 80)


LOG = ROOT.parent / "shared" / "data" / "runs" / "yushengsu_grpo_deepseek7b_gsm8k.jsonl.gz"


@pytest.mark.skipif(not LOG.exists(), reason="no logged runs beside the checkout")
def test_the_time_of_a_public_run() -> None:
    """A verl run that logs every part of its steps; the card's peak follows from its own utilisation."""
    with gzip.open(LOG, "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if "timing_s/gen" in row]

    def usual(*names: str) -> float:
        return median(sum(row[name] for name in names) for row in rows)

    parameters, gpus, prompt, response = 6.9e9, 8, usual("prompt_length/mean"), usual("response_length/mean")
    assert usual("total_num_tokens") / (prompt + response) == pytest.approx(1024 * 5, rel=0.01)
    achieved = 6 * parameters * usual("total_num_tokens") / usual("timing_s/update_actor") / gpus
    peak = achieved / usual("mfu/actor")
    assert peak == pytest.approx(1307e12, rel=0.02)  # an MI300X
    lengths = f"sampling.max_prompt_tokens={round(2 * prompt)}"  # the estimate takes half
    batch = ("train.batch_size=1024", "train.mini_batch_size=256", "train.group_size=5", lengths)
    asked = (f"model.parameters={parameters}", "method.clip_centre=step-policy", *batch)
    config = run("paper", "mathematics", "deepseek-r1-distill-qwen-1.5b", "grpo", *asked)
    generation, training = costs.step_seconds(config, gpus, mean_response=response, peak=peak)
    measured = usual("timing_s/old_log_prob", "timing_s/ref", "timing_s/update_actor")
    found = (usual("timing_s/gen") / generation, measured / training)
    assert tuple(round(part, 1) for part in found) == (2.1, 1.4)  # docs/paper_scale.md
