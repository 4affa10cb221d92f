"""The runs of the paper, written down from it, and where the studies use models from the hub."""

from __future__ import annotations

from analysis.products import at_scale
from bapo.experiments import studies
from bapo.experiments.places import options

VARIANTS = ["bapo+v10", "bapo+v20", "bapo+m1", "bapo+m10", "bapo+fixed_0_2", "bapo+fixed_3_4"]
#: task, model, methods: Table 1's rows less those that it quotes from other papers, and the figures' runs
PAPER = {
    "table1": [
        ("mathematics", "deepseek-r1-distill-qwen-1.5b", ["grpo", "dapo", "grpo_v5", "repo", "bapo"]),
        ("countdown", "qwen2.5-math-1.5b", ["grpo", "dapo", "bapo_without_x2", "bapo_without_x3", "bapo"]),
        ("countdown", "qwen2.5-math-7b", ["grpo", "dapo", "bapo"]),
        ("geometry", "qwen2.5-vl-3b", ["grpo", "dapo", "bapo_without_x2", "bapo_without_x3", "bapo"]),
        ("geometry", "qwen2.5-vl-7b", ["grpo", "dapo", "bapo"]),
    ],
    "figure5": [("mathematics", "qwen3-8b", ["grpo", "dapo", "bapo+mini", "bapo"])],
    "figure6": [("countdown", "qwen2.5-math-1.5b", [*VARIANTS, "bapo_without_x2", "bapo_without_x3", "bapo"])],
    "figure10": [("mathematics", "qwen3-8b", ["bapo+gaussian", "bapo+uniform", "bapo"])],
    "figure16": [("mathematics", "qwen3-4b", ["ppo", "ba_ppo"])],
}
#: scales whose models all come from the hub
HUB = ("paper", "single_gpu")


def hub_models() -> list[tuple[str, str, str]]:
    """(scale, task, model) of every model at the scales of the hub, each once."""
    found = {
        (scale, *start): None
        for scale in HUB
        for name in at_scale(options("study"), scale)
        for start in dict.fromkeys((c.task, c.model) for c in studies.load_study(name, scale).cells)
    }
    return list(found)
