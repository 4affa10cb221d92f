"""Evaluation: a checkpoint on the benchmarks, its accuracies along a run, and graded files of responses."""
