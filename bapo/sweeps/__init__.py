"""Sweeps: how a method's accuracy depends on its parameters (``experiments/sweep/``, docs/sweeps.md).

A sweep is one Optuna study. Each job of the workflow fills one of its slots: it draws parameters, trains the method
with them for every seed into ordinary run directories, and reports the accuracy on the held-out probe problems, never
on a test set. Nothing here imports torch or optuna at the top.
"""
