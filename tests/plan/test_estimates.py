"""What a run at paper scale is estimated to need; no verl, no GPU."""

from __future__ import annotations

import gzip
import json
from statistics import median

import pytest
from support.paths import ROOT

from bapo.experiments import budgets, studies
from bapo.experiments import compose as configuration
from bapo.plan import costs, estimates, resources
from bapo.plan.estimates import estimate

DOCUMENT = ROOT / "docs" / "paper_scale.md"


def test_estimates_follow_the_model_size() -> None:
    small = estimate(configuration.run_config("paper", "countdown", "qwen2.5-math-1.5b", "bapo", 42))
    large = estimate(configuration.run_config("paper", "countdown", "qwen2.5-math-7b", "bapo", 42))
    grpo = estimate(configuration.run_config("paper", "countdown", "qwen2.5-math-7b", "grpo", 42))
    logits = 16 * 152_000 * 2 * (512 + 2048)  # two sequences a GPU
    assert small.gpu_bytes - logits == pytest.approx(16 * 1.54e9 / 8)
    assert small.gpu_bytes_generating == pytest.approx(12 * 1.54e9 / 8 + 40e9)
    assert large.seconds / small.seconds == pytest.approx(7.62 / 1.54)
    assert grpo.gpu_bytes == large.gpu_bytes  # its reference policy lies in host memory
    assert (large.host_bytes, grpo.host_bytes) == (8 * 7.62e9, 2 * 7.62e9)
    # 2048 responses of 1024 tokens at 5% of eight A100s, and BAPO's re-evaluation of 128 prompts every 5 steps
    one_batch = 2 * 7.62e9 * 2048 * 1024 / (8 * 312e12 * 0.05)
    assert (grpo.seconds_generation, large.seconds_generation) == pytest.approx((one_batch, 1.1 * one_batch))


@pytest.mark.parametrize(
    ("method", "batches"), [("grpo", 1), ("dapo", 4), ("bapo+m1", 1.5), ("bapo+m10", 1.05), ("bapo_without_x2", 1)]
)
def test_generation_follows_the_method(method: str, batches: float) -> None:
    config = configuration.run_config("paper", "countdown", "qwen2.5-math-1.5b", method, 42)
    assert estimates.generation_batches(config) == pytest.approx(batches)


def test_the_papers_mathematics_run_takes_its_471_steps() -> None:
    """The last step that Figure 15 shows."""
    config = configuration.run_config("paper", "mathematics", "deepseek-r1-distill-qwen-1.5b", "bapo", 42)
    assert budgets.steps(config) == 471


@pytest.mark.parametrize("scale", ["paper", "single_gpu"])
def test_the_document_holds_the_table_of_every_run(scale: str) -> None:
    table, document = estimates.table(scale), {"paper": DOCUMENT}.get(scale, DOCUMENT.with_name(f"{scale}.md"))
    assert document.read_text(encoding="utf-8").endswith(table), f"give `python -m bapo.plan.estimates {scale}` again"
    cells = {cell for name in estimates.LISTED[scale] for cell in studies.load_study(name, scale).cells}
    assert len(table.splitlines()) == 2 + len({(c.task, c.model, c.method) for c in cells})


def test_a_policy_in_host_memory_needs_that_memory() -> None:
    cell = ("single_gpu", "geometry", "qwen2.5-vl-3b")
    bapo, grpo = (configuration.run_config(*cell, method, 1) for method in ("bapo", "grpo"))
    assert estimate(grpo, 1).host_bytes == pytest.approx(18 * 3.75e9)
    assert estimate(bapo, 1).host_bytes == pytest.approx(24 * 3.75e9)
    small = configuration.run_config("single_gpu", "mathematics", "qwen3-0.6b", "bapo", 1)
    assert resources.training(bapo)["mem_mb"] - resources.training(small)["mem_mb"] == 75_000
    assert resources.training(bapo)["gpu"] == 1


def test_the_papers_hours_are_of_the_papers_runs() -> None:
    cell = ("countdown", "qwen2.5-math-1.5b", "grpo")
    assert costs.train(configuration.run_config("paper", *cell, 42)).source == costs.PAPER
    single = costs.train(configuration.run_config("single_gpu", *cell, 1))
    assert single.source == costs.MODEL and 3 < single.gpu_hours < 4


@pytest.mark.parametrize(("parameters", "gpus", "fits"), [(1.54e9, 1, True), (3.09e9, 1, False), (3.09e9, 2, True)])
def test_what_public_runs_take_is_admitted(parameters: float, gpus: int, fits: bool) -> None:
    """TinyZero: one GPU for models of up to 1.5B, two for 3B; Countdown, vLLM beside the training, 80 GB."""
    from bapo.engines.verl import memory
    from bapo.errors import UserError

    config = configuration.run_config("paper", "countdown", "qwen2.5-math-1.5b", "grpo", 42)
    config.model.parameters = parameters
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
    config = configuration.run_config("paper", "mathematics", "deepseek-r1-distill-qwen-1.5b", "grpo", 42, asked)
    found = estimate(config, gpus, mean_response=response, peak=peak)
    generation = usual("timing_s/gen") / found.seconds_generation
    training = usual("timing_s/old_log_prob", "timing_s/ref", "timing_s/update_actor") / found.seconds_training
    assert (round(generation, 1), round(training, 1)) == (2.1, 1.4)  # docs/paper_scale.md
