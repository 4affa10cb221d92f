"""Evaluation: benchmarks through lm-eval (own sampler, vLLM or a server), and the grading of recorded responses."""

from bapo.evaluation.grade import grade_file
from bapo.evaluation.run import evaluate

__all__ = ["evaluate", "grade_file"]
