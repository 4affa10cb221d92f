"""The plan: hours by hand, the jobs that Snakemake lists, and what a run at paper scale is estimated to need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from support.configs import forget
from support.paths import ROOT

from bapo import __main__, init, methods
from bapo.experiments import compose as configuration
from bapo.experiments import studies
from bapo.experiments.order import Cell
from bapo.experiments.schema import Config
from bapo.experiments.settings import Settings
from bapo.plan import costs, resources
from benchmarks import paper_scale

LAPTOP = ("countdown", "qwen2-112k")


def run(scale: str, task: str, model: str, method: str, *overrides: str) -> Config:
    return configuration.run_config(scale, task, model, method, 42, overrides)


def test_the_plan_is_snakemakes_list_with_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that sets a budget is among the jobs."""
    monkeypatch.chdir(tmp_path)
    settings = Settings(methods=("bapo+rollouts",), seeds=(1,))
    listed = costs.jobs(["runs_controls"], settings)
    home = Path(*LAPTOP)
    trained = {job.output: job.cost for job in listed if job.kind == "train"}
    assert set(trained) == {home / "bapo+rollouts/seed1/summary", home / "grpo/seed1/summary"}
    assert trained[home / "grpo/seed1/summary"] == costs.cost_of("train", Settings(), *LAPTOP, "grpo")
    assert sum(job.kind == "evaluate" for job in listed) == 2  # the run's and the base's
    assert not any(job.done for job in listed)
    assert __main__.main(["plan", "runs_figure6", "scale=paper", "seeds=[42]", "methods=[grpo,bapo]"]) == 0
    hours = 8 * (3 + 47 / 60 + 3 + 23 / 60)  # Table 2's
    said = capsys.readouterr().out
    assert re.search(rf"^train +2 / 2 +{hours:.0f} / {hours:.0f} .*  {costs.PAPER}$", said, re.MULTILINE), said
    # alpha's 8 bytes a parameter of 1.54e9; while it generates, vLLM's half of a card, 12 bytes / 8 and 2.1 GB
    assert "A run fills up to 56% of a GPU's memory (verl.gpu_memory), and 12 GB of memory.\n" in said


@pytest.mark.parametrize(
    ("hours", "source", "cores", "time"),
    [
        ([0.37, 0.37], costs.MEASURED, 2, "22 minutes on 2 cores"),
        ([0.001], costs.GUESS, 1, "1 minute on 1 core"),
        ([5.0] * 8, costs.MEASURED, 8, "5.0 hours on 8 cores"),
        ([5.0, 0.1], costs.MEASURED, 8, "5.0 hours on 8 cores"),  # one job is no faster on many
        ([1234.0], costs.UNKNOWN, 2, None),
    ],
)
def test_the_plan_says_how_long_the_cores_of_the_machine_take(
    hours: list[float], source: str, cores: int, time: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs.os, "sched_getaffinity", lambda _: set(range(cores)))
    of_jobs = [costs.Cost(cpu_hours=each, source=source) for each in hours]
    jobs = [costs.Job("train", Path(str(done)), cost, done) for cost in of_jobs for done in (False, True)]
    text = costs.as_text(["table1"], Settings(), jobs)
    assert (f"\nThe jobs that are left take about {time}.\n" in text) == ("about" in text) == (time is not None)
    assert re.search(
        rf"^together +{len(hours)} / {2 * len(hours)}  +(from )?[\d.,]+ / [\d.,]+  ", text, re.MULTILINE
    ), text


def test_a_task_that_nobody_measured_costs_as_much_as_the_slowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init.write(tmp_path / "mine", "generator")
    monkeypatch.chdir(tmp_path / "mine")
    forget()
    own, times = run("smoke", "ordering", "qwen2-112k", "grpo"), costs.measurements()
    guessed = [costs.data(own), costs.base(own), costs.train(own), costs.evaluate(own)]
    assert {cost.source for cost in guessed} == {costs.GUESS} and all(cost.cpu_hours for cost in guessed)
    share = own.train.batch_size * own.train.group_size / times["responses"]
    seconds = times["start"] + own.train.steps * share * times["step"]["mathematics"]["grpo"]
    assert guessed[2].cpu_hours == pytest.approx(seconds / 3600)
    forget()


def test_a_sweep_costs_its_trials_and_the_runs_that_it_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(trials=5)
    listed = costs.jobs(["sweep_free_countdown"], settings)
    slots = [job.cost for job in listed if job.kind == "sweep"]
    assert slots == 5 * [costs.cost_of("train", settings, *LAPTOP, "bapo").times(3)]
    assert sum(job.kind == "train" for job in listed) == 2 * 3


@pytest.mark.parametrize(("words", "named"), [(["table9"], "plan table9: "), (["table1", "scale=papre"], "'paper'")])
def test_wrong_words_take_one_sentence(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


def test_hours_of_the_paper_are_table_2s() -> None:
    """The hours of measured.yaml against analysis/paper/table2.yaml, whose times are as printed."""
    printed = yaml.safe_load((ROOT / "analysis" / "paper" / "table2.yaml").read_text(encoding="utf-8"))
    minutes = {"d": 24 * 60, "h": 60, "m": 1}
    of_paper = costs.measurements()["paper"]
    models = dict(zip(("mathematics", "countdown", "geometry"), of_paper, strict=True))
    for block in printed["tasks"]:
        times = {row["method"]: re.findall(r"(\d+)([dhm])", row["time"]) for row in block["rows"]}
        printed_minutes = {method: sum(int(n) * minutes[u] for n, u in parts) for method, parts in times.items()}
        assert of_paper[models[block["task"]]] == printed_minutes, block["task"]


@pytest.mark.parametrize(
    "change", ["train.epochs=1", "train.learning_rate=1e-5", "train.group_size=2", "sampling.max_response_tokens=64"]
)
def test_hours_of_the_paper_are_of_its_own_settings(change: str) -> None:
    cell = ("paper", "countdown", "qwen2.5-math-1.5b", "grpo")
    usual, other = costs.train(run(*cell)), costs.train(run(*cell, change))
    assert (usual.source, other.source) == (costs.PAPER, costs.MODEL)


def test_cpu_hours_at_laptop_scale_by_hand() -> None:
    times = costs.measurements()
    cost, step = costs.cost_of("train", Settings(), *LAPTOP, "bapo"), times["step"]["countdown"]
    assert cost.source == costs.MEASURED
    assert cost.cpu_hours == pytest.approx((times["start"] + 150 * step["bapo"]) / 3600)
    # 6 models of 4 bytes a parameter; tables; where they are kept, three states of 12 bytes and 4 of the delayed policy
    assert cost.disk == 112_000 * 6 * 4 + costs.TABLES_BYTES
    kept = costs.cost_of("train", Settings(set=("checkpoint.keep_state=true",)), *LAPTOP, "bapo").disk
    assert kept == 112_000 * (6 * 4 + 3 * 16) + costs.TABLES_BYTES
    compute = costs.cost_of("train", Settings(), *LAPTOP, "bapo+compute")
    assert compute.cpu_hours == pytest.approx((times["start"] + 150 * times["budget"]["flops"] * step["bapo"]) / 3600)
    # half the responses a step at smoke scale, 12 steps
    smoke = costs.cost_of("train", Settings(scale="smoke"), *LAPTOP, "grpo")
    share = 16 * 8 / times["responses"]
    assert smoke.cpu_hours == pytest.approx((times["start"] + 12 * share * step["grpo"]) / 3600)
    evaluation = costs.evaluate(run("laptop", *LAPTOP, "grpo"))
    assert evaluation.cpu_hours == pytest.approx((times["start"] + 800 * 32 / times["samples"]["countdown"]) / 3600)


@pytest.mark.parametrize(
    ("method", "batches"),
    [
        *(("grpo", 1), ("dapo", 4), ("bapo+m1", 1.5), ("bapo+m10", 1.05)),
        *(("bapo_without_x2", 1), ("bapo_x1", 1), ("bapo_filled", 4)),
    ],
)
def test_generation_follows_the_method(method: str, batches: float) -> None:
    config = run("paper", "countdown", "qwen2.5-math-1.5b", method)
    assert methods.of_run(config).most_generated == pytest.approx(batches)


@pytest.mark.parametrize("scale", ["paper", "single_gpu"])
def test_the_document_holds_the_table_of_every_run(scale: str) -> None:
    table, page = paper_scale.table(scale), "paper_scale.md" if scale == "paper" else "real_models.md"
    assert table in (ROOT / "docs" / page).read_text(encoding="utf-8"), f"benchmarks/paper_scale.py {scale}"
    cells = {cell for name in paper_scale.LISTED[scale] for cell in studies.load_study(name, scale).cells}
    assert len(table.splitlines()) == 2 + len({(c.task, c.model, c.method) for c in cells})


@pytest.mark.parametrize(
    ("words", "copies"),
    [([], 4 * 3 + 1), (["verl.rollout_window=true"], 1)],  # of alpha in five steps
)
def test_what_bapo_adds_to_a_step_by_hand(words: list[str], copies: int) -> None:
    """A 7B model on eight GPUs, v = m = 5."""
    parts = paper_scale.added(run("paper", "countdown", "qwen2.5-math-7b", "bapo", *words), 8)
    shards, tokens = 4 * 7.62e9 / 8, 256 * 8 / 16 * (512 + 2048) / 2
    comparison = 2 * 7.62e9 * tokens / (8 * 312e12 * 0.35)
    assert parts == pytest.approx((copies / 5 * shards / 10e9, comparison / 5))


def test_the_page_has_what_bapo_adds_and_what_fits_each_card() -> None:
    page, table = (ROOT / "docs" / "paper_scale.md").read_text(encoding="utf-8"), paper_scale.overhead()
    assert f"\n{table}\n" in page, "benchmarks/paper_scale.py overhead"
    rows = [line.split("|") for line in table.splitlines()[2:]]
    assert all(int(row[-2]) < int(row[-4]) < 50 for row in rows)
    assert f"\n{paper_scale.cards()}\n" in page, "benchmarks/paper_scale.py cards"


AT_LAPTOP = (Settings(), Cell("countdown", "qwen2-112k", "bapo", 1))
ON_GPU = (Settings(scale="gpu", device="cuda"), Cell("countdown", "qwen2-25m", "bapo", 1))
PAPER = (Settings(scale="paper"), Cell("countdown", "qwen2.5-math-1.5b", "bapo", 42))
POCKET = (Settings(scale="pocket"), Cell("countdown", "smollm2-135m-instruct", "bapo", 1))
VERL_CPU = (Settings(engine="verl", device="cpu"), Cell("countdown", "qwen2-112k", "grpo", 1))
VERL_POCKET = (Settings(scale="pocket", engine="verl"), POCKET[1])
VERL_CUDA = (Settings(scale="gpu", engine="verl", device="cuda"), Cell("countdown", "qwen2-25m", "grpo", 1))
DAY = 1440


@pytest.mark.parametrize(
    ("job", "asked", "wanted"),
    [
        (resources.training, AT_LAPTOP, (1500, 60, 0, None)),
        (resources.training, ON_GPU, (16_000, DAY, 1, 1)),
        (resources.training, PAPER, (480_000, 3 * DAY, 8, 1)),
        (resources.training, VERL_CPU, (5000, 60, 0, None)),
        (resources.training, VERL_POCKET, (17_060, DAY, 0, None)),
        (resources.training, VERL_CUDA, (60_000, DAY, 1, 1)),
        (resources.base_model, AT_LAPTOP, (1500, 60, 0, None)),
        (resources.base_model, ON_GPU, (16_000, DAY, 1, 1)),
        (resources.base_model, PAPER, (4000, 30, 0, None)),  # described only
        (resources.base_model, POCKET, (4000, 30, 0, None)),
        (resources.evaluation, AT_LAPTOP, (1500, 60, 0, None)),
        (resources.training, POCKET, (6497, DAY, 0, None)),
        (resources.evaluation, POCKET, (3149, DAY, 0, None)),
        (resources.evaluation, ON_GPU, (16_000, DAY, 1, 1)),
        (resources.evaluation, PAPER, (60_000, 3 * DAY, 1, 1)),
        (resources.problems, PAPER, (1500, 240, 0, None)),
    ],
)
def test_what_a_job_asks_for(job, asked: tuple[Settings, Cell], wanted: tuple) -> None:
    config = asked[0].run(asked[1])
    for attempt in (1, 2, 3):  # more memory and time later, not more GPUs
        # a run on GPUs asks for no more: it goes on where it was cut; nor does an evaluation of a pretrained model
        more = 1 if wanted[2] and (job is resources.training or asked is PAPER) else attempt
        first = {"mem_mb": more * wanted[0], "runtime": more * wanted[1] if wanted[2] else min(more * wanted[1], DAY)}
        assert job(config, attempt) == first | {"gpu": wanted[2], "nodes": wanted[3]}


def test_an_evaluation_takes_the_gpus_of_its_backend() -> None:
    settings, cell = PAPER
    for setting, gpus, megabytes in (
        ({"set": ("evaluation.vllm={tensor_parallel_size: 4}",)}, 4, 240_000),
        ({"engine": "torch"}, 1, 60_000),
        ({"device": "cpu"}, 0, 14_393),  # weights of 1.5B and what is computed with them
    ):
        asked = resources.evaluation(Settings(scale=settings.scale, **setting).run(cell))
        assert (asked["gpu"], asked["mem_mb"]) == (gpus, megabytes), setting
