"""What jobs ask of a machine or a cluster, by value: megabytes, minutes, GPUs, machines, priority."""

from __future__ import annotations

import pytest

from bapo.experiments.order import Cell
from bapo.experiments.settings import Settings
from bapo.plan import resources

LAPTOP = (Settings(), Cell("countdown", "qwen2-112k", "bapo", 1))
GPU = (Settings(scale="gpu", device="cuda"), Cell("countdown", "qwen2-25m", "bapo", 1))
PAPER = (Settings(scale="paper"), Cell("countdown", "qwen2.5-math-1.5b", "bapo", 42))
POCKET = (Settings(scale="pocket"), Cell("countdown", "smollm2-135m-instruct", "bapo", 1))
VERL_CPU = (Settings(engine="verl", device="cpu"), Cell("countdown", "qwen2-112k", "grpo", 1))
VERL_POCKET = (Settings(scale="pocket", engine="verl"), POCKET[1])
VERL_CUDA = (Settings(scale="gpu", engine="verl", device="cuda"), Cell("countdown", "qwen2-25m", "grpo", 1))
DAY = 1440


@pytest.mark.parametrize(
    ("job", "asked", "wanted"),
    [
        (resources.training, LAPTOP, (1500, 60, 0, None)),
        (resources.training, GPU, (16_000, DAY, 1, 1)),
        (resources.training, PAPER, (480_000, 3 * DAY, 8, 1)),
        (resources.training, VERL_CPU, (5000, 60, 0, None)),
        (resources.training, VERL_POCKET, (17_060, 3 * DAY, 0, None)),
        (resources.training, VERL_CUDA, (60_000, DAY, 1, 1)),
        (resources.base_model, LAPTOP, (1500, 60, 0, None)),
        (resources.base_model, GPU, (16_000, DAY, 1, 1)),
        (resources.base_model, PAPER, (4000, DAY, 0, None)),  # noted only
        (resources.evaluation, LAPTOP, (1500, 60, 0, None)),
        (resources.training, POCKET, (6497, 3 * DAY, 0, None)),
        (resources.evaluation, POCKET, (3149, DAY, 0, None)),
        (resources.evaluation, GPU, (16_000, DAY, 1, 1)),
        (resources.evaluation, PAPER, (60_000, DAY, 1, 1)),
        (resources.problems, PAPER, (1500, 240, 0, None)),
    ],
)
def test_what_a_job_asks_for(job, asked: tuple[Settings, Cell], wanted: tuple) -> None:
    config = asked[0].run(asked[1])
    for attempt in (1, 2):  # more memory and time the second time, not more GPUs
        # a run on GPUs asks for no more: it goes on where it was cut; nor does an evaluation of a pretrained model
        more = 1 if wanted[2] and (job is resources.training or asked is PAPER) else attempt
        first = {"mem_mb": more * wanted[0], "runtime": more * wanted[1]}
        assert job(config, attempt) == first | {"gpu": wanted[2], "nodes": wanted[3]}


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("model.dtype=bfloat16", 5690),  # 20 bytes a parameter in place of 26
        ("model.parameters=1e9", 29_000),
        ("model.parameters=null", 1500),
    ],
)
def test_a_pretrained_run_on_the_cpu_asks_for_its_parts(override: str, wanted: int) -> None:
    settings, cell = POCKET
    config = Settings(scale=settings.scale, set=(override,)).run(cell)
    assert resources.training(config)["mem_mb"] == wanted


def test_an_evaluation_takes_the_gpus_of_its_backend() -> None:
    settings, cell = PAPER
    on_cores = 14_393  # weights of 1.5B and what is computed with them
    for override, gpus, megabytes in (
        ("evaluation.vllm={tensor_parallel_size: 4}", 4, 240_000),
        ("evaluation.vllm.tensor_parallel_size=1", 1, 60_000),
        ("engine=torch", 1, 60_000),
        ("evaluation.backend=torch", 0, on_cores),
        ("device=cpu", 0, on_cores),  # vLLM's build for CPU cores
    ):
        asked = resources.evaluation(Settings(scale=settings.scale, set=(override,)).run(cell))
        assert (asked["gpu"], asked["mem_mb"]) == (gpus, megabytes), override


def test_a_model_from_scratch_is_asked_nothing_that_builds_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake asks of every method of a study, also when nothing is to be done."""
    monkeypatch.setattr(resources.methods, "of_run", lambda config: pytest.fail("built a method"))
    assert resources.training(LAPTOP[0].run(LAPTOP[1]))["mem_mb"] == 1500
