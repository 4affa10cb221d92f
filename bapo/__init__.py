"""Reproduction suite for "Buffer Matters: Unleashing the Power of Off-Policy RL in LLM Reasoning" (BAPO)."""

__version__ = "1.0.0"
