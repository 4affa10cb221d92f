"""What a run at paper scale is estimated to need; no verl, no GPU."""

from __future__ import annotations

import pytest
from support.paths import ROOT

from bapo.experiments import budgets, studies
from bapo.experiments import compose as configuration
from bapo.plan import estimates
from bapo.plan.estimates import estimate

DOCUMENT = ROOT / "docs" / "paper_scale.md"


def test_estimates_follow_the_model_size() -> None:
    small = estimate(configuration.run_config("paper", "countdown", "qwen2.5-math-1.5b", "bapo", 42))
    large = estimate(configuration.run_config("paper", "countdown", "qwen2.5-math-7b", "bapo", 42))
    grpo = estimate(configuration.run_config("paper", "countdown", "qwen2.5-math-7b", "grpo", 42))
    logits = 6 * 152_000 * 2 * (512 + 2048)  # two sequences a GPU
    assert small.gpu_bytes - logits == pytest.approx(16 * 1.54e9 / 8)
    assert small.gpu_bytes_generating == pytest.approx(16 * 1.54e9 / 8 + 40e9)
    assert large.seconds / small.seconds == pytest.approx(7.62 / 1.54)
    assert grpo.gpu_bytes - large.gpu_bytes == pytest.approx(2 * 7.62e9 / 8)  # its reference policy
    assert (large.host_bytes, grpo.host_bytes) == (8 * 7.62e9, 0)
    # 2048 responses of 1024 tokens at 5% of eight A100s, and BAPO's re-evaluation of 128 prompts every 5 steps
    one_batch = 2 * 7.62e9 * 2048 * 1024 / (8 * 312e12 * 0.05)
    assert (grpo.seconds_generation, large.seconds_generation) == pytest.approx((one_batch, 1.1 * one_batch))


@pytest.mark.parametrize(
    ("method", "batches"), [("grpo", 1), ("dapo", 4), ("bapo_m1", 1.5), ("bapo_m10", 1.05), ("bapo_without_x2", 1)]
)
def test_generation_follows_the_method(method: str, batches: float) -> None:
    config = configuration.run_config("paper", "countdown", "qwen2.5-math-1.5b", method, 42)
    assert estimates.generation_batches(config) == pytest.approx(batches)


def test_the_papers_mathematics_run_takes_its_471_steps() -> None:
    """The last step that Figure 15 shows."""
    config = configuration.run_config("paper", "mathematics", "deepseek-r1-distill-qwen-1.5b", "bapo", 42)
    assert budgets.steps(config) == 471


def test_the_document_holds_the_table_of_every_run() -> None:
    table = estimates.table()
    assert DOCUMENT.read_text(encoding="utf-8").endswith(table), "give `python -m bapo.plan.estimates` again"
    cells = {cell for name in estimates.PAPERS_STUDIES for cell in studies.load_study(name, "paper").cells}
    assert len(table.splitlines()) == 2 + len(cells)
