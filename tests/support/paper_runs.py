"""The runs of the paper, written down from it."""

from __future__ import annotations

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
