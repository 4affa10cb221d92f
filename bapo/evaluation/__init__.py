"""Evaluates checkpoints on the benchmarks, also along a run, and grades files of responses."""
